// Runs a command line of /bin/sh to its end, with a limit, and catches what it prints.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tessera::lab {

struct CommandOptions {
  std::filesystem::path folder;                                  // where it runs
  std::vector<std::pair<std::string, std::string>> environment;  // set beside those of this process
  double limit_seconds = 3600;
  size_t most_output = size_t{4} << 20;             // bytes of stdout that are kept
  const std::atomic<bool>* cancel = nullptr;        // set: the command is ended at once
  std::function<void(std::string_view)> on_stderr;  // sees stderr as it comes
  double pace_seconds = 10;
  std::function<void(double seconds)> on_silence;  // after every pace_seconds without stderr: how long it runs
};

struct CommandResult {
  int exit_code = 0;  // 128 + signal if one ended it, as in a shell
  bool signalled = false;
  bool past_limit = false;
  bool cancelled = false;
  bool output_cut = false;
  std::string output;
  std::string stderr_tail;  // the last 4 KiB
  double seconds = 0;
};

// An error only if the command could not be started at all. The command has no standard input, and a process group of
// its own: whatever it left running is ended with it, so that nothing disturbs the next timing.
Result<CommandResult> run_command(const std::string& command, const CommandOptions& options);

}  // namespace tessera::lab
