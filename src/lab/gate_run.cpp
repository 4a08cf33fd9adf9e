#include "lab/gate_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/text.h"

namespace tessera::lab {
namespace {

constexpr size_t kMostStderr = 2000;
constexpr size_t kMostProblem = 2000;

// What a gate that ended with 3 says about it: its summary, else the last line of its stderr.
std::string why_refused(const GateRun& run) {
  std::string_view tail = run.stderr_tail;
  while (tail.ends_with('\n')) {
    tail.remove_suffix(1);
  }
  const size_t line = tail.rfind('\n');
  const std::string last(line == std::string_view::npos ? tail : tail.substr(line + 1));
  return fmt::format("exit code 3, bad input or environment: {}", run.summary.empty() ? last : run.summary);
}

// Why the result gives no verdict; empty if it gives one, which is then in `run`.
std::string find_problem(const CommandResult& result, GateRun* run) {
  if (result.cancelled) {
    return "it was stopped";
  }
  if (result.past_limit) {
    return fmt::format("it was ended after {:.0f} s; raise --limit if it needs longer", result.seconds);
  }
  if (result.signalled) {
    return fmt::format("signal {} ended it", result.exit_code - 128);
  }
  if (result.exit_code == 126 || result.exit_code == 127) {
    return fmt::format("exit code {}: the shell could not start the command", result.exit_code);
  }
  if (result.exit_code < 0 || result.exit_code > 3) {
    return fmt::format("exit code {}; allowed are 0 pass, 1 fail, 2 inconclusive, 3 bad input or environment",
                       result.exit_code);
  }
  const bool must_speak = result.exit_code != 3;
  if (result.output_cut) {
    return "its output is larger than 4 MiB";
  }
  const Result<Json> parsed = parse_json(result.output, "its output");
  if (!parsed.ok()) {
    // Content with the candidate, but no gate of ours: most likely the command lacks its --json.
    run->environment = result.exit_code == 0;
    return must_speak ? parsed.status().text() + " (does the command need --json?)" : why_refused(*run);
  }
  if (const Status status = read_report(parsed.value(), run); !status.ok()) {
    return status.text();
  }
  run->report = parsed.value();
  const Json& report = run->report;
  const std::string named =
      report.contains("verdict") && report["verdict"].is_string() ? report["verdict"].get<std::string>() : "";
  const Verdict said = static_cast<Verdict>(result.exit_code);
  if (named != verdict_name(said)) {
    return fmt::format("verdict '{}' with exit code {}, which says '{}'", tame(named, 60, false), result.exit_code,
                       verdict_name(said));
  }
  if (report.contains("wrote") && report["wrote"] == true) {
    return "it wrote its reference instead of comparing with it; take --write out of the command";
  }
  if (said == Verdict::kPass && run->gate == kTolerance && !report.contains("flips")) {
    return "a pass without \"flips\"; allowed is an array, empty if nothing flipped";
  }
  const auto drift =
      std::find_if(run->flips.begin(), run->flips.end(), [](const Flip& f) { return !is_knife_edge(f); });
  if (said == Verdict::kPass && drift != run->flips.end()) {
    return fmt::format("a pass with a flip of the class '{}'; allowed beside a pass is knife-edge",
                       tame(drift->kind, 60, false));
  }
  run->verdict = said;
  return said == Verdict::kError ? why_refused(*run) : "";
}

}  // namespace

GateRun judge(const std::string& gate, const std::string& command, const CommandResult& result) {
  GateRun run;
  run.gate = gate;
  run.command = command;
  run.exit_code = result.exit_code;
  run.seconds = result.seconds;
  run.stderr_tail = tame(result.stderr_tail, kMostStderr, true);
  run.problem = tame(find_problem(result, &run), kMostProblem, false);  // it may cite bytes of the output
  if (!run.problem.empty()) {
    run.verdict = Verdict::kError;
    run.environment = run.environment || result.cancelled ||
                      (!result.signalled && !result.past_limit &&
                       (result.exit_code == 3 || result.exit_code == 126 || result.exit_code == 127));
    run.flips.clear();
    run.timing.reset();
  }
  return run;
}

GateRun run_gate(const std::string& gate, const std::string& command, const CommandOptions& options) {
  const Result<CommandResult> result = run_command(command, options);
  if (result.ok()) {
    return judge(gate, command, result.value());
  }
  GateRun run;
  run.gate = gate;
  run.command = command;
  run.exit_code = 127;
  run.problem = tame(result.status().text(), kMostProblem, false);
  run.environment = true;
  return run;
}

}  // namespace tessera::lab
