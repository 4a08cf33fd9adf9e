#include "engine/config.h"

#include <fmt/format.h>

#include <cmath>

namespace tessera {
namespace {

struct ArchRow {
  const char* name;
  Arch arch;
  tessera_rope_pairing pairing;
  bool qkv_bias;
  bool qk_norm;
};

constexpr ArchRow kArchs[] = {
    {"llama", Arch::kLlama, TESSERA_ROPE_INTERLEAVED, false, false},
    {"qwen2", Arch::kQwen2, TESSERA_ROPE_HALVES, true, false},
    {"qwen3", Arch::kQwen3, TESSERA_ROPE_HALVES, false, true},
};

// A hyperparameter that some files give per layer: accepted when all layers agree.
Status uniform_u64(const GgufFile& file, const std::string& key, int64_t n_layers, uint64_t lo, uint64_t hi,
                   uint64_t* out) {
  Result<std::vector<uint64_t>> values = file.get_per_layer_u64(key, static_cast<uint64_t>(n_layers), lo, hi);
  TESSERA_RETURN_IF_ERROR(values.status());
  for (const uint64_t v : values.value()) {
    if (v != values.value().front()) {
      return file.key_error(key, fmt::format("{} and {} in different layers", values.value().front(), v),
                            "the same value in every layer", "use a model with uniform layers");
    }
  }
  *out = values.value().front();
  return {};
}

template <class T, class R>
Status read_into(T* out, R result) {
  TESSERA_RETURN_IF_ERROR(result.status());
  *out = static_cast<T>(result.value());
  return {};
}

Status read_rope(const GgufFile& file, const std::string& a, ModelConfig* c) {
  const std::string dim_key = a + ".rope.dimension_count";
  TESSERA_RETURN_IF_ERROR(read_into(&c->rotary_dim, file.get_u64_or(dim_key, static_cast<uint64_t>(c->head_dim), 2,
                                                                    static_cast<uint64_t>(c->head_dim))));
  if (c->rotary_dim % 2 != 0) {
    return file.key_error(dim_key, fmt::format("{}", c->rotary_dim), "an even number", "use a valid model file");
  }
  // A table of up to 2^20 positions must stay finite and ordered: base > 1.
  TESSERA_RETURN_IF_ERROR(read_into(&c->rope_freq_base, file.get_f32_or(a + ".rope.freq_base", 10000.0F, 1.0F, 1e12F)));

  const std::string type_key = a + ".rope.scaling.type";
  Result<std::string_view> type = file.get_string_or(type_key, "none");
  TESSERA_RETURN_IF_ERROR(type.status());
  if (type.value() == "linear") {
    TESSERA_RETURN_IF_ERROR(read_into(&c->rope_scale, file.get_f32_or(a + ".rope.scaling.factor", 1.0F, 1.0F, 1e6F)));
  } else if (type.value() != "none") {
    const Status s = file.key_error(type_key, quote(type.value()), "none or linear",
                                    "use a model without this rope scaling; Tessera does not compute it");
    return Status(Code::kUnsupported, s.text());
  }
  return {};
}

Status refuse_present(const GgufFile& file, const std::string& key, const char* what) {
  if (file.find(key) == nullptr) {
    return {};
  }
  Result<uint64_t> value = file.get_u64_or(key, 0);
  if (value.ok() && value.value() == 0) {
    return {};
  }
  const Status s = file.key_error(key, "a value", "the key absent or 0", fmt::format("use a model without {}", what));
  return Status(Code::kUnsupported, s.text());
}

}  // namespace

Result<ModelConfig> read_config(const ModelFiles& files) {
  const GgufFile& file = files.head();
  ModelConfig c;
  Result<std::string_view> arch = file.get_string("general.architecture");
  TESSERA_RETURN_IF_ERROR(arch.status());
  const ArchRow* row = nullptr;
  for (const ArchRow& r : kArchs) {
    row = arch.value() == r.name ? &r : row;
  }
  if (row == nullptr) {
    const Status s = file.key_error("general.architecture", quote(arch.value()), "llama, qwen2 or qwen3",
                                    "use a model of one of these architectures");
    return Status(Code::kUnsupported, s.text());
  }
  const std::string a = row->name;
  c.arch = row->arch;
  c.arch_name = a;
  c.rope_pairing = row->pairing;
  c.qkv_bias = row->qkv_bias;
  c.qk_norm = row->qk_norm;

  Result<std::string_view> name = file.get_string_or("general.name", "");
  TESSERA_RETURN_IF_ERROR(name.status());
  c.name = name.value().empty() ? file.name() : std::string(name.value());

  TESSERA_RETURN_IF_ERROR(read_into(&c.n_layers, file.get_u64(a + ".block_count", 1, kMaxLayers)));
  TESSERA_RETURN_IF_ERROR(read_into(&c.context_length, file.get_u64(a + ".context_length", 1, uint64_t{1} << 24)));
  TESSERA_RETURN_IF_ERROR(read_into(&c.hidden, file.get_u64(a + ".embedding_length", 1, uint64_t{1} << 20)));
  uint64_t ffn = 0;
  uint64_t heads = 0;
  uint64_t heads_kv = 0;
  TESSERA_RETURN_IF_ERROR(uniform_u64(file, a + ".feed_forward_length", c.n_layers, 1, uint64_t{1} << 22, &ffn));
  TESSERA_RETURN_IF_ERROR(uniform_u64(file, a + ".attention.head_count", c.n_layers, 1, 4096, &heads));
  heads_kv = heads;
  if (file.find(a + ".attention.head_count_kv") != nullptr) {
    TESSERA_RETURN_IF_ERROR(uniform_u64(file, a + ".attention.head_count_kv", c.n_layers, 1, heads, &heads_kv));
  }
  if (heads % heads_kv != 0) {
    return file.key_error(a + ".attention.head_count_kv", fmt::format("{}", heads_kv),
                          fmt::format("a divisor of head_count = {}", heads), "use a valid model file");
  }
  c.ffn = static_cast<int64_t>(ffn);
  c.num_heads_q = static_cast<int32_t>(heads);
  c.num_heads_kv = static_cast<int32_t>(heads_kv);

  const std::string key_length = a + ".attention.key_length";
  if (file.find(key_length) == nullptr && c.hidden % c.num_heads_q != 0) {
    return file.key_error(a + ".attention.head_count", fmt::format("{}", heads),
                          fmt::format("a divisor of embedding_length = {}", c.hidden), "use a valid model file");
  }
  const auto default_dim = static_cast<uint64_t>(c.hidden / c.num_heads_q);
  TESSERA_RETURN_IF_ERROR(read_into(&c.head_dim, file.get_u64_or(key_length, default_dim, 2, 576)));
  uint64_t value_length = 0;
  TESSERA_RETURN_IF_ERROR(read_into(
      &value_length, file.get_u64_or(a + ".attention.value_length", static_cast<uint64_t>(c.head_dim), 2, 576)));
  if (value_length != static_cast<uint64_t>(c.head_dim) || c.head_dim < 2 || c.head_dim > 576 || c.head_dim % 2 != 0) {
    return file.key_error(key_length, fmt::format("key_length {} and value_length {}", c.head_dim, value_length),
                          "equal, even, 2 to 576", "use a valid model file");
  }
  TESSERA_RETURN_IF_ERROR(read_into(&c.rms_eps, file.get_f32(a + ".attention.layer_norm_rms_epsilon", 1e-12F, 1.0F)));
  TESSERA_RETURN_IF_ERROR(read_rope(file, a, &c));
  TESSERA_RETURN_IF_ERROR(refuse_present(file, a + ".expert_count", "experts"));
  TESSERA_RETURN_IF_ERROR(refuse_present(file, a + ".attention.sliding_window", "a sliding window"));

  const TensorInfo* embd = files.find_tensor("token_embd.weight");
  if (embd == nullptr) {
    return Status(Code::kBadFile,
                  fmt::format("{}: tensor token_embd.weight is missing; use a complete model file", file.name()));
  }
  c.vocab_size = embd->dims[1];
  Result<uint64_t> vocab = file.get_u64_or(a + ".vocab_size", static_cast<uint64_t>(c.vocab_size));
  TESSERA_RETURN_IF_ERROR(vocab.status());
  if (vocab.value() != static_cast<uint64_t>(c.vocab_size) || c.vocab_size > (int64_t{1} << 24)) {
    return file.key_error(a + ".vocab_size", fmt::format("{}", vocab.value()),
                          fmt::format("the {} rows of token_embd.weight, at most 2^24", c.vocab_size),
                          "use a valid model file");
  }
  c.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  return c;
}

}  // namespace tessera
