#include "engine/tokenizer/pretokenizer.h"

#include <fmt/format.h>

#include "engine/tokenizer/unicode.h"

namespace tessera {
namespace {

struct Char {
  char32_t code_point = 0;  // meaningless for an invalid byte, whose class is kOther
  std::size_t end = 0;      // offset behind it
  CharClass char_class = CharClass::kOther;
};

Char char_at(std::string_view text, std::size_t pos) {
  const Utf8Char decoded = decode_utf8(text, pos);
  if (decoded.state != Utf8State::kValid) {
    return {0xFFFD, pos + 1, CharClass::kOther};
  }
  return {decoded.code_point, pos + decoded.length, char_class(decoded.code_point)};
}

bool is_newline(const Char& c) {
  return c.code_point == U'\n' || c.code_point == U'\r';
}
bool is_digit_of_smollm(const Char& c) {
  return c.char_class == CharClass::kNumber || c.char_class == CharClass::kNewNumber;
}
// [^\s\p{L}\p{N}]
bool is_symbol(const Char& c) {
  return c.char_class == CharClass::kOther || c.char_class == CharClass::kNewNumber;
}

// End of the longest run of characters that satisfy `accept`, starting at `pos`.
template <class Accept>
std::size_t run_end(std::string_view text, std::size_t pos, Accept accept) {
  while (pos < text.size()) {
    const Char c = char_at(text, pos);
    if (!accept(c)) {
      break;
    }
    pos = c.end;
  }
  return pos;
}

std::size_t letters_end(std::string_view text, std::size_t pos) {
  return run_end(text, pos, [](const Char& c) { return c.char_class == CharClass::kLetter; });
}

// Lower-case form within the letters of the contractions; U+017F folds to s.
char32_t fold(char32_t code_point) {
  if (code_point >= U'A' && code_point <= U'Z') {
    return code_point + (U'a' - U'A');
  }
  return code_point == 0x17F ? U's' : code_point;
}

// End of 's 't 'm 'd 're 've 'll at `pos` (which holds the apostrophe), or `pos` when there is none.
std::size_t contraction_end(std::string_view text, std::size_t pos, bool ignore_case) {
  const auto letter = [&](std::size_t at, Char& c) {
    if (at >= text.size()) {
      return U'\0';
    }
    c = char_at(text, at);
    return ignore_case ? fold(c.code_point) : c.code_point;
  };
  Char first;
  switch (letter(pos + 1, first)) {
    case U's':
    case U't':
    case U'm':
    case U'd':
      return first.end;
    case U'r':
    case U'v': {
      Char second;
      return letter(first.end, second) == U'e' ? second.end : pos;
    }
    case U'l': {
      Char second;
      return letter(first.end, second) == U'l' ? second.end : pos;
    }
    default:
      return pos;
  }
}

// \s+(?!\S)|\s+ on the white-space run [begin, end): all of it at the end of the piece, else all but the last
// character, which is left to lead the next word; a run of one character is a word by itself.
std::size_t space_word_end(std::string_view text, std::size_t begin, std::size_t end, bool at_piece_end) {
  if (at_piece_end) {
    return end;
  }
  std::size_t last = end - 1;
  while (last > begin && (static_cast<unsigned char>(text[last]) & 0xC0u) == 0x80u) {
    --last;  // back over continuation bytes: white space is always valid UTF-8
  }
  return last > begin ? last : end;
}

std::size_t smollm_word_end(std::string_view text, std::size_t begin) {
  const Char first = char_at(text, begin);
  if (is_digit_of_smollm(first)) {
    return first.end;
  }
  if (first.code_point == U'\'') {
    if (const std::size_t end = contraction_end(text, begin, false); end != begin) {
      return end;
    }
  }
  const auto symbol_in_piece = [](const Char& c) { return c.char_class == CharClass::kOther; };
  // " ?X+": the optional space, then a run of one kind.
  std::size_t start = begin;
  Char head = first;
  if (first.code_point == U' ' && first.end < text.size()) {
    start = first.end;
    head = char_at(text, start);
  }
  if (head.char_class == CharClass::kLetter) {
    return letters_end(text, start);
  }
  if (symbol_in_piece(head)) {
    return run_end(text, start, symbol_in_piece);
  }
  const std::size_t end = run_end(text, begin, [](const Char& c) { return c.char_class == CharClass::kSpace; });
  // A number character ends the piece, and (?!\S) holds at the end of a piece.
  return space_word_end(text, begin, end, end == text.size() || is_digit_of_smollm(char_at(text, end)));
}

std::size_t llama_word_end(std::string_view text, std::size_t begin, int max_digits) {
  const Char first = char_at(text, begin);
  if (first.code_point == U'\'') {
    if (const std::size_t end = contraction_end(text, begin, true); end != begin) {
      return end;
    }
  }
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (first.char_class == CharClass::kLetter) {
    return letters_end(text, begin);
  }
  if (first.char_class == CharClass::kNumber) {
    std::size_t end = first.end;
    for (int count = 1; count < max_digits && end < text.size(); ++count) {
      const Char next = char_at(text, end);
      if (next.char_class != CharClass::kNumber) {
        break;
      }
      end = next.end;
    }
    return end;
  }
  const bool has_second = first.end < text.size();
  const Char second = has_second ? char_at(text, first.end) : Char{};
  if (!is_newline(first) && has_second && second.char_class == CharClass::kLetter) {
    return letters_end(text, first.end);
  }
  // " ?[^\s\p{L}\p{N}]+[\r\n]*"
  const bool space_then_symbol = first.code_point == U' ' && has_second && is_symbol(second);
  if (is_symbol(first) || space_then_symbol) {
    return run_end(text, run_end(text, first.end, is_symbol), is_newline);
  }
  // \s*[\r\n]+ takes everything up to the last newline of the white-space run.
  std::size_t newline_end = begin;
  const std::size_t end = run_end(text, begin, [&](const Char& c) {
    if (c.char_class != CharClass::kSpace) {
      return false;
    }
    if (is_newline(c)) {
      newline_end = c.end;
    }
    return true;
  });
  return newline_end > begin ? newline_end : space_word_end(text, begin, end, end == text.size());
}

}  // namespace

Result<PreTokenizer> pretokenizer_by_name(std::string_view name) {
  if (name == "smollm" || name == "starcoder") {
    return PreTokenizer::kSmollm;
  }
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") {
    return PreTokenizer::kLlamaBpe;
  }
  if (name == "qwen2") {
    return PreTokenizer::kQwen2;
  }
  return Status(Code::kUnsupported,
                fmt::format("tokenizer.ggml.pre: got '{}'; allowed smollm (starcoder), llama-bpe (llama3, llama-v3), "
                            "qwen2; convert the model with one of these pre-tokenizers",
                            name.substr(0, 64)));
}

std::size_t next_word_end(PreTokenizer kind, std::string_view text, std::size_t begin) {
  switch (kind) {
    case PreTokenizer::kSmollm:
      return smollm_word_end(text, begin);
    case PreTokenizer::kLlamaBpe:
      return llama_word_end(text, begin, 3);
    case PreTokenizer::kQwen2:
      return llama_word_end(text, begin, 1);
  }
  return text.size();
}

}  // namespace tessera
