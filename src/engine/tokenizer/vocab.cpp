#include "engine/tokenizer/vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr std::size_t kMaxTextSize = 65535;  // bytes; the longest token of any published vocabulary has a few hundred
constexpr std::size_t kMaxProbes = 128;  // a table at most half full stays far below it unless it was made to collide
constexpr std::uint64_t kSeeds = 8;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::uint64_t mix(std::uint64_t value) {  // finalizer of splitmix64
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  std::uint64_t state = mix(seed + 0x9E3779B97F4A7C15u * (text.size() + 1));
  while (!text.empty()) {
    std::uint64_t word = 0;
    const std::size_t n = std::min<std::size_t>(text.size(), 8);
    std::memcpy(&word, text.data(), n);
    state = mix(state ^ word);
    text.remove_prefix(n);
  }
  return state;
}

// Value of a text of the exact form <0xNN>, or -1.
int parse_byte_token(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') {
    return -1;
  }
  const int high = digit(text[3]);
  const int low = digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

constexpr bool stands_for_itself(std::uint32_t value) {
  return (value >= 0x21 && value <= 0x7E) || (value >= 0xA1 && value <= 0xAC) || (value >= 0xAE && value <= 0xFF);
}

constexpr std::size_t kAlphabetEnd = 256 + 68;

struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<std::int16_t, kAlphabetEnd> to_byte{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.to_byte.fill(-1);
  char32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const char32_t code_point = stands_for_itself(byte) ? byte : next++;
    alphabet.of_byte[byte] = code_point;
    alphabet.to_byte[code_point] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}
constexpr Alphabet kAlphabet = make_alphabet();

// Appends the bytes of a text in the byte-level alphabet; false (and nothing appended) when a character is foreign to
// it.
bool append_alphabet_bytes(std::string_view text, std::string& out) {
  const std::size_t start = out.size();
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    const int byte = c.state == Utf8State::kValid ? alphabet_to_byte(c.code_point) : -1;
    if (byte < 0) {
      out.resize(start);
      return false;
    }
    out.push_back(static_cast<char>(byte));
    pos += c.length;
  }
  return true;
}

void append_spm_bytes(std::string_view text, std::string& out) {
  for (std::size_t mark = text.find(kSpaceMark); mark != text.npos; mark = text.find(kSpaceMark)) {
    out.append(text.substr(0, mark));
    out.push_back(' ');
    text.remove_prefix(mark + kSpaceMark.size());
  }
  out.append(text);
}

}  // namespace

std::string printable(std::string_view bytes) {
  constexpr std::size_t kShown = 48;
  std::string out;
  for (const char c : bytes.substr(0, kShown)) {
    if (c >= 0x20 && c < 0x7F && c != '\\') {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02X}", static_cast<std::uint8_t>(c));
    }
  }
  return bytes.size() > kShown ? out + "..." : out;
}

char32_t byte_to_alphabet(std::uint8_t byte) {
  return kAlphabet.of_byte[byte];
}

int alphabet_to_byte(char32_t code_point) {
  return code_point < kAlphabet.to_byte.size() ? kAlphabet.to_byte[code_point] : -1;
}

TokenType Vocab::type(TokenId id) const {
  return types_.empty() ? TokenType::kNormal : static_cast<TokenType>(types_[static_cast<std::size_t>(id)]);
}

bool Vocab::findable(TokenId id) const {
  return (type(id) == TokenType::kNormal || type(id) == TokenType::kUserDefined) && !text(id).empty();
}

Result<Vocab> Vocab::create(VocabData& data) {
  Vocab vocab;
  if (data.model == "gpt2") {
    vocab.kind_ = Kind::kByteLevelBpe;
  } else if (data.model == "llama") {
    vocab.kind_ = Kind::kSpm;
  } else {
    return Status(Code::kUnsupported,
                  fmt::format("tokenizer.ggml.model: got '{}'; allowed gpt2, llama; convert the model "
                              "to a file with one of these tokenizers",
                              printable(data.model)));
  }
  const std::size_t count = data.tokens.size();
  if (count == 0 || count > static_cast<std::size_t>(std::numeric_limits<TokenId>::max())) {
    return Status(
        Code::kBadFile,
        fmt::format("tokenizer.ggml.tokens: got {} tokens; allowed 1..2147483647; re-convert the model", count));
  }
  const bool spm = vocab.kind_ == Kind::kSpm;
  if (data.token_types.size() != count && (spm || !data.token_types.empty())) {
    return Status(Code::kBadFile, fmt::format("tokenizer.ggml.token_type: got {} entries; allowed {}, one per token; "
                                              "re-convert the model",
                                              data.token_types.size(), count));
  }
  if (data.scores.size() != count && (spm || !data.scores.empty())) {
    return Status(Code::kBadFile,
                  fmt::format("tokenizer.ggml.scores: got {} entries; allowed {}, one per token; re-convert the model",
                              data.scores.size(), count));
  }
  vocab.types_.reserve(data.token_types.size());
  for (std::size_t i = 0; i < data.token_types.size(); ++i) {
    const std::int32_t type = data.token_types[i];
    if (type < 1 || type > 6) {
      return Status(Code::kBadFile,
                    fmt::format("tokenizer.ggml.token_type[{}]: got {}; allowed 1..6; re-convert the model", i, type));
    }
    vocab.types_.push_back(static_cast<std::uint8_t>(type));
  }
  vocab.tokens_ = std::move(data.tokens);
  vocab.storage_ = std::move(data.storage);
  if (spm) {
    vocab.scores_ = std::move(data.scores);
  }
  data.token_types = {};
  data.scores = {};
  TESSERA_RETURN_IF_ERROR(vocab.check_tokens(data.model));
  TESSERA_RETURN_IF_ERROR(vocab.build_index());
  return vocab;
}

Status Vocab::check_tokens(const std::string& model) {
  byte_tokens_.fill(kNoToken);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string_view token = tokens_[i];
    max_text_size_ = std::max(max_text_size_, token.size());
    if (token.size() > kMaxTextSize) {
      return Status(Code::kBadFile,
                    fmt::format("tokenizer.ggml.tokens[{}]: got {} bytes; allowed at most {}; re-convert the model", i,
                                token.size(), kMaxTextSize));
    }
    if (!scores_.empty() && std::isnan(scores_[i])) {
      return Status(Code::kBadFile,
                    fmt::format("tokenizer.ggml.scores[{}]: got NaN; allowed numbers; re-convert the model", i));
    }
    const TokenType token_type = type(id);
    const bool special = token_type == TokenType::kControl || token_type == TokenType::kUserDefined;
    if (special && (token.empty() || token.size() > kMaxSpecialSize)) {
      return Status(
          Code::kBadFile,
          fmt::format("tokenizer.ggml.tokens[{}]: got a {} token of {} bytes; allowed 1..{}; re-convert the model", i,
                      token_type == TokenType::kControl ? "control" : "user-defined", token.size(), kMaxSpecialSize));
    }
    if (token_type == TokenType::kByte) {
      const int byte = parse_byte_token(token);
      if (byte < 0 || model != "llama") {
        return Status(Code::kBadFile,
                      fmt::format("tokenizer.ggml.tokens[{}]: got byte token '{}'; allowed <0x00>..<0xFF> "
                                  "with two hexadecimal digits, in a 'llama' vocabulary; re-convert the "
                                  "model",
                                  i, printable(token)));
      }
      if (byte_tokens_[static_cast<std::size_t>(byte)] == kNoToken) {
        byte_tokens_[static_cast<std::size_t>(byte)] = id;
      }
    }
  }
  return {};
}

bool Vocab::try_index(std::uint64_t seed) {
  std::fill(slots_.begin(), slots_.end(), kNoToken);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!findable(id)) {
      continue;
    }
    std::size_t slot = hash_text(tokens_[i], seed) & mask;
    std::size_t probes = 0;
    while (slots_[slot] != kNoToken && text(slots_[slot]) != tokens_[i]) {
      if (++probes > kMaxProbes) {
        return false;
      }
      slot = (slot + 1) & mask;
    }
    if (slots_[slot] == kNoToken) {
      slots_[slot] = id;
    }
  }
  seed_ = seed;
  return true;
}

// Token texts come from the file, so they may be chosen to collide: a bounded probe count keeps the time linear, and
// another seed undoes a collision that was computed for the first one.
Status Vocab::build_index() {
  slots_.resize(std::bit_ceil(tokens_.size() * 2));
  bool indexed = false;
  for (std::uint64_t seed = 0; seed < kSeeds && !indexed; ++seed) {
    indexed = try_index(seed);
  }
  if (!indexed) {
    return Status(Code::kBadFile,
                  fmt::format("tokenizer.ggml.tokens: got texts that collide under each of {} hash seeds; "
                              "allowed ordinary texts; do not trust this file",
                              kSeeds));
  }
  if (kind_ == Kind::kByteLevelBpe) {
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      std::string character;
      append_utf8(byte_to_alphabet(static_cast<std::uint8_t>(byte)), character);
      byte_tokens_[byte] = find(character);
    }
  }
  return {};
}

TokenId Vocab::find(std::string_view text_wanted) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_text(text_wanted, seed_) & mask;
  for (std::size_t probes = 0; probes <= kMaxProbes && slots_[slot] != kNoToken; ++probes) {
    if (text(slots_[slot]) == text_wanted) {
      return slots_[slot];
    }
    slot = (slot + 1) & mask;
  }
  return kNoToken;
}

void Vocab::append_bytes(TokenId id, bool render_control, std::string& out) const {
  const std::string_view token = text(id);
  switch (type(id)) {
    case TokenType::kControl:
      if (render_control) {
        out.append(token);
      }
      return;
    case TokenType::kUnknown:
      out.append("\xEF\xBF\xBD");
      return;
    case TokenType::kByte:
      out.push_back(static_cast<char>(parse_byte_token(token)));
      return;
    case TokenType::kUserDefined:
      out.append(token);  // stored as the plain text it is cut out of
      return;
    case TokenType::kNormal:
    case TokenType::kUnused:
      if (kind_ == Kind::kSpm) {
        append_spm_bytes(token, out);
      } else if (!append_alphabet_bytes(token, out)) {
        out.append(token);  // added tokens of some converters are stored as plain text
      }
      return;
  }
}

}  // namespace tessera
