#include "cli/gate_checks.h"

#include <fmt/format.h>

#include <initializer_list>

namespace tessera::cli {
namespace {

bool given(const CLI::App& command, const char* option) {
  const CLI::Option* found = command.get_option_no_throw(option);
  return found != nullptr && found->count() > 0;
}

Status refuse_any(const CLI::App& command, std::initializer_list<const char*> options, const char* where) {
  for (const char* option : options) {
    if (given(command, option)) {
      return Status(Code::kInvalidArgument, fmt::format("{}: got it {}; it would have no effect", option, where));
    }
  }
  return {};
}

}  // namespace

Status check_gate_options(const CLI::App& command, Pair pair) {
  for (const char* option : {"--model", "--record", "--with", "--prompts", "--text-file", "--a", "--b", "--grid"}) {
    if (given(command, option) && command.get_option(option)->as<std::string>().empty()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: got an empty text; allowed what --help says; leave the option out (a variable of "
                                "the shell that is not set?)",
                                option));
    }
  }
  const bool with_model = given(command, "--model");
  if (with_model) {
    constexpr const char* kWhere = "with a model; allowed without one, for attention kernels";
    TESSERA_RETURN_IF_ERROR(refuse_any(command, {"--grid"}, kWhere));
    if (pair != Pair::kAny) {
      TESSERA_RETURN_IF_ERROR(refuse_any(command, {"--a", "--b"}, kWhere));
    }
    // The prompts of a check are the record's: --prompts there would look as if others had been compared.
    if (given(command, "--prompts") && !command.get_option("--write")->as<bool>()) {
      return Status(Code::kInvalidArgument,
                    "--prompts: got it without --write; allowed with --write: a check evaluates the prompts of the "
                    "record; leave it out");
    }
  } else {
    // Threads of kernels stand in the configuration: -t would be read as theirs and change nothing.
    if (given(command, "--threads")) {
      return Status(Code::kInvalidArgument,
                    "--threads: got it without a model; allowed with -m MODEL; it would have no effect, give threads=N "
                    "to --a or --b");
    }
    TESSERA_RETURN_IF_ERROR(
        refuse_any(command,
                   {"--record", "--write", "--with", "--prompts", "--prefill", "--decode", "--tokens", "--gate-seed",
                    "--text-file", "--negative-control", "--backend", "--context", "--kv-type"},
                   "without a model; allowed with -m MODEL"));
  }
  if (pair == Pair::kOfKernels && !with_model && !given(command, "--a") && !given(command, "--b")) {
    return Status(Code::kInvalidArgument,
                  "a, b: got neither; allowed --a or --b (the other one is this build as it is), or -m MODEL --record "
                  "FILE; else this build would be compared with itself");
  }
  return {};
}

}  // namespace tessera::cli
