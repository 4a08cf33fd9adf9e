// Writes the seed corpus of gguf_fuzz: small valid files that together reach every branch of the reader.
// Usage: gguf_seeds DIRECTORY
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "gguf/gguf_writer.h"

namespace {

using tessera::MetaType;
using tessera::TensorType;
using tessera::testing::GgufWriter;
using tessera::testing::le;

// One block of every tensor type.
GgufWriter all_types() {
  GgufWriter w;
  for (uint32_t id = 0; id < 43; ++id) {
    if (!tessera::is_supported_tensor_type(id)) continue;
    const auto type = static_cast<TensorType>(id);
    w.tensor({.name = "t" + std::to_string(id),
              .dims = {tessera::block_elements(type)},
              .type = id,
              .data = std::string(tessera::block_bytes(type), '\x15')});
  }
  return w;
}

// The shape of a model file: hyperparameters, a vocabulary, a few matrices.
GgufWriter toy_model() {
  GgufWriter w;
  w.string("general.architecture", "llama").u32("llama.block_count", 1).u32("llama.embedding_length", 32);
  w.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  w.kv("llama.feed_forward_length", MetaType::Array, tessera::testing::array_of<uint32_t>(MetaType::U32, {64}));
  w.kv("tokenizer.ggml.tokens", MetaType::Array, tessera::testing::strings({"<s>", "</s>", "a", "\xc4\xa0"}));
  w.kv("tokenizer.ggml.token_type", MetaType::Array, tessera::testing::array_of<int32_t>(MetaType::I32, {3, 3, 1, 1}));
  w.tensor({.name = "token_embd.weight", .dims = {32, 4}, .type = 8, .data = std::string(136, '\x22')});
  w.tensor({.name = "blk.0.ffn_up.weight", .dims = {32, 2, 1, 1}, .type = 3, .data = std::string(40, '\x33')});
  return w;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gguf_seeds DIRECTORY\n");
    return 2;
  }
  const std::filesystem::path dir = argv[1];
  std::filesystem::create_directories(dir);
  GgufWriter version2 = toy_model();
  version2.version = 2;
  GgufWriter split = toy_model();
  split.kv("split.no", MetaType::U16, le<uint16_t>(0)).kv("split.count", MetaType::U16, le<uint16_t>(2));
  const std::pair<const char*, GgufWriter> seeds[] = {
      {"empty", GgufWriter{}},    {"sample", tessera::testing::sample()},
      {"all_types", all_types()}, {"toy_model", toy_model()},
      {"version2", version2},     {"split", split}};
  for (const auto& [name, writer] : seeds) std::ofstream(dir / name, std::ios::binary) << writer.build();
  return 0;
}
