// The command line: tessera run | chat | info | contract | explain | gate | lab | probe | bench.
// Exit codes: 0 good, 1 a check failed, 2 inconclusive, 3 bad input or environment.
#include <cstdio>
#include <exception>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/gate_commands.h"
#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

int run_command_line(int argc, char** argv) {
  int exit_code = kGood;
  try {
    CLI::App app{"Attention kernels and an LLM engine whose output bits never depend on the schedule", "tessera"};
    app.set_version_flag("--version", std::string(tessera_version()) + " (" + tessera_contract_version() + ")");
    app.require_subcommand(1);
    app.set_help_all_flag("--help-all", "Help of all subcommands");
    app.failure_message([](const CLI::App*, const CLI::Error& e) {
      return std::string("tessera: error: ") + e.what() + "; `tessera --help-all` lists commands and options\n";
    });
    add_run(app, &exit_code);
    add_chat(app, &exit_code);
    add_info(app, &exit_code);
    add_contract(app, &exit_code);
    add_explain(app, &exit_code);
    add_gate(app, &exit_code);
    add_lab(app, &exit_code);
    add_probe(app, &exit_code);
    add_bench(app, &exit_code);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      exit_code = app.exit(e) == 0 ? kGood : kBadInput;
      if (exit_code != kGood) {
        print_gate_usage_error(argc, argv, e.what());
      }
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      print_error(
          "standard output: got an error from a write; allowed a file or pipe that takes the output; free "
          "some disk space or redirect it elsewhere");
      return kBadInput;
    }
  } catch (const std::exception& e) {  // bad_alloc and the like: a sentence, not a crash
    print_error(e.what());
    print_gate_usage_error(argc, argv, e.what());
    return kBadInput;
  }
  return exit_code;
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  return tessera::cli::run_command_line(argc, argv);
}
