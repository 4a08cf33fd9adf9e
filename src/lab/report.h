// What is drawn from records: a report of each experiment and an index, as HTML and as Markdown. Never edited by hand.
#pragma once

#include <string>

#include "lab/experiment.h"
#include "lab/lab.h"

namespace tessera::lab {

// Names of the reports before and after it; empty at the ends.
struct Neighbours {
  std::string previous;
  std::string next;
};

std::string report_html(const Experiment& experiment, const Neighbours& neighbours);
std::string report_markdown(const Experiment& experiment, const Neighbours& neighbours);

// In the place of the report of a record that cannot be trusted.
std::string damaged_html(const Damage& damage);
std::string damaged_markdown(const Damage& damage);

std::string index_html(const Census& census);
std::string index_markdown(const Census& census);
Json index_json(const Census& census);

// Words that HTML and Markdown share.
std::string attempts_text(const Experiment& experiment);  // "1 of 2, and 1 that does not count"
std::string expected_text(const Experiment& experiment);  // "+3.00 %"
std::string measured_text(const Experiment& experiment);  // "+2.87 % (+2.10 % to +3.60 %)" or "not timed"
std::string gate_heading(const GateRun& run);             // "perf (confirmation)"
std::string gate_sentence(const GateRun& run);            // what it said, or why it is an error
// Whether identity failed as a change of the order of sums may make it; and the verdict in words, which say so.
bool is_allowed(const Experiment& experiment, const GateRun& run);
std::string verdict_text(const Experiment& experiment, const GateRun& run);
std::string attempt_label(const Attempt& attempt, const GateRun& run);  // of a row of a plot
std::string revert_text(const Experiment& experiment);                  // "revert verified", "revert not verified", ...

}  // namespace tessera::lab
