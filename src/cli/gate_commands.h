// The subcommands of `tessera gate`, and how all of them report.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "gate/verdict.h"

namespace tessera::cli {

void add_gate_identity(CLI::App& gate, int* exit_code);
void add_gate_invariance(CLI::App& gate, int* exit_code);
void add_gate_perf(CLI::App& gate, int* exit_code);
void add_gate_tolerance(CLI::App& gate, int* exit_code);

// What every gate's JSON begins with; `tessera lab` and other programs read these keys.
struct GateOutput {
  std::string gate;
  Verdict verdict = Verdict::kError;
  std::string summary;  // one sentence
  Metrics metrics;
  nlohmann::ordered_json details = nlohmann::ordered_json::object();  // merged behind them
};

// Prints the object, or with json = false the verdict line that ends the text. Returns the exit code.
int emit(const GateOutput& output, bool json);

// The sentence on stderr and, with json, an object with the verdict "error" on stdout. Returns 3.
int gate_error(const std::string& gate, const Status& status, bool json);

// For errors outside of a gate's own code (usage, no memory): if the command line asks a gate for JSON, the object that
// gate_error would print. The caller has put the sentence on stderr.
void print_gate_usage_error(int argc, const char* const* argv, const std::string& sentence);

}  // namespace tessera::cli
