#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/commands.h"

namespace tessera::cli {

void print_error(std::string_view sentence) {
  fmt::print(stderr, "tessera: error: {}\n", sentence);
}

int fail(const Status& status) {
  print_error(status.text());
  return kBadInput;
}

ProgressLine::ProgressLine(std::string label, bool enabled)
    : label_(std::move(label)), enabled_(enabled && isatty(STDERR_FILENO) != 0) {}

void ProgressLine::update(double fraction, std::string_view detail) {
  if (!enabled_) {
    return;
  }
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kWidth);
  fmt::print(stderr, "\r\x1b[K{:<8} [{}{}] {:3.0f}%  {}", label_, std::string(static_cast<size_t>(filled), '#'),
             std::string(static_cast<size_t>(kWidth - filled), '.'), fraction * 100.0, detail);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (std::exchange(shown_, false)) {
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
  }
}

std::string megabytes(uint64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

}  // namespace tessera::cli
