// Finding control and user-defined tokens in text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/vocab.h"

namespace tessera {

// Longest text of a control or user-defined token; bounds the work per text position.
inline constexpr std::size_t kMaxSpecialSize = 512;

// The control, unknown and user-defined tokens of a vocabulary, sorted by text, so that a search narrows an interval
// byte by byte instead of needing a trie.
class SpecialTokens {
 public:
  struct Match {
    TokenId id = kNoToken;
    std::size_t size = 0;  // bytes
  };

  explicit SpecialTokens(const Vocab& vocab);

  // The longest token that is a prefix of `text` (the lowest id of equal ones), or id kNoToken. User-defined tokens
  // always count; control and unknown tokens only when they end within the first `trusted` bytes: text from a user has
  // none.
  Match longest_prefix(const Vocab& vocab, std::string_view text, std::size_t trusted) const;

 private:
  std::vector<TokenId> sorted_;                  // by (text, id)
  std::array<std::uint32_t, 257> first_byte_{};  // sorted_[first_byte_[b] .. first_byte_[b + 1]) start with byte b
};

}  // namespace tessera
