// tessera gate: checks with a verdict. Each gate has a file of its own.
#include "cli/commands.h"
#include "cli/gate_commands.h"

namespace tessera::cli {

void add_gate(CLI::App& app, int* exit_code) {
  CLI::App* gate = app.add_subcommand(
      "gate", "Checks with a verdict: exit code 0 pass, 1 fail, 2 inconclusive, 3 bad input or environment");
  gate->require_subcommand(1);
  add_gate_identity(*gate, exit_code);
  add_gate_invariance(*gate, exit_code);
  add_gate_tolerance(*gate, exit_code);
  add_gate_perf(*gate, exit_code);
}

}  // namespace tessera::cli
