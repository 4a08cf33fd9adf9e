#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/commands.h"

namespace tessera::cli {

void print_error(std::string_view sentence) {
  // Not fmt::print, which throws where stderr is closed.
  std::fputs(fmt::format("tessera: error: {}\n", sentence).c_str(), stderr);
}

int fail(const Status& status) {
  print_error(status.text());
  return kBadInput;
}

Result<std::string> read_text_file(const std::string& path) {
  constexpr size_t kMostBytes = size_t{1} << 28;  // /dev/zero has no end
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  std::string text;
  std::vector<char> block(size_t{1} << 16);
  while (file != nullptr && text.size() <= kMostBytes) {
    const size_t n = std::fread(block.data(), 1, block.size(), file.get());
    text.append(block.data(), n);
    if (n < block.size()) {
      break;
    }
  }
  if (file == nullptr || std::ferror(file.get()) != 0) {
    return Status(Code::kIo, fmt::format("{}: got '{}'; allowed a readable text file; check the path", path,
                                         std::generic_category().message(errno)));
  }
  if (text.size() > kMostBytes) {
    return Status(Code::kIo,
                  fmt::format("{}: got more than {} bytes; allowed that many; give a shorter text", path, kMostBytes));
  }
  return text;
}

ProgressLine::ProgressLine(std::string label, bool enabled, double pace_seconds)
    : label_(std::move(label)), enabled_(enabled), terminal_(isatty(STDERR_FILENO) != 0), pace_(pace_seconds) {}

void ProgressLine::update(double fraction, std::string_view detail) {
  if (!enabled_) {
    return;
  }
  if (!terminal_) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ >= pace_) {
      last_ = now;
      std::fputs(fmt::format("{}: {:.0f} %, {}\n", label_, fraction * 100.0, detail).c_str(), stderr);
    }
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
