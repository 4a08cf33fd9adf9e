// Text to tokens and back, for the vocabularies of GGUF model files.
//
//   Result<Tokenizer> made = Tokenizer::create(std::move(vocab_data));
//   Result<std::vector<TokenId>> ids = made.value().encode("Hello", {.add_special = true});
//
// Immutable after create(): every query is const, thread-safe, and depends on its arguments alone.
//
// Text is any sequence of bytes. Valid UTF-8 is cut into words as pretokenizer.h says; an invalid byte counts as one
// character without a class and keeps its value, so byte-level vocabularies that hold all 256 bytes give every input
// back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/vocab.h"

namespace tessera {

struct EncodeOptions {
  bool add_special = false;    // put BOS in front and EOS behind, where the model file asks for them
  bool parse_special = false;  // cut control tokens ("<|im_end|>") out of the text; never set it for text from a user
};

struct DecodeOptions {
  bool render_control = false;     // write control tokens as their text instead of leaving them out
  bool strip_space_prefix = true;  // take the space that encode() put in front away again ("llama" vocabularies)
};

// A piece of a prompt. Only in trusted pieces does the text of a control token become that token.
struct TextSegment {
  std::string text;
  bool is_special = false;
};

class Tokenizer {
 public:
  // Errors: kUnsupported for an unknown model or pre-tokenizer, kBadFile for a vocabulary that contradicts itself
  // (lengths, types, ids out of range, merges that name no token, byte tokens that are none, ...), each naming the key
  // and the entry.
  static Result<Tokenizer> create(VocabData data);

  // Tokens of `text`. Control tokens (with parse_special) and user-defined tokens (always) are cut out first, at each
  // position the longest; the rest is cut into words and merged. A byte for which the vocabulary has no token is left
  // out, as in the HF implementation; `dropped_bytes`, when given, receives how many were. Error: kInvalidArgument for
  // text of 1 GiB or more.
  Result<std::vector<TokenId>> encode(std::string_view text, EncodeOptions options = {},
                                      std::size_t* dropped_bytes = nullptr) const;

  // Tokens of the concatenated segments: words may span segments, control tokens are found inside special ones only.
  Result<std::vector<TokenId>> encode(std::span<const TextSegment> segments, bool add_special,
                                      std::size_t* dropped_bytes = nullptr) const;

  // The bytes of the tokens, which need not be valid UTF-8 (see StreamDecoder). Error: kInvalidArgument for an id
  // outside the vocabulary.
  Result<std::string> decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  // Appends the bytes of one token, without any stripping. Requires 0 <= id < size().
  void append_bytes(TokenId id, bool render_control, std::string& out) const {
    vocab_.append_bytes(id, render_control, out);
  }

  // The token's text as it stands in the model file; empty for an id outside the vocabulary.
  std::string_view token_text(TokenId id) const { return vocab_.contains(id) ? vocab_.text(id) : std::string_view(); }
  // The token with exactly this text, control tokens included; kNoToken when there is none.
  TokenId token_id(std::string_view text) const;

  // End of generation: the file's EOS and EOT, and control or user-defined tokens whose text is one of the known end
  // marks
  // (<|im_end|>, <|eot_id|>, <|endoftext|>, <end_of_turn>, ...), since files often name only one of them.
  bool is_eog(TokenId id) const;

  std::size_t size() const { return vocab_.size(); }
  TokenId bos_id() const { return bos_id_; }  // each kNoToken when the file names none
  TokenId eos_id() const { return eos_id_; }
  TokenId eot_id() const { return eot_id_; }
  TokenId unk_id() const { return unk_id_; }
  TokenId pad_id() const { return pad_id_; }
  bool adds_bos() const { return add_bos_; }
  bool adds_eos() const { return add_eos_; }
  bool adds_space_prefix() const { return add_space_prefix_; }
  const std::string& chat_template() const { return chat_template_; }

 private:
  struct Buffers;
  struct TrustedRange {  // byte offsets [begin, end) of a text in which control tokens may be found; ascending
    std::size_t begin;
    std::size_t end;
  };

  Tokenizer(Vocab vocab, SpecialTokens specials) : vocab_(std::move(vocab)), specials_(std::move(specials)) {}
  Status set_special_ids(const VocabData& data);
  void find_end_tokens();
  Status check_size(std::size_t bytes) const;
  void encode_plain(std::string_view text, bool at_start, Buffers& buffers) const;
  void encode_byte_level(std::string_view text, Buffers& buffers) const;
  std::vector<TokenId> encode_ranges(std::string_view text, std::span<const TrustedRange> trusted, bool add_special,
                                     std::size_t* dropped_bytes) const;

  Vocab vocab_;
  SpecialTokens specials_;
  MergeTable merges_;                         // byte-level BPE only
  PreTokenizer pre_ = PreTokenizer::kSmollm;  // byte-level BPE only
  bool ignore_merges_ = false;                // a word that is a token as a whole is not merged
  TokenId bos_id_ = kNoToken, eos_id_ = kNoToken, eot_id_ = kNoToken, unk_id_ = kNoToken, pad_id_ = kNoToken;
  bool add_bos_ = false, add_eos_ = false, add_space_prefix_ = false;
  std::vector<TokenId> end_tokens_;  // ascending
  std::string chat_template_;
};

}  // namespace tessera
