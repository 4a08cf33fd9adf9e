#include "engine/vocabulary.h"

#include <limits>
#include <string>

namespace tessera {
namespace {

Status optional_id(const GgufFile& file, const char* key, std::optional<std::uint32_t>* out) {
  if (file.find(key) == nullptr) {
    return {};
  }
  Result<uint64_t> value = file.get_u64(key, 0, std::numeric_limits<std::uint32_t>::max());
  TESSERA_RETURN_IF_ERROR(value.status());
  *out = static_cast<std::uint32_t>(value.value());
  return {};
}

Status optional_bool(const GgufFile& file, const char* key, std::optional<bool>* out) {
  if (file.find(key) == nullptr) {
    return {};
  }
  Result<bool> value = file.get_bool(key);
  TESSERA_RETURN_IF_ERROR(value.status());
  *out = value.value();
  return {};
}

}  // namespace

Result<VocabData> read_vocabulary(const GgufFile& file, int64_t vocab_size) {
  VocabData data;
  const auto n = static_cast<uint64_t>(vocab_size);

  Result<std::string_view> model = file.get_string("tokenizer.ggml.model");
  TESSERA_RETURN_IF_ERROR(model.status());
  data.model = model.value();
  Result<std::string_view> pre = file.get_string_or("tokenizer.ggml.pre", "");
  TESSERA_RETURN_IF_ERROR(pre.status());
  data.pre = pre.value();

  // SentencePiece normalisation that the tokenizer does not do: its tokens would come out silently wrong.
  for (const char* key : {"tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.remove_extra_whitespaces"}) {
    if (data.model == "llama" && file.find(key) != nullptr) {
      const Status s = file.key_error(key, "a value", "the key absent", "use a model without this normalisation");
      return Status(Code::kUnsupported, s.text());
    }
  }

  Result<StringArray> tokens = file.get_string_array("tokenizer.ggml.tokens", n, n);
  TESSERA_RETURN_IF_ERROR(tokens.status());
  data.tokens = tokens.value().views();
  if (file.find("tokenizer.ggml.token_type") != nullptr) {
    Result<IntArray> types = file.get_i64_array("tokenizer.ggml.token_type", n, n, 0, 255);
    TESSERA_RETURN_IF_ERROR(types.status());
    data.token_types.resize(n);
    for (size_t i = 0; i < n; ++i) {
      data.token_types[i] = static_cast<std::int32_t>(types.value()[i]);
    }
  }
  if (file.find("tokenizer.ggml.scores") != nullptr) {
    Result<FloatArray> scores = file.get_f32_array("tokenizer.ggml.scores", n, n);
    TESSERA_RETURN_IF_ERROR(scores.status());
    data.scores = scores.value().to_vector();
  }
  if (file.find("tokenizer.ggml.merges") != nullptr) {
    Result<StringArray> merges = file.get_string_array("tokenizer.ggml.merges");
    TESSERA_RETURN_IF_ERROR(merges.status());
    data.merges = merges.value().views();
  }
  TESSERA_RETURN_IF_ERROR(optional_id(file, "tokenizer.ggml.bos_token_id", &data.bos_id));
  TESSERA_RETURN_IF_ERROR(optional_id(file, "tokenizer.ggml.eos_token_id", &data.eos_id));
  TESSERA_RETURN_IF_ERROR(optional_id(file, "tokenizer.ggml.eot_token_id", &data.eot_id));
  TESSERA_RETURN_IF_ERROR(optional_id(file, "tokenizer.ggml.unknown_token_id", &data.unk_id));
  TESSERA_RETURN_IF_ERROR(optional_id(file, "tokenizer.ggml.padding_token_id", &data.pad_id));
  TESSERA_RETURN_IF_ERROR(optional_bool(file, "tokenizer.ggml.add_bos_token", &data.add_bos));
  TESSERA_RETURN_IF_ERROR(optional_bool(file, "tokenizer.ggml.add_eos_token", &data.add_eos));
  TESSERA_RETURN_IF_ERROR(optional_bool(file, "tokenizer.ggml.add_space_prefix", &data.add_space_prefix));
  Result<std::string_view> chat_template = file.get_string_or("tokenizer.chat_template", "");
  TESSERA_RETURN_IF_ERROR(chat_template.status());
  data.chat_template = chat_template.value();
  return data;
}

}  // namespace tessera
