// Attempts and the check of a revert: the part of the lab that runs gates.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lab/gate_run.h"
#include "lab/lab.h"
#include "lab/lab_folder.h"
#include "lab/text.h"

namespace tessera::lab {
namespace {

constexpr size_t kMostChange = size_t{256} << 10;

std::string gate_words(const GateRun& run) {
  return fmt::format("{}{}: {}", run.gate, run.confirmation ? " (confirmation)" : "",
                     run.problem.empty() ? run.summary : run.problem);
}

bool stopped(const GateWatch& watch) {
  return watch.cancel != nullptr && watch.cancel->load();
}

void tell(const GateWatch& watch, const std::string& line) {
  if (watch.on_progress) {
    watch.on_progress(line);
  }
}

struct Step {
  const char* gate;
  bool required;  // a fail ends the attempt
  bool confirmation = false;
};

std::vector<Step> steps_of(const Experiment& e) {
  std::vector<Step> steps{{kIdentity, !e.order_changing()}};
  if (e.order_changing()) {
    steps.push_back({kTolerance, true});
  }
  steps.push_back({kPerf, true});
  if (e.attempts_used() >= kMostAttempts) {
    // The better of two tries is better by luck too: a gain of the last attempt has to show twice.
    steps.push_back({kPerf, true, true});
  }
  return steps;
}

}  // namespace

Result<std::vector<FileDigest>> Lab::digest_files(const std::vector<std::string>& paths) const {
  std::vector<FileDigest> files;
  for (const std::string& path : paths) {
    Result<std::string> digest = sha256_of_file(root_ / path);
    TESSERA_RETURN_IF_ERROR(digest.status());
    files.push_back({path, digest.value()});
  }
  return files;
}

std::string Lab::changed_file(const std::vector<FileDigest>& files) const {
  for (const FileDigest& file : files) {
    const Result<std::string> digest = sha256_of_file(root_ / file.path);
    if (!digest.ok()) {
      return digest.status().text();
    }
    if (digest.value() != file.sha256) {
      return fmt::format("{}: its content changed since its digest was taken", file.path);
    }
  }
  return "";
}

std::string Lab::commit_of_tree() const {
  CommandOptions options;
  options.folder = root_;
  options.limit_seconds = 20;
  const Result<CommandResult> head =
      run_command("git rev-parse HEAD && git status --porcelain --untracked-files=no | head -c 1", options);
  if (!head.ok() || head.value().exit_code != 0) {
    return "";
  }
  const std::string& output = head.value().output;
  const size_t end = std::min(output.find('\n'), output.size());
  return tame(output.substr(0, end), 64, false) + (output.size() > end + 1 ? " with changes" : "");
}

Result<GateRun> Lab::run_one(const Experiment& e, const std::string& gate, bool confirmation, int attempt,
                             const GateWatch& watch) const {
  FileLock timing;
  if (gate == kPerf) {
    Result<FileLock> lock = FileLock::acquire(folder_ / kTimingLock, FileLock::Wait::kNever);
    TESSERA_RETURN_IF_ERROR(lock.status());
    if (!lock.value().held()) {
      tell(watch, "perf: waiting for another experiment of this lab that is timed");
      lock = FileLock::acquire(folder_ / kTimingLock, FileLock::Wait::kForever);
      TESSERA_RETURN_IF_ERROR(lock.status());
    }
    timing = std::move(lock).value();
  }
  const std::string& command = e.gates.at(gate);
  tell(watch, fmt::format("{}{}: {}", gate, confirmation ? " (confirmation)" : "", command));
  CommandOptions options;
  options.folder = root_;
  options.environment = {{"TESSERA", executable_},
                         {"TESSERA_LAB", folder_.string()},
                         {"TESSERA_LAB_EXPERIMENT", e.name},
                         {"TESSERA_LAB_ATTEMPT", std::to_string(attempt)}};
  options.limit_seconds = watch.limit_seconds;
  options.cancel = watch.cancel;
  options.on_stderr = watch.on_stderr;
  options.on_silence = [&](double seconds) { tell(watch, fmt::format("{}: running for {:.0f} s", gate, seconds)); };
  GateRun run = run_gate(gate, command, options);
  run.confirmation = confirmation;
  tell(watch, fmt::format("{}: {} ({:.1f} s)", gate_words(run), verdict_name(run.verdict), run.seconds));
  return run;
}

Result<Experiment> Lab::attempt(const std::string& id, const std::string& change, const GateWatch& watch) const {
  Result<std::string> text = clean_text(change, "change", kMostChange);
  TESSERA_RETURN_IF_ERROR(text.status());
  Result<std::string> name = find(id);
  TESSERA_RETURN_IF_ERROR(name.status());
  Result<FileLock> claimed = claim(name.value());
  TESSERA_RETURN_IF_ERROR(claimed.status());
  Result<Experiment> e = load(name.value());
  TESSERA_RETURN_IF_ERROR(e.status());
  const auto refused = [&](const std::string& got, const std::string& allowed) {
    return Status(Code::kInvalidArgument, fmt::format("attempt {}: got {}; allowed is {}", name.value(), got, allowed));
  };
  if (!e.value().decision.empty()) {
    return refused("an experiment that is closed as " + e.value().decision, "an open one; open a new experiment");
  }
  if (!e.value().attempts.empty() && e.value().attempts.back().outcome == Outcome::kPassed) {
    return refused("one that has passed", "`tessera lab close --landed`, or --reverted with a reason");
  }
  if (e.value().attempts_used() >= kMostAttempts) {
    return refused(
        fmt::format("one after {} attempts", kMostAttempts),
        fmt::format("{} for an idea; close it with --reverted, and open a new experiment if there is a new idea",
                    kMostAttempts));
  }
  if (const std::string changed = changed_file(e.value().references); !changed.empty()) {
    return refused("a reference that is not as it was when the experiment was opened (" + changed + ")",
                   "the same; bring it back, or open a new experiment");
  }
  Result<std::vector<FileDigest>> subjects = digest_files(e.value().subjects);
  TESSERA_RETURN_IF_ERROR(subjects.status());
  const int number = static_cast<int>(e.value().attempts.size()) + 1;
  // On disk before the first gate starts: an attempt that dies is one that was made.
  e = append(name.value(), {{"type", "attempt-started"},
                            {"attempt", number},
                            {"change", text.value()},
                            {"commit", commit_of_tree()},
                            {"subjects", to_json(subjects.value())}});
  TESSERA_RETURN_IF_ERROR(e.status());
  return run_gates(e.value(), number, subjects.value(), watch);
}

Result<Experiment> Lab::run_gates(const Experiment& e, int number, const std::vector<FileDigest>& subjects,
                                  const GateWatch& watch) const {
  const auto finish = [&](Outcome outcome, const std::string& reason) {
    return append(e.name, {{"type", "attempt-finished"}, {"outcome", outcome_name(outcome)}, {"reason", reason}});
  };
  bool timed = false;
  std::string reason = "every gate passed";
  const auto environment = [&](const std::string& why) {
    return finish(timed ? Outcome::kError : Outcome::kVoid, why);
  };
  for (const Step& step : steps_of(e)) {
    for (const std::vector<FileDigest>* files : {&e.references, &subjects}) {
      if (const std::string changed = changed_file(*files); !changed.empty()) {
        return environment(fmt::format("{} was not run: {}", step.gate, changed));
      }
    }
    Result<GateRun> run = run_one(e, step.gate, step.confirmation, number, watch);
    TESSERA_RETURN_IF_ERROR(run.status());
    const GateRun& r = run.value();
    timed = timed || (r.gate == kPerf && (r.verdict != Verdict::kError || stopped(watch)));
    TESSERA_RETURN_IF_ERROR(
        append(e.name, {{"type", "gate-finished"}, {"attempt", number}, {"run", to_json(r)}}).status());
    if (stopped(watch)) {
      return finish(Outcome::kInterrupted, fmt::format("stopped while {} ran; it counts", step.gate));
    }
    if (r.verdict == Verdict::kError) {
      return r.environment ? environment(gate_words(r)) : finish(Outcome::kError, gate_words(r));
    }
    if (step.required && r.verdict != Verdict::kPass) {
      return finish(r.verdict == Verdict::kFail ? Outcome::kFailed : Outcome::kInconclusive, gate_words(r));
    }
    if (r.verdict != Verdict::kPass) {
      reason =
          fmt::format("every gate that has to passed; {} did not, which a change of the order of sums may", r.gate);
    }
  }
  for (const std::vector<FileDigest>* files : {&e.references, &subjects}) {
    if (const std::string changed = changed_file(*files); !changed.empty()) {
      return finish(Outcome::kError, "after the last gate: " + changed);
    }
  }
  return finish(Outcome::kPassed, reason);
}

Result<Experiment> Lab::verify_revert(const std::string& id, double band, const GateWatch& watch) const {
  if (!(band > 0 && band < 1)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("band: got {}; allowed is a fraction between 0 and 1; 0.02 is two percent", band));
  }
  Result<std::string> name = find(id);
  TESSERA_RETURN_IF_ERROR(name.status());
  Result<FileLock> claimed = claim(name.value());
  TESSERA_RETURN_IF_ERROR(claimed.status());
  Result<Experiment> e = load(name.value());
  TESSERA_RETURN_IF_ERROR(e.status());
  if (e.value().decision != "reverted") {
    return Status(Code::kInvalidArgument, fmt::format("verify-revert {}: got one that is {}; allowed is one closed as "
                                                      "reverted; close it first",
                                                      name.value(), e.value().state()));
  }
  if (const std::string changed = changed_file(e.value().references); !changed.empty()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("verify-revert {}: got a reference that is not as it was when the "
                              "experiment was opened ({}); allowed is the same; bring it back",
                              name.value(), changed));
  }
  const int attempt = static_cast<int>(e.value().attempts.size());
  RevertCheck check;
  Result<GateRun> identity = run_one(e.value(), kIdentity, false, attempt, watch);
  TESSERA_RETURN_IF_ERROR(identity.status());
  check.runs.push_back(identity.value());
  check.verdict = identity.value().verdict;
  check.band = band;
  check.reason = gate_words(identity.value());
  if (check.verdict == Verdict::kPass) {
    Result<GateRun> perf = run_one(e.value(), kPerf, false, attempt, watch);
    TESSERA_RETURN_IF_ERROR(perf.status());
    check.runs.push_back(perf.value());
    if (const std::optional<Timing>& t = perf.value().timing; t) {
      // Whether it is faster is not asked here: it must be the same within the band. Noise widens the interval, and an
      // interval that is too wide answers neither way.
      const bool inside = t->low >= 1 - check.band && t->high <= 1 + check.band;
      const bool outside = t->low > 1 + check.band || t->high < 1 - check.band;
      check.verdict = inside ? Verdict::kPass : outside ? Verdict::kFail : Verdict::kInconclusive;
      check.reason = fmt::format("identity passed; speed ratio {:.4f}, interval {:.4f} to {:.4f}, {} {:.4f} to {:.4f}",
                                 t->ratio, t->low, t->high,
                                 inside    ? "inside the band"
                                 : outside ? "outside the band"
                                           : "neither inside nor outside the band",
                                 1 - check.band, 1 + check.band);
    } else {
      check.verdict = perf.value().verdict == Verdict::kInconclusive ? Verdict::kInconclusive : Verdict::kError;
      check.reason =
          perf.value().problem.empty() ? "perf gave no timing: " + perf.value().summary : gate_words(perf.value());
    }
  }
  if (stopped(watch)) {
    check.verdict = Verdict::kError;
    check.reason = "stopped before it was done";
  }
  Json runs = Json::array();
  for (const GateRun& run : check.runs) {
    runs.push_back(to_json(run));
  }
  return append(name.value(), {{"type", "revert-checked"},
                               {"verdict", verdict_name(check.verdict)},
                               {"reason", check.reason},
                               {"band", check.band},
                               {"runs", runs}});
}

}  // namespace tessera::lab
