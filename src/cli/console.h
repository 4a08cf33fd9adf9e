// What the command line prints: results on stdout, progress and errors on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tessera::cli {

void print_error(std::string_view sentence);

// The bytes of a text that the user names: a prompt, a gate's text. At most 256 MiB.
Result<std::string> read_text_file(const std::string& path);

// Prints the status' sentence and returns the exit code that goes with it (3).
int fail(const Status& status);

// One line on stderr that is rewritten in place. Where stderr is no terminal: a line of its own every `pace` seconds,
// so that short work says nothing. Silent if `enabled` is false.
class ProgressLine {
 public:
  ProgressLine(std::string label, bool enabled, double pace_seconds = 10);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(double fraction, std::string_view detail);
  void clear();

 private:
  std::string label_;
  bool enabled_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::duration<double> pace_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// "96.1 MB"
std::string megabytes(uint64_t bytes);

}  // namespace tessera::cli
