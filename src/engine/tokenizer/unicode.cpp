#include "engine/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace tessera {
namespace {

struct ClassRange {
  char32_t first;
  char32_t last;
  CharClass char_class;
};

constexpr ClassRange kRanges[] = {
#include "engine/tokenizer/unicode_table.inc"
};

CharClass search_class(char32_t code_point) {
  const auto* range = std::partition_point(std::begin(kRanges), std::end(kRanges),
                                           [=](const ClassRange& r) { return r.last < code_point; });
  return range != std::end(kRanges) && range->first <= code_point ? range->char_class : CharClass::kOther;
}

// ASCII is most of real text: one load instead of ten comparisons.
constexpr std::array<CharClass, 128> ascii_classes() {
  std::array<CharClass, 128> table{};
  for (const ClassRange& range : kRanges) {
    for (char32_t cp = range.first; cp <= range.last && cp < 128; ++cp) {
      table[cp] = range.char_class;
    }
  }
  return table;
}
constexpr std::array<CharClass, 128> kAscii = ascii_classes();

}  // namespace

CharClass char_class(char32_t code_point) {
  return code_point < kAscii.size() ? kAscii[code_point] : search_class(code_point);
}

Utf8Char decode_utf8(std::string_view text, std::size_t pos) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(pos);
  if (lead < 0x80) {
    return {lead, 1, Utf8State::kValid};
  }
  // Unicode standard, table 3-7: the second byte's range depends on the lead byte, all later ones are 80..BF.
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  std::uint8_t length = 0;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0Fu;
    low = lead == 0xE0 ? 0xA0 : low;
    high = lead == 0xED ? 0x9F : high;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07u;
    low = lead == 0xF0 ? 0x90 : low;
    high = lead == 0xF4 ? 0x8F : high;
  } else {
    return {0, 1, Utf8State::kInvalid};
  }
  for (std::uint8_t i = 1; i < length; ++i) {
    if (text.size() - pos <= i) {
      return {0, i, Utf8State::kTruncated};
    }
    const std::uint8_t next = byte(pos + i);
    if (next < low || next > high) {
      return {0, i, Utf8State::kInvalid};
    }
    code_point = (code_point << 6) | (next & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {code_point, length, Utf8State::kValid};
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t value) { out.push_back(static_cast<char>(static_cast<std::uint8_t>(value))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace tessera
