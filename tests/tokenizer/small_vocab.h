// Small synthetic vocabularies for the tokenizer tests.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"

namespace tessera::testing {

// Text of `bytes` in the alphabet of byte-level BPE.
inline std::string in_alphabet(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    append_utf8(byte_to_alphabet(static_cast<std::uint8_t>(c)), out);
  }
  return out;
}

// Collects tokens and merges. Their texts live as long as any VocabData made from it.
class VocabBuilder {
 public:
  TokenId add(std::string text, TokenType type = TokenType::kNormal, float score = 0.0f) {
    data_.tokens.push_back(own(std::move(text)));
    data_.token_types.push_back(static_cast<std::int32_t>(type));
    data_.scores.push_back(score);
    return static_cast<TokenId>(data_.tokens.size() - 1);
  }

  // A merge of two byte strings, and the token it makes.
  TokenId add_merge(std::string_view left, std::string_view right) {
    data_.merges.push_back(own(in_alphabet(left) + " " + in_alphabet(right)));
    return add(in_alphabet(std::string(left) + std::string(right)));
  }

  void add_merge_line(std::string line) { data_.merges.push_back(own(std::move(line))); }

  VocabData& data() { return data_; }
  // One builder can serve many tokenizers.
  VocabData copy() const { return data_; }

 private:
  std::string_view own(std::string text) { return texts_->emplace_back(std::move(text)); }

  std::shared_ptr<std::deque<std::string>> texts_ = std::make_shared<std::deque<std::string>>();  // stable addresses
  VocabData data_ = with_storage(texts_);

  static VocabData with_storage(std::shared_ptr<const void> storage) {
    VocabData data;
    data.storage = std::move(storage);
    return data;
  }
};

inline constexpr TokenId kHe = 256, kLl = 257, kHell = 258, kHello = 259, kSpaceH = 260, kSpaceHello = 261,
                         kTwelve = 262;
inline constexpr TokenId kImStart = 263, kImEnd = 264, kEndOfText = 265, kTool = 266, kTools = 267;

// 256 byte tokens (id = byte), a few merges, control tokens <|im_start|> <|im_end|> <|endoftext|>, and the user-defined
// tokens [TOOL] and [TOOLS].
inline VocabBuilder byte_level_builder(std::string pre) {
  VocabBuilder builder;
  for (int byte = 0; byte < 256; ++byte) {
    builder.add(in_alphabet(std::string(1, static_cast<char>(byte))));
  }
  builder.add_merge("h", "e");
  builder.add_merge("l", "l");
  builder.add_merge("he", "ll");
  builder.add_merge("hell", "o");
  builder.add_merge(" ", "h");
  builder.add_merge(" ", "hello");
  builder.add_merge("1", "2");
  builder.add("<|im_start|>", TokenType::kControl);
  builder.add("<|im_end|>", TokenType::kControl);
  builder.add("<|endoftext|>", TokenType::kControl);
  builder.add("[TOOL]", TokenType::kUserDefined);
  builder.add("[TOOLS]", TokenType::kUserDefined);
  builder.data().model = "gpt2";
  builder.data().pre = std::move(pre);
  builder.data().add_bos = false;
  builder.data().bos_id = kImStart;
  builder.data().eos_id = kImEnd;
  return builder;
}

// <unk> <s> </s>, the 256 byte tokens when asked for, then pieces with scores.
inline VocabBuilder spm_builder(bool with_bytes, const std::vector<std::pair<std::string, float>>& pieces) {
  VocabBuilder builder;
  builder.add("<unk>", TokenType::kUnknown);
  builder.add("<s>", TokenType::kControl);
  builder.add("</s>", TokenType::kControl);
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; with_bytes && byte < 256; ++byte) {
    builder.add(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">", TokenType::kByte);
  }
  for (const auto& [text, score] : pieces) {
    builder.add(text, TokenType::kNormal, score);
  }
  builder.data().model = "llama";
  builder.data().unk_id = 0;
  builder.data().bos_id = 1;
  builder.data().eos_id = 2;
  return builder;
}

}  // namespace tessera::testing
