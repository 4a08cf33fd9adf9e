#include "engine/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/tokenizer/spm.h"
#include "engine/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;  // keeps every offset of the merge loops in 32 bits

// Texts of the tokens that end a generation in published chat models.
constexpr std::string_view kEndMarks[] = {
    "<|im_end|>",    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>",
    "<end_of_turn>", "<|end|>",    "<|return|>", "<|call|>",        "</s>",
};

void replace_spaces(std::string_view text, std::string& out) {
  for (const char c : text) {
    if (c == ' ') {
      out.append("\xE2\x96\x81");  // U+2581
    } else {
      out.push_back(c);
    }
  }
}

}  // namespace

// What one encode() call works with; nothing of it outlives the call.
struct Tokenizer::Buffers {
  std::vector<TokenId> out;
  std::size_t dropped = 0;
  BpeScratch bpe;
  std::string text;
};

Result<Tokenizer> Tokenizer::create(VocabData data) {
  Result<Vocab> vocab = Vocab::create(data);
  TESSERA_RETURN_IF_ERROR(vocab.status());
  SpecialTokens specials(vocab.value());
  Tokenizer tokenizer(std::move(vocab).value(), std::move(specials));
  const bool spm = tokenizer.vocab_.kind() == Vocab::Kind::kSpm;
  if (!spm) {
    Result<PreTokenizer> pre = pretokenizer_by_name(data.pre);
    TESSERA_RETURN_IF_ERROR(pre.status());
    tokenizer.pre_ = pre.value();
    tokenizer.ignore_merges_ = tokenizer.pre_ == PreTokenizer::kLlamaBpe;
    Result<MergeTable> merges = MergeTable::create(data.merges, tokenizer.vocab_);
    TESSERA_RETURN_IF_ERROR(merges.status());
    tokenizer.merges_ = std::move(merges).value();
  }
  tokenizer.add_bos_ = data.add_bos.value_or(spm || tokenizer.pre_ == PreTokenizer::kLlamaBpe);
  tokenizer.add_eos_ = data.add_eos.value_or(false);
  tokenizer.add_space_prefix_ = spm && data.add_space_prefix.value_or(true);
  TESSERA_RETURN_IF_ERROR(tokenizer.set_special_ids(data));
  tokenizer.find_end_tokens();
  tokenizer.chat_template_ = std::move(data.chat_template);
  return tokenizer;
}

Status Tokenizer::set_special_ids(const VocabData& data) {
  const auto set = [&](const char* name, const std::optional<std::uint32_t>& value, TokenId& id) -> Status {
    if (!value) {
      return {};
    }
    if (*value >= vocab_.size()) {
      return {Code::kBadFile, fmt::format("tokenizer.ggml.{}_token_id: got {}; allowed 0..{}; re-convert the model",
                                          name, *value, vocab_.size() - 1)};
    }
    id = static_cast<TokenId>(*value);
    return {};
  };
  TESSERA_RETURN_IF_ERROR(set("bos", data.bos_id, bos_id_));
  TESSERA_RETURN_IF_ERROR(set("eos", data.eos_id, eos_id_));
  TESSERA_RETURN_IF_ERROR(set("eot", data.eot_id, eot_id_));
  TESSERA_RETURN_IF_ERROR(set("unknown", data.unk_id, unk_id_));
  TESSERA_RETURN_IF_ERROR(set("padding", data.pad_id, pad_id_));
  // Characters without a token become this one, so it must not be a token that steers the model.
  if (vocab_.kind() == Vocab::Kind::kSpm && unk_id_ != kNoToken && vocab_.type(unk_id_) == TokenType::kControl) {
    return {Code::kBadFile, fmt::format("tokenizer.ggml.unknown_token_id: got {}, a control token; allowed a token of "
                                        "another type; re-convert the model",
                                        unk_id_)};
  }
  const auto require = [](const char* name, bool wanted, bool given, TokenId id) -> Status {
    if (!wanted || id != kNoToken) {
      return {};
    }
    return {Code::kBadFile,
            fmt::format("tokenizer.ggml.{}_token_id: absent, but add_{}_token is {} true; allowed a token "
                        "id; add the id or set add_{}_token to false",
                        name, name, given ? "set to" : "by default", name)};
  };
  TESSERA_RETURN_IF_ERROR(require("bos", add_bos_, data.add_bos.has_value(), bos_id_));
  return require("eos", add_eos_, data.add_eos.has_value(), eos_id_);
}

TokenId Tokenizer::token_id(std::string_view text) const {
  if (text.empty()) {
    return kNoToken;
  }
  const SpecialTokens::Match match = specials_.longest_prefix(vocab_, text, text.size());
  return match.size == text.size() ? match.id : vocab_.find(text);
}

void Tokenizer::find_end_tokens() {
  const auto add = [&](TokenId id) {
    if (id != kNoToken) {
      end_tokens_.push_back(id);
    }
  };
  add(eos_id_);
  add(eot_id_);
  const auto special = [&](std::string_view text) {
    const SpecialTokens::Match match = specials_.longest_prefix(vocab_, text, text.size());
    return match.size == text.size() ? match.id : kNoToken;
  };
  // In the vocabulary that has <|return|> and <|call|>, <|end|> closes a message and generation goes on.
  const bool end_closes_message = special("<|return|>") != kNoToken && special("<|call|>") != kNoToken;
  for (const std::string_view mark : kEndMarks) {
    if (mark != "<|end|>" || !end_closes_message) {
      add(special(mark));
    }
  }
  std::sort(end_tokens_.begin(), end_tokens_.end());
}

bool Tokenizer::is_eog(TokenId id) const {
  return std::binary_search(end_tokens_.begin(), end_tokens_.end(), id);
}

Status Tokenizer::check_size(std::size_t bytes) const {
  if (bytes < kMaxTextBytes) {
    return {};
  }
  return {Code::kInvalidArgument,
          fmt::format("text: got {} bytes; allowed fewer than {}; encode it in parts", bytes, kMaxTextBytes)};
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, EncodeOptions options,
                                               std::size_t* dropped_bytes) const {
  TESSERA_RETURN_IF_ERROR(check_size(text.size()));
  const std::vector<TrustedRange> trusted =
      options.parse_special ? std::vector<TrustedRange>{{0, text.size()}} : std::vector<TrustedRange>{};
  return encode_ranges(text, trusted, options.add_special, dropped_bytes);
}

Result<std::vector<TokenId>> Tokenizer::encode(std::span<const TextSegment> segments, bool add_special,
                                               std::size_t* dropped_bytes) const {
  std::string text;
  std::vector<TrustedRange> trusted;
  for (const TextSegment& segment : segments) {
    TESSERA_RETURN_IF_ERROR(check_size(segment.text.size()));
    TESSERA_RETURN_IF_ERROR(check_size(text.size() + segment.text.size()));
    if (segment.is_special) {
      trusted.push_back({text.size(), text.size() + segment.text.size()});
    }
    text += segment.text;
  }
  return encode_ranges(text, trusted, add_special, dropped_bytes);
}

std::vector<TokenId> Tokenizer::encode_ranges(std::string_view text, std::span<const TrustedRange> trusted,
                                              bool add_special, std::size_t* dropped_bytes) const {
  Buffers buffers;
  if (add_special && add_bos_) {
    buffers.out.push_back(bos_id_);
  }
  std::size_t plain = 0;  // start of the text not yet encoded
  for (std::size_t pos = 0; pos < text.size();) {
    while (!trusted.empty() && trusted.front().end <= pos) {
      trusted = trusted.subspan(1);
    }
    const bool is_trusted = !trusted.empty() && trusted.front().begin <= pos;
    const SpecialTokens::Match match =
        specials_.longest_prefix(vocab_, text.substr(pos), is_trusted ? trusted.front().end - pos : 0);
    if (match.id == kNoToken) {
      ++pos;
      continue;
    }
    encode_plain(text.substr(plain, pos - plain), plain == 0, buffers);
    buffers.out.push_back(match.id);
    pos += match.size;
    plain = pos;
  }
  encode_plain(text.substr(plain), plain == 0, buffers);
  if (add_special && add_eos_) {
    buffers.out.push_back(eos_id_);
  }
  if (dropped_bytes != nullptr) {
    *dropped_bytes = buffers.dropped;
  }
  return std::move(buffers.out);
}

void Tokenizer::encode_plain(std::string_view text, bool at_start, Buffers& buffers) const {
  if (text.empty()) {
    return;
  }
  if (vocab_.kind() == Vocab::Kind::kByteLevelBpe) {
    encode_byte_level(text, buffers);
    return;
  }
  buffers.text.clear();
  if (at_start && add_space_prefix_) {
    buffers.text.push_back(' ');
  }
  std::string marked;
  replace_spaces(buffers.text.append(text), marked);
  buffers.dropped += spm_encode(vocab_, marked, unk_id_, buffers.out);
}

void Tokenizer::encode_byte_level(std::string_view text, Buffers& buffers) const {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = next_word_end(pre_, text, begin);
    const std::string_view word = text.substr(begin, end - begin);
    begin = end;
    if (ignore_merges_ && word.size() <= vocab_.max_text_size()) {
      buffers.text.clear();
      for (const char c : word) {
        append_utf8(byte_to_alphabet(static_cast<std::uint8_t>(c)), buffers.text);
      }
      if (const TokenId id = vocab_.find(buffers.text); id != kNoToken) {
        buffers.out.push_back(id);
        continue;
      }
    }
    buffers.dropped += bpe_encode_word(vocab_, merges_, word, buffers.bpe, buffers.out);
  }
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string out;
  bool at_start = true;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!vocab_.contains(ids[i])) {
      return Status(Code::kInvalidArgument,
                    fmt::format("ids[{}]: got {}; allowed 0..{}; decode only ids of this vocabulary", i, ids[i],
                                vocab_.size() - 1));
    }
    const std::size_t before = out.size();
    vocab_.append_bytes(ids[i], options.render_control, out);
    if (at_start && vocab_.type(ids[i]) != TokenType::kControl) {
      at_start = false;
      if (add_space_prefix_ && options.strip_space_prefix && out.size() > before && out[before] == ' ') {
        out.erase(before, 1);
      }
    }
  }
  return out;
}

}  // namespace tessera
