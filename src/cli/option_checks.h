// Checks of option values. CLI11 converts with strtoull and friends, which take "-1" and numbers beyond the type; these
// look at the whole text first, and say it in the words of our errors.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

namespace tessera::cli {

// A decimal integer in [low, high], nothing around it.
template <class T>
CLI::Validator whole_number(T low, T high = std::numeric_limits<T>::max()) {
  const std::string range = fmt::format("{}..{}", low, high);
  return {[=](std::string& text) {
            T value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            const bool good = error == std::errc() && stop == end && value >= low && value <= high;
            return good ? std::string() : fmt::format("got '{}'; allowed a whole number in {}", text, range);
          },
          range, "whole_number"};
}

// A finite decimal number; the range is the library's to check.
inline CLI::Validator real_number() {
  return {[](std::string& text) {
            char* stop = nullptr;
            const double value = std::strtod(text.c_str(), &stop);
            const bool good = !text.empty() && stop == text.c_str() + text.size() && std::isfinite(value);
            return good ? std::string() : fmt::format("got '{}'; allowed a finite number", text);
          },
          "", "real_number"};
}

}  // namespace tessera::cli
