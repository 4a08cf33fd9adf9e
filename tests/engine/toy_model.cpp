#include "engine/toy_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

namespace tessera::testing {
namespace {

// fp16 of a small positive normal number, rounded down: good enough for a scale.
uint16_t half_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>(((bits >> 16) & 0x8000U) | ((((bits >> 23) & 0xffU) - 112U) << 10) |
                               ((bits >> 13) & 0x3ffU));
}

void put_half(std::string* block, size_t at, float value) {
  const uint16_t h = half_bits(value);
  std::memcpy(block->data() + at, &h, sizeof(h));
}

// One block of random codes whose scales give values of roughly +-spread.
std::string random_block(TensorType type, float spread, std::mt19937_64& random) {
  std::string block(block_bytes(type), '\0');
  for (char& c : block) {
    c = static_cast<char>(random());
  }
  switch (type) {
    case TensorType::Q4_0:
      put_half(&block, 0, spread / 8);
      break;
    case TensorType::Q5_0:
      put_half(&block, 0, spread / 16);
      break;
    case TensorType::Q8_0:
      put_half(&block, 0, spread / 128);
      break;
    case TensorType::Q4_1:
      put_half(&block, 0, spread / 8);
      put_half(&block, 2, -spread);
      break;
    case TensorType::Q5_1:
      put_half(&block, 0, spread / 16);
      put_half(&block, 2, -spread);
      break;
    case TensorType::Q4_K:
      put_half(&block, 0, spread / 256);
      put_half(&block, 2, spread / 32);
      break;
    case TensorType::Q5_K:
      put_half(&block, 0, spread / 512);
      put_half(&block, 2, spread / 32);
      break;
    case TensorType::Q6_K:
      put_half(&block, block.size() - 2, spread / 2048);
      break;
    default:
      break;
  }
  return block;
}

std::string random_values(TensorType type, int64_t count, float spread, std::mt19937_64& random) {
  std::uniform_real_distribution<float> uniform(-spread, spread);
  std::string data;
  const auto blocks = static_cast<uint64_t>(count) / block_elements(type);
  for (uint64_t i = 0; i < blocks; ++i) {
    if (type == TensorType::F32) {
      data += le(uniform(random));
    } else if (type == TensorType::BF16) {
      data += le(static_cast<uint16_t>(std::bit_cast<uint32_t>(uniform(random)) >> 16));
    } else if (type == TensorType::F16) {
      const float v = uniform(random);
      data += le(half_bits(std::fabs(v) < 1e-3F ? std::copysign(1e-3F, v) : v));
    } else {
      data += random_block(type, spread, random);
    }
  }
  return data;
}

std::string byte_token(int byte) {
  // The byte-level alphabet: printable bytes as themselves, the others as U+0100.. in ascending order.
  static const std::vector<int> shifted = [] {
    std::vector<int> v(256, -1);
    int next = 0;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      v[static_cast<size_t>(b)] = printable ? b : 0x100 + next++;
    }
    return v;
  }();
  const int c = shifted[static_cast<size_t>(byte)];
  if (c < 0x80) {
    return std::string(1, static_cast<char>(c));
  }
  return {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3f))};
}

void add_vocabulary(GgufWriter* w) {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) {
    tokens.push_back(byte_token(b));
  }
  for (const char* merged : {"th", "the", "in", "an"}) {
    tokens.emplace_back(merged);
  }
  tokens.emplace_back("<|end|>");
  tokens.emplace_back("<unused>");
  std::string encoded;
  std::string types;
  for (size_t i = 0; i < tokens.size(); ++i) {
    encoded += str(tokens[i]);
    types += le<int32_t>(i == 260 ? 3 : i == 261 ? 5 : 1);
  }
  w->string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "smollm");
  w->kv("tokenizer.ggml.tokens", MetaType::Array, array(MetaType::String, tokens.size(), encoded));
  w->kv("tokenizer.ggml.token_type", MetaType::Array, array(MetaType::I32, tokens.size(), types));
  w->kv("tokenizer.ggml.merges", MetaType::Array, strings({"t h", "th e", "i n", "a n"}));
  w->u32("tokenizer.ggml.eos_token_id", 260);
}

}  // namespace

GgufWriter toy_model(const ToySpec& spec) {
  GgufWriter w;
  std::mt19937_64 random(spec.seed);
  const std::string a = spec.arch;
  w.string("general.architecture", a).string("general.name", "toy " + a);
  w.u32(a + ".context_length", kToyContext)
      .u32(a + ".embedding_length", kToyHidden)
      .u32(a + ".block_count", kToyLayers);
  w.u32(a + ".feed_forward_length", kToyFfn).u32(a + ".attention.head_count", kToyHeads);
  w.u32(a + ".attention.head_count_kv", kToyHeadsKv).u32(a + ".rope.dimension_count", kToyHeadDim);
  w.f32(a + ".attention.layer_norm_rms_epsilon", 1e-5F).f32(a + ".rope.freq_base", 10000.0F);
  add_vocabulary(&w);

  size_t matrices = 0;
  const auto matrix = [&](const std::string& name, int64_t n, int64_t k) {
    const TensorType type = spec.types[matrices++ % spec.types.size()];
    const float spread = 1.7F / std::sqrt(static_cast<float>(k));
    w.tensor({.name = name,
              .dims = {k, n},
              .type = static_cast<uint32_t>(type),
              .data = random_values(type, n * k, spread, random)});
  };
  const auto vector = [&](const std::string& name, int64_t n, float around) {
    std::uniform_real_distribution<float> uniform(around - 0.25F, around + 0.25F);
    std::string data;
    for (int64_t i = 0; i < n; ++i) {
      data += le(uniform(random));
    }
    w.tensor({.name = name, .dims = {n}, .type = 0, .data = data});
  };

  matrix("token_embd.weight", kToyVocab, kToyHidden);
  vector("output_norm.weight", kToyHidden, 1.0F);
  if (!spec.tied) {
    matrix("output.weight", kToyVocab, kToyHidden);
  }
  if (spec.rope_factors) {
    vector("rope_freqs.weight", kToyHeadDim / 2, 2.0F);
  }
  for (int64_t i = 0; i < kToyLayers; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    vector(p + "attn_norm.weight", kToyHidden, 1.0F);
    matrix(p + "attn_q.weight", kToyHeads * kToyHeadDim, kToyHidden);
    matrix(p + "attn_k.weight", kToyHeadsKv * kToyHeadDim, kToyHidden);
    matrix(p + "attn_v.weight", kToyHeadsKv * kToyHeadDim, kToyHidden);
    if (a == "qwen2") {
      vector(p + "attn_q.bias", kToyHeads * kToyHeadDim, 0.0F);
      vector(p + "attn_k.bias", kToyHeadsKv * kToyHeadDim, 0.0F);
      vector(p + "attn_v.bias", kToyHeadsKv * kToyHeadDim, 0.0F);
    }
    if (a == "qwen3") {
      vector(p + "attn_q_norm.weight", kToyHeadDim, 1.0F);
      vector(p + "attn_k_norm.weight", kToyHeadDim, 1.0F);
    }
    matrix(p + "attn_output.weight", kToyHidden, kToyHeads * kToyHeadDim);
    vector(p + "ffn_norm.weight", kToyHidden, 1.0F);
    matrix(p + "ffn_gate.weight", kToyFfn, kToyHidden);
    matrix(p + "ffn_up.weight", kToyFfn, kToyHidden);
    matrix(p + "ffn_down.weight", kToyHidden, kToyFfn);
  }
  return w;
}

std::string write_file(const std::string& name, const std::string& bytes) {
  // Tests run in parallel processes: one folder each, gone at the end of the process.
  struct Folder {
    std::filesystem::path path =
        std::filesystem::path(::testing::TempDir()) / ("tessera_engine_" + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  const std::string path = (folder.path / name).string();
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace tessera::testing
