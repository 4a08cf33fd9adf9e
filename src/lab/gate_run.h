// One gate as a command: run it, and read its verdict with distrust.
#pragma once

#include <string>

#include "lab/experiment.h"
#include "lab/run_command.h"

namespace tessera::lab {

// Exit code 0 pass, 1 fail, 2 inconclusive, 3 bad input or environment; stdout one JSON object whose "gate" and
// "verdict" say the same. Anything else is an error, never a pass: a signal, another exit code, JSON that is missing,
// cut, not strict or at odds with the exit code, a pass of `perf` without numbers or of `tolerance` without flips. The
// environment is at fault where the command could not start, says so by 3, or ends with 0 and prints no JSON.
GateRun judge(const std::string& gate, const std::string& command, const CommandResult& result);

// A result that was cancelled is an error with the environment at fault.
GateRun run_gate(const std::string& gate, const std::string& command, const CommandOptions& options);

}  // namespace tessera::lab
