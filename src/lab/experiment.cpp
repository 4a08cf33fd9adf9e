#include "lab/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lab/text.h"

namespace tessera::lab {
namespace {

constexpr std::array<const char*, 4> kVerdicts{"pass", "fail", "inconclusive", "error"};
constexpr std::array<const char*, 7> kOutcomes{"running", "passed", "failed",     "inconclusive",
                                               "error",   "void",   "interrupted"};

template <class Enum, size_t n>
Enum named(const std::array<const char*, n>& names, const std::string& name) {
  for (size_t i = 0; i < n; ++i) {
    if (name == names[i]) {
      return static_cast<Enum>(i);
    }
  }
  return Enum::kError;
}

Status bad_report(const std::string& got, const std::string& allowed) {
  return {Code::kBadFile, fmt::format("its JSON: got {}; allowed is {}; repair the gate", got, allowed)};
}

bool is_number(const Json& j) {
  return j.is_number() && std::isfinite(j.get<double>());
}

// A token as a gate writes it: a number, a text, or {token, text}.
std::string token_text(const Json& flip, const char* key) {
  const Json token = flip.value(key, Json());
  const auto plain = [](const Json& j) {
    return j.is_null() ? "" : tame(j.is_string() ? j.get<std::string>() : compact_json(j), 60, false);
  };
  if (token.is_object() && token.contains("token") && token.contains("text")) {
    return fmt::format("{} '{}'", plain(token["token"]), plain(token["text"]));
  }
  return plain(token);
}

Status read_flips(const Json& flips, GateRun* run) {
  if (!flips.is_array()) {
    return bad_report("\"flips\" that is no array", "an array of objects");
  }
  for (const Json& j : flips) {
    if (!j.is_object() || !j.contains("margin") || !is_number(j["margin"])) {
      return bad_report("a flip without a number \"margin\"", "{position, token_a, token_b, margin, class}");
    }
    Flip flip;
    flip.margin = j["margin"].get<double>();
    flip.position = j.contains("position") && is_number(j["position"]) ? j["position"].get<double>() : 0;
    flip.token_a = token_text(j, "token_a");
    flip.token_b = token_text(j, "token_b");
    flip.kind = token_text(j, "class");
    run->flips.push_back(std::move(flip));
  }
  return {};
}

Status read_samples(const Json& report, const char* key, std::vector<double>* samples) {
  if (!report.contains(key)) {
    return {};
  }
  if (!report[key].is_array() || !std::all_of(report[key].begin(), report[key].end(), is_number)) {
    return bad_report(fmt::format("\"{}\" that is no array of numbers", key), "one number for each run");
  }
  *samples = report[key].get<std::vector<double>>();
  return {};
}

Status read_timing(const Json& report, GateRun* run) {
  const Json& interval = report.contains("interval") ? report["interval"] : Json();
  const auto number = [&](const char* key) { return report.contains(key) && is_number(report[key]); };
  if (!number("ratio") || !number("noise_floor") || !interval.is_array() || interval.size() != 2 ||
      !is_number(interval[0]) || !is_number(interval[1])) {
    return bad_report("no numbers \"ratio\", \"interval\" and \"noise_floor\"",
                      "a ratio of speeds, its interval [low, high] and the noise floor as a fraction");
  }
  Timing t;
  t.ratio = report["ratio"].get<double>();
  t.low = interval[0].get<double>();
  t.high = interval[1].get<double>();
  t.noise_floor = report["noise_floor"].get<double>();
  if (!(t.low > 0 && t.low <= t.ratio && t.ratio <= t.high && t.noise_floor >= 0)) {
    return bad_report(fmt::format("ratio {}, interval [{}, {}], noise floor {}", t.ratio, t.low, t.high, t.noise_floor),
                      "0 < low <= ratio <= high and a noise floor of 0 or more");
  }
  TESSERA_RETURN_IF_ERROR(read_samples(report, "samples_a", &t.samples_a));
  TESSERA_RETURN_IF_ERROR(read_samples(report, "samples_b", &t.samples_b));
  t.unit =
      report.contains("unit") && report["unit"].is_string() ? tame(report["unit"].get<std::string>(), 40, false) : "";
  run->timing = std::move(t);
  return {};
}

GateRun run_of(const Json& j) {
  GateRun run;
  run.gate = j.at("gate").get<std::string>();
  run.confirmation = j.at("confirmation").get<bool>();
  run.command = j.at("command").get<std::string>();
  run.exit_code = j.at("exit_code").get<int>();
  run.seconds = j.at("seconds").get<double>();
  run.verdict = named<Verdict>(kVerdicts, j.at("verdict").get<std::string>());
  run.environment = j.at("environment").get<bool>();
  run.summary = j.at("summary").get<std::string>();
  run.problem = j.at("problem").get<std::string>();
  run.stderr_tail = j.at("stderr_tail").get<std::string>();
  run.report = j.at("report");
  const std::string summary = run.summary;
  if (!run.report.is_null() && !read_report(run.report, &run).ok()) {
    run.metrics.clear();
    run.flips.clear();
    run.timing.reset();
  }
  run.summary = summary;
  return run;
}

std::vector<FileDigest> files_of(const Json& j) {
  std::vector<FileDigest> files;
  for (const Json& file : j) {
    files.push_back({file.at("path").get<std::string>(), file.at("sha256").get<std::string>()});
  }
  return files;
}

void open(const Json& event, Experiment* e) {
  e->number = event.at("number").get<int>();
  e->title = event.at("title").get<std::string>();
  e->hypothesis = event.at("hypothesis").get<std::string>();
  e->change_class = event.at("change_class").get<std::string>();
  e->expected_gain_percent = event.at("expected_gain_percent").get<double>();
  e->opened = event.at("at").get<std::string>();
  e->program = event.at("program").get<std::string>();
  e->gates = event.at("gates").get<std::map<std::string, std::string>>();
  e->references = files_of(event.at("references"));
  e->subjects = event.at("subjects").get<std::vector<std::string>>();
}

// One event's effect. Throws Json::exception where a member is missing or of another type.
bool apply(const Json& event, Experiment* e) {
  const std::string type = event.at("type").get<std::string>();
  const std::string at = event.at("at").get<std::string>();
  if (type == kFirstType) {
    open(event, e);
  } else if (type == "gates-changed") {
    e->gates = event.at("gates").get<std::map<std::string, std::string>>();
  } else if (type == "note") {
    e->notes.push_back({at, event.at("section").get<std::string>(), event.at("text").get<std::string>()});
  } else if (type == "attempt-started") {
    Attempt a;
    a.number = event.at("attempt").get<int>();
    a.change = event.at("change").get<std::string>();
    a.commit = event.at("commit").get<std::string>();
    a.started = at;
    a.subjects = files_of(event.at("subjects"));
    e->attempts.push_back(std::move(a));
  } else if (type == "gate-finished" && !e->attempts.empty()) {
    e->attempts.back().runs.push_back(run_of(event.at("run")));
  } else if (type == "attempt-finished" && !e->attempts.empty()) {
    e->attempts.back().finished = at;
    e->attempts.back().outcome = named<Outcome>(kOutcomes, event.at("outcome").get<std::string>());
    e->attempts.back().reason = event.at("reason").get<std::string>();
  } else if (type == "closed") {
    e->decision = event.at("decision").get<std::string>();
    e->because = event.at("because").get<std::string>();
    e->closed = at;
  } else if (type == "revert-checked") {
    RevertCheck check{.at = at,
                      .verdict = named<Verdict>(kVerdicts, event.at("verdict").get<std::string>()),
                      .reason = event.at("reason").get<std::string>(),
                      .band = event.at("band").get<double>(),
                      .runs = {}};
    for (const Json& run : event.at("runs")) {
      check.runs.push_back(run_of(run));
    }
    e->revert_checks.push_back(std::move(check));
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool is_knife_edge(const Flip& flip) {
  return flip.kind.find("knife") != std::string::npos;
}

const char* verdict_name(Verdict verdict) {
  return kVerdicts[static_cast<size_t>(verdict)];
}

const char* outcome_name(Outcome outcome) {
  return kOutcomes[static_cast<size_t>(outcome)];
}

int Experiment::attempts_used() const {
  return static_cast<int>(std::count_if(attempts.begin(), attempts.end(), [](const Attempt& a) { return a.counts(); }));
}

bool Experiment::has_spoken(const std::string& gate) const {
  return std::any_of(attempts.begin(), attempts.end(), [&](const Attempt& a) {
    return std::any_of(a.runs.begin(), a.runs.end(),
                       [&](const GateRun& r) { return r.gate == gate && r.verdict != Verdict::kError; });
  });
}

std::string Experiment::state() const {
  if (!decision.empty()) {
    return decision;
  }
  return !attempts.empty() && attempts.back().outcome == Outcome::kRunning ? "running" : "open";
}

const GateRun* Experiment::last_timing() const {
  const GateRun* last = nullptr;
  for (const Attempt& attempt : attempts) {
    for (const GateRun& run : attempt.runs) {
      last = run.timing ? &run : last;
    }
  }
  return last;
}

std::string Experiment::section(const std::string& key) const {
  std::string text;
  for (const Note& note : notes) {
    if (note.section == key) {
      text += (text.empty() ? "" : "\n\n") + note.text;
    }
  }
  return text;
}

Result<Experiment> experiment_of(const Record& record, const std::string& name, const std::string& what) {
  Experiment e;
  e.name = name;
  size_t at = 0;
  std::string got;
  try {
    e.previous_digest = record.first().at("previous").get<std::string>();
    for (const Json& event : record.events) {
      ++at;
      e.digests.push_back(event.at("digest").get<std::string>());
      if (!apply(event, &e)) {
        got = "an event that does not belong there";
        break;
      }
    }
  } catch (const Json::exception& error) {
    got = error.what();
  }
  if (!got.empty()) {
    return Status(Code::kBadFile, fmt::format("{}: got {} at event {}; allowed are the events of {}; bring back the "
                                              "original, or read it with the version that wrote it",
                                              what, got, at, kRecordSchema));
  }
  return e;
}

Json to_json(const GateRun& run) {
  return {{"gate", run.gate},
          {"confirmation", run.confirmation},
          {"command", run.command},
          {"exit_code", run.exit_code},
          {"seconds", run.seconds},
          {"verdict", verdict_name(run.verdict)},
          {"environment", run.environment},
          {"summary", run.summary},
          {"problem", run.problem},
          {"stderr_tail", run.stderr_tail},
          {"report", run.report}};
}

Json to_json(const std::vector<FileDigest>& files) {
  Json j = Json::array();
  for (const FileDigest& file : files) {
    j.push_back({{"path", file.path}, {"sha256", file.sha256}});
  }
  return j;
}

Status read_report(const Json& report, GateRun* run) {
  if (!report.is_object()) {
    return bad_report("no object", "{gate, verdict, summary, metrics, ...}");
  }
  const auto text = [&](const char* key) {
    return report.contains(key) && report[key].is_string() ? report[key].get<std::string>() : std::string();
  };
  if (text("gate") != run->gate) {
    return bad_report(fmt::format("gate '{}'", tame(text("gate"), 60, false)), fmt::format("'{}'", run->gate));
  }
  run->summary = tame(text("summary"), 1000, false);
  if (run->summary.empty()) {
    return bad_report("no \"summary\"", "one sentence");
  }
  if (report.contains("metrics")) {
    if (!report["metrics"].is_object()) {
      return bad_report("\"metrics\" that is no object", "{name: number}");
    }
    for (const auto& [name, value] : report["metrics"].items()) {
      if (value.is_null()) {  // how JSON writes what is no number, NaN for example
        continue;
      }
      if (!is_number(value)) {
        return bad_report(fmt::format("metric '{}' that is no number", tame(name, 60, false)), "{name: number}");
      }
      run->metrics[tame(name, 100, false)] = value.get<double>();
    }
  }
  if (report.contains("flips")) {
    TESSERA_RETURN_IF_ERROR(read_flips(report["flips"], run));
  }
  if (report.contains("ratio") || (run->gate == kPerf && text("verdict") == "pass")) {
    TESSERA_RETURN_IF_ERROR(read_timing(report, run));
  }
  return {};
}

}  // namespace tessera::lab
