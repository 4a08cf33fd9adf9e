// Pre-tokenizers of byte-level BPE: they cut text into the words inside which merges happen.
//
// The model files name a regular expression; this is a hand-written scanner for each of the three supported ones,
// because backtracking engines recurse or go quadratic on long runs. Each scanner accepts what the HF `tokenizers`
// wheel accepts for the same expression (tests/tokenizer/compare_hf.py):
//
//   smollm     every number character alone; then, inside the pieces between them,
//              's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
//              \s*[\r\n]+|\s+(?!\S)|\s+
//   qwen2      as llama-bpe, with \p{N} in place of \p{N}{1,3}
//
// (?i:'s) also takes U+017F (long s), as Unicode case folding says. No normalization is applied: where a Qwen tokenizer
// declares NFC, the caller must pass NFC text. A byte that is not part of valid UTF-8 counts as one character of no
// class.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"

namespace tessera {

enum class PreTokenizer { kSmollm, kLlamaBpe, kQwen2 };

// From tokenizer.ggml.pre: smollm (alias starcoder), llama-bpe (aliases llama3, llama-v3), qwen2. Any other name is
// kUnsupported: a wrong cut gives plausible text and wrong tokens, so there is no default.
Result<PreTokenizer> pretokenizer_by_name(std::string_view name);

// End (exclusive byte offset) of the word that starts at `begin`; requires begin < text.size(). Always > begin. Calling
// it until text.size() is reached costs O(text.size()) in total.
std::size_t next_word_end(PreTokenizer kind, std::string_view text, std::size_t begin);

}  // namespace tessera
