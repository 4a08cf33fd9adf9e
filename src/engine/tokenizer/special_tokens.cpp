#include "engine/tokenizer/special_tokens.h"

#include <algorithm>

namespace tessera {
namespace {

bool is_special(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kUserDefined;
}

}  // namespace

SpecialTokens::SpecialTokens(const Vocab& vocab) {
  for (std::size_t i = 0; i < vocab.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::size_t size = vocab.text(id).size();
    if (is_special(vocab.type(id)) && size > 0 && size <= kMaxSpecialSize) {
      sorted_.push_back(id);
    }
  }
  std::stable_sort(sorted_.begin(), sorted_.end(), [&](TokenId a, TokenId b) { return vocab.text(a) < vocab.text(b); });
  for (const TokenId id : sorted_) {
    ++first_byte_[static_cast<std::uint8_t>(vocab.text(id)[0]) + 1u];
  }
  for (std::size_t i = 1; i < first_byte_.size(); ++i) {
    first_byte_[i] += first_byte_[i - 1];
  }
}

SpecialTokens::Match SpecialTokens::longest_prefix(const Vocab& vocab, std::string_view text,
                                                   std::size_t trusted) const {
  Match match;
  const auto first = static_cast<std::uint8_t>(text[0]);
  auto begin = sorted_.begin() + first_byte_[first];
  auto end = sorted_.begin() + first_byte_[first + 1u];
  // Invariant: [begin, end) are the tokens that start with text[0, depth).
  for (std::size_t depth = 1; begin != end; ++depth) {
    for (; begin != end && vocab.text(*begin).size() == depth; ++begin) {
      if (match.size < depth && (vocab.type(*begin) == TokenType::kUserDefined || depth <= trusted)) {
        match = {*begin, depth};
      }
    }
    if (depth == text.size()) {
      break;
    }
    // std::string_view compares bytes as unsigned char, and so must this.
    const auto byte_of = [&](TokenId id) { return static_cast<std::uint8_t>(vocab.text(id)[depth]); };
    const auto wanted = static_cast<std::uint8_t>(text[depth]);
    begin = std::partition_point(begin, end, [&](TokenId id) { return byte_of(id) < wanted; });
    end = std::partition_point(begin, end, [&](TokenId id) { return byte_of(id) == wanted; });
  }
  return match;
}

}  // namespace tessera
