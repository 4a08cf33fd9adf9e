// The vocabulary of a model file: what the file says (VocabData) and the validated, indexed form (Vocab).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tessera {

using TokenId = std::int32_t;
inline constexpr TokenId kNoToken = -1;

// Numbers of tokenizer.ggml.token_type.
enum class TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// The tokenizer.ggml.* values of a model file, not yet checked. A plain struct, so that the tokenizer knows nothing of
// file formats. Token and merge texts are views: `storage`, when given, is kept by the tokenizer and must keep the
// viewed bytes alive (for example the memory map of the file); without it the caller promises that they outlive the
// tokenizer.
struct VocabData {
  std::string model;                      // .model: "gpt2" (byte-level BPE) or "llama" (SentencePiece-style BPE)
  std::string pre;                        // .pre, for "gpt2" only; see pretokenizer.h
  std::vector<std::string_view> tokens;   // .tokens
  std::vector<std::int32_t> token_types;  // .token_type: one per token; may be empty for "gpt2" (all normal)
  std::vector<float> scores;              // .scores: one per token for "llama"; ignored for "gpt2"
  std::vector<std::string_view> merges;   // .merges: "left right", best first, for "gpt2"; ignored for "llama"
  std::optional<std::uint32_t> bos_id, eos_id, eot_id, unk_id, pad_id;  // .*_token_id
  std::optional<bool> add_bos;           // .add_bos_token; default: true for "llama" and llama-bpe, else false
  std::optional<bool> add_eos;           // .add_eos_token; default false
  std::optional<bool> add_space_prefix;  // .add_space_prefix, for "llama" only; default true
  std::string chat_template;             // tokenizer.chat_template, empty when absent
  std::shared_ptr<const void> storage;
};

// Bytes with other bytes than printable ASCII written as \xNN, cut after 48 bytes: for error sentences.
std::string printable(std::string_view bytes);

// The alphabet of byte-level BPE. Every byte stands in the vocabulary as one printable character: '!'..'~',
// U+00A1..U+00AC and U+00AE..U+00FF as themselves, the 68 others as U+0100.. in ascending order (so a space is U+0120).
char32_t byte_to_alphabet(std::uint8_t byte);
// The byte of a character of that alphabet, or -1.
int alphabet_to_byte(char32_t code_point);

// The indexed vocabulary. Immutable; all queries are const and thread-safe.
class Vocab {
 public:
  enum class Kind { kByteLevelBpe, kSpm };

  // Checks everything that concerns tokens (not merges) and builds the index. Errors: kBadFile for a vocabulary that
  // contradicts itself, kUnsupported for another `model`. Takes tokens, token_types, scores and storage out of `data`.
  static Result<Vocab> create(VocabData& data);

  Kind kind() const { return kind_; }
  std::size_t size() const { return tokens_.size(); }
  bool contains(TokenId id) const { return id >= 0 && static_cast<std::size_t>(id) < tokens_.size(); }

  // The text as it stands in the file (byte-level alphabet, U+2581 for spaces, "<0x0A>"). Requires contains(id).
  std::string_view text(TokenId id) const { return tokens_[static_cast<std::size_t>(id)]; }
  TokenType type(TokenId id) const;
  float score(TokenId id) const { return scores_[static_cast<std::size_t>(id)]; }  // kSpm only

  // The normal or user-defined token with this text, or kNoToken; the lowest id when the text occurs twice. Control,
  // unknown, unused and byte tokens are never found: text alone must not be able to produce them.
  TokenId find(std::string_view text) const;
  // Token of one byte: the one-character token (kByteLevelBpe) or <0xNN> (kSpm); kNoToken when the vocabulary lacks it.
  TokenId byte_token(std::uint8_t byte) const { return byte_tokens_[byte]; }
  std::size_t max_text_size() const { return max_text_size_; }

  // Appends the bytes the token stands for. Control tokens are written as their text when render_control is true and
  // vanish otherwise; an unknown token becomes U+FFFD. Requires contains(id).
  void append_bytes(TokenId id, bool render_control, std::string& out) const;

 private:
  Status check_tokens(const std::string& model);
  Status build_index();
  bool try_index(std::uint64_t seed);
  bool findable(TokenId id) const;

  Kind kind_ = Kind::kByteLevelBpe;
  std::vector<std::string_view> tokens_;
  std::vector<std::uint8_t> types_;  // empty: all normal
  std::vector<float> scores_;
  std::array<TokenId, 256> byte_tokens_{};
  std::size_t max_text_size_ = 0;
  std::vector<TokenId> slots_;  // open addressing, power-of-two size, kNoToken = free
  std::uint64_t seed_ = 0;
  std::shared_ptr<const void> storage_;
};

}  // namespace tessera
