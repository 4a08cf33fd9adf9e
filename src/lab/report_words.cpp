// Words that the HTML and the Markdown reports share.
#include <fmt/format.h>

#include "lab/plots.h"
#include "lab/report.h"

namespace tessera::lab {

std::string attempts_text(const Experiment& experiment) {
  const int used = experiment.attempts_used();
  const int others = static_cast<int>(experiment.attempts.size()) - used;
  return fmt::format("{} of {}{}", used, kMostAttempts, others > 0 ? fmt::format(", {} void", others) : "");
}

std::string expected_text(const Experiment& experiment) {
  return gain_text(1 + experiment.expected_gain_percent / 100);
}

std::string measured_text(const Experiment& experiment) {
  const GateRun* run = experiment.last_timing();
  return run == nullptr ? "not timed" : gain_interval_text(*run->timing);
}

std::string gate_heading(const GateRun& run) {
  return run.gate + (run.confirmation ? " (confirmation)" : "");
}

std::string gate_sentence(const GateRun& run) {
  if (run.problem.empty() || run.summary.empty() || run.problem.ends_with(run.summary)) {
    return run.problem.empty() ? run.summary : run.problem;
  }
  return fmt::format("{} (it said: {})", run.problem, run.summary);
}

bool is_allowed(const Experiment& experiment, const GateRun& run) {
  return run.gate == kIdentity && experiment.order_changing() && run.verdict == Verdict::kFail;
}

std::string verdict_text(const Experiment& experiment, const GateRun& run) {
  return is_allowed(experiment, run) ? "differs, as its class allows" : verdict_name(run.verdict);
}

std::string attempt_label(const Attempt& attempt, const GateRun& run) {
  return fmt::format("Attempt {}{}", attempt.number, run.confirmation ? ", confirmation" : "");
}

std::string revert_text(const Experiment& experiment) {
  if (experiment.revert_checks.empty()) {
    return "revert not verified";
  }
  const Verdict last = experiment.revert_checks.back().verdict;
  return last == Verdict::kPass ? "revert verified" : fmt::format("revert check: {}", verdict_name(last));
}

}  // namespace tessera::lab
