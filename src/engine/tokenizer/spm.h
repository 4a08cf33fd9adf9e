// SentencePiece-style BPE ("llama" vocabularies): characters merge by the score of the piece they form.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/vocab.h"

namespace tessera {

// Appends the tokens of `text` (fewer than 2^32 bytes, spaces already written as U+2581) to `out`. Starts from single
// characters (an invalid UTF-8 byte counts as one), merges the neighbours whose joined text is the token with the
// highest score, the leftmost of equal ones, until none is a token. A character that is no token becomes its byte
// tokens <0xNN>; where the vocabulary lacks one, `unknown` stands for the whole character. O(n log n). Returns how many
// bytes got no token at all because `unknown` is kNoToken too.
std::size_t spm_encode(const Vocab& vocab, std::string_view text, TokenId unknown, std::vector<TokenId>& out);

}  // namespace tessera
