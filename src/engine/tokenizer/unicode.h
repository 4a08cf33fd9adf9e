// UTF-8 decoding and the four character classes the pre-tokenizers distinguish.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Classes of the regular expressions of the supported pre-tokenizers. Which Unicode version feeds which class, and why
// there are two, is told in tools/gen_unicode.py.
enum class CharClass : std::uint8_t {
  kOther,
  kLetter,     // \p{L}
  kNumber,     // \p{N}
  kSpace,      // \s
  kNewNumber,  // a number for the digit splitter of "smollm" only; kOther for every regular expression
};

// Class of a code point; kOther for values above U+10FFFF.
CharClass char_class(char32_t code_point);

enum class Utf8State : std::uint8_t {
  kValid,      // `code_point` is set, `length` is 1..4
  kInvalid,    // `length` bytes (>= 1) can never start a valid sequence: the "maximal subpart" of the Unicode standard
  kTruncated,  // the text ends inside a sequence that is valid so far; `length` is what is there (1..3)
};

struct Utf8Char {
  char32_t code_point;
  std::uint8_t length;
  Utf8State state;
};

// Decodes the sequence that starts at text[pos]; requires pos < text.size(). Strict: no surrogates, no overlong forms.
Utf8Char decode_utf8(std::string_view text, std::size_t pos);

// Appends the UTF-8 form of a code point <= U+10FFFF.
void append_utf8(char32_t code_point, std::string& out);

}  // namespace tessera
