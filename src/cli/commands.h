// The subcommands of `tessera`. Each add_* registers its options and a callback that sets *exit_code.
#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

enum ExitCode : int {
  kGood = 0,
  kCheckFailed = 1,
  kInconclusive = 2,
  kBadInput = 3,  // bad input or environment
};

void add_run(CLI::App& app, int* exit_code);
void add_chat(CLI::App& app, int* exit_code);
void add_info(CLI::App& app, int* exit_code);
void add_contract(CLI::App& app, int* exit_code);
void add_explain(CLI::App& app, int* exit_code);
void add_gate(CLI::App& app, int* exit_code);
void add_lab(CLI::App& app, int* exit_code);
void add_probe(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);

}  // namespace tessera::cli
