// Byte-level byte-pair encoding: the merge table of a vocabulary and the merge loop.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/vocab.h"

namespace tessera {

// Which pairs of tokens merge, into what, and in which order. Stored as one sorted row per left token: three numbers
// per merge, and a lookup whose cost no choice of texts can spoil.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;  // lower merges first
    TokenId result;
  };

  // From tokenizer.ggml.merges: "left right", split at the first space behind the first byte; the index is the rank,
  // and the first of two equal lines counts. Error kBadFile: a line without two sides, a side or a result that is no
  // normal or user-defined token, or no merges at all for a vocabulary that has tokens of more than one byte.
  static Result<MergeTable> create(const std::vector<std::string_view>& merges, const Vocab& vocab);

  // The merge of two neighbours, or nullptr.
  const Merge* find(TokenId left, TokenId right) const;

 private:
  std::vector<std::uint32_t> row_begin_;  // vocab.size() + 1 offsets into the two arrays below
  std::vector<TokenId> rights_;           // ascending within a row
  std::vector<Merge> merges_;
};

// Buffers of the merge loop, reused from word to word within one call. Holds no result.
struct BpeScratch {
  struct Symbol {
    TokenId id;  // kNoToken once merged into the left neighbour
    std::uint32_t previous;
    std::uint32_t next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::uint32_t position;  // of the left symbol
    TokenId left;
    TokenId right;
    TokenId result;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

// Appends the tokens of one word (fewer than 2^32 bytes) to `out`: the pair with the lowest rank merges first, the
// leftmost of equal ones, until no pair merges. O(n log n) for n bytes. Bytes without a token are left out before
// merging, as the HF implementation does; returns how many.
std::size_t bpe_encode_word(const Vocab& vocab, const MergeTable& merges, std::string_view word, BpeScratch& scratch,
                            std::vector<TokenId>& out);

}  // namespace tessera
