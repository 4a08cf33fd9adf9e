// Hostile and unsupported model files: each is refused with a sentence that names the key or tensor.
#include "engine/config.h"

#include <gtest/gtest.h>

#include <functional>

#include "engine/engine.h"
#include "engine/rope_table.h"
#include "engine/toy_model.h"

namespace tessera {
namespace {

using testing::GgufWriter;
using testing::le;

// Replaces the encoded pair of `key`.
void replace_kv(GgufWriter* w, const std::string& key, MetaType type, const std::string& value) {
  const std::string prefix = testing::str(key);
  for (std::string& pair : w->pairs) {
    if (pair.compare(0, prefix.size(), prefix) == 0) {
      pair = prefix;
      pair += le(static_cast<uint32_t>(type));
      pair += value;
      return;
    }
  }
  w->kv(key, type, value);
}

struct BadFile {
  const char* name;
  std::function<void(GgufWriter*)> damage;
  Code code;
  const char* mentions;
};

void set_u32(GgufWriter* w, const std::string& key, uint32_t value) {
  replace_kv(w, key, MetaType::U32, le(value));
}

void drop_tensor(GgufWriter* w, const std::string& name) {
  std::erase_if(w->tensors, [&](const testing::TensorSpec& t) { return t.name == name; });
}

const BadFile kBadFiles[] = {
    {"UnknownArchitecture",
     [](GgufWriter* w) { replace_kv(w, "general.architecture", MetaType::String, testing::str("mamba")); },
     Code::kUnsupported, "mamba"},
    {"NoHeads", [](GgufWriter* w) { set_u32(w, "llama.attention.head_count", 0); }, Code::kBadFile, "head_count"},
    {"HeadsDoNotDivide", [](GgufWriter* w) { set_u32(w, "llama.attention.head_count_kv", 3); }, Code::kBadFile,
     "head_count_kv"},
    {"MoreKvHeadsThanHeads", [](GgufWriter* w) { set_u32(w, "llama.attention.head_count_kv", 8); }, Code::kBadFile,
     "head_count_kv"},
    {"NoBlocks", [](GgufWriter* w) { set_u32(w, "llama.block_count", 0); }, Code::kBadFile, "block_count"},
    {"TwoBillionBlocks", [](GgufWriter* w) { set_u32(w, "llama.block_count", 1U << 31); }, Code::kBadFile,
     "block_count"},
    {"KeyLengthZero", [](GgufWriter* w) { set_u32(w, "llama.attention.key_length", 0); }, Code::kBadFile, "key_length"},
    {"OddRopeDimension", [](GgufWriter* w) { set_u32(w, "llama.rope.dimension_count", 7); }, Code::kBadFile,
     "rope.dimension_count"},
    {"RopeDimensionAboveHeadDim", [](GgufWriter* w) { set_u32(w, "llama.rope.dimension_count", 128); }, Code::kBadFile,
     "rope.dimension_count"},
    {"NanFreqBase", [](GgufWriter* w) { replace_kv(w, "llama.rope.freq_base", MetaType::F32, le(0x7fc00000U)); },
     Code::kBadFile, "freq_base"},
    {"YarnScaling", [](GgufWriter* w) { w->string("llama.rope.scaling.type", "yarn"); }, Code::kUnsupported, "yarn"},
    {"Experts", [](GgufWriter* w) { w->u32("llama.expert_count", 8); }, Code::kUnsupported, "expert_count"},
    {"SlidingWindow", [](GgufWriter* w) { w->u32("llama.attention.sliding_window", 128); }, Code::kUnsupported,
     "sliding_window"},
    {"VocabSizeDisagrees", [](GgufWriter* w) { w->u32("llama.vocab_size", 1000); }, Code::kBadFile, "vocab_size"},
    {"PerLayerHeadsOfWrongLength",
     [](GgufWriter* w) {
       replace_kv(w, "llama.attention.head_count", MetaType::Array,
                  testing::array_of<uint32_t>(MetaType::U32, {4, 4, 4}));
     },
     Code::kBadFile, "head_count"},
    {"PerLayerHeadsDiffer",
     [](GgufWriter* w) {
       replace_kv(w, "llama.attention.head_count", MetaType::Array, testing::array_of<uint32_t>(MetaType::U32, {4, 2}));
     },
     Code::kBadFile, "head_count"},
    {"MissingTensor", [](GgufWriter* w) { drop_tensor(w, "blk.1.ffn_up.weight"); }, Code::kBadFile,
     "blk.1.ffn_up.weight"},
    {"MissingEmbedding", [](GgufWriter* w) { drop_tensor(w, "token_embd.weight"); }, Code::kBadFile, "token_embd"},
    {"WrongShape", [](GgufWriter* w) { set_u32(w, "llama.feed_forward_length", 500); }, Code::kBadFile, "ffn_gate"},
    {"ValueLengthDiffers", [](GgufWriter* w) { w->u32("llama.attention.value_length", 32); }, Code::kBadFile,
     "value_length 32"},
    {"MatrixOfThreeDimensions",
     [](GgufWriter* w) {
       for (testing::TensorSpec& t : w->tensors) {
         if (t.name == "blk.0.attn_k.weight") {
           t.dims.push_back(2);
           t.data += t.data;
         }
       }
     },
     Code::kBadFile, "blk.0.attn_k.weight"},
    {"UnknownTensor",
     [](GgufWriter* w) {
       w->tensor({.name = "blk.0.attn_sinks.weight", .dims = {4}, .type = 0, .data = std::string(16, '\0')});
     },
     Code::kUnsupported, "attn_sinks"},
    {"TokensShorterThanEmbedding",
     [](GgufWriter* w) {
       replace_kv(w, "tokenizer.ggml.tokens", MetaType::Array, testing::strings({"a", "b"}));
     },
     Code::kBadFile, "tokenizer.ggml.tokens"},
    {"SentencePieceNormalisation",
     [](GgufWriter* w) {
       replace_kv(w, "tokenizer.ggml.model", MetaType::String, testing::str("llama"));
       w->kv("tokenizer.ggml.remove_extra_whitespaces", MetaType::Bool, le<uint8_t>(1));
     },
     Code::kUnsupported, "remove_extra_whitespaces"},
    {"EosOutsideTheVocabulary", [](GgufWriter* w) { set_u32(w, "tokenizer.ggml.eos_token_id", 0xffffffffU); },
     Code::kBadFile, "eos"},
};

TEST(RopeTable, LinearScalingDividesThePosition) {
  GgufWriter w = testing::toy_model({});
  w.string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0F);
  Result<std::unique_ptr<Engine>> engine = Engine::load(testing::write_file("linear.gguf", w.build()), {.threads = 1});
  ASSERT_TRUE(engine.ok()) << engine.status().text();
  const ModelConfig& scaled = engine.value()->config();
  ModelConfig plain = scaled;
  plain.rope_scale = 1;
  RopeTable fast(plain, {}, 9);
  RopeTable slow(scaled, {}, 9);
  fast.grow(9);
  slow.grow(9);
  for (int64_t i = 0; i < scaled.rotary_dim / 2; ++i) {
    const int64_t half = scaled.rotary_dim / 2;
    EXPECT_EQ(slow.cos()[8 * half + i], fast.cos()[2 * half + i]);
    EXPECT_EQ(slow.sin()[8 * half + i], fast.sin()[2 * half + i]);
  }
  EXPECT_NE(slow.sin()[8 * (scaled.rotary_dim / 2)], fast.sin()[8 * (scaled.rotary_dim / 2)]);
}

TEST(ModelFile, EveryBadFileIsRefusedByName) {
  for (const BadFile& bad : kBadFiles) {
    SCOPED_TRACE(bad.name);
    GgufWriter w = testing::toy_model({});
    bad.damage(&w);
    const std::string path = testing::write_file(std::string("bad_") + bad.name + ".gguf", w.build());
    Result<std::unique_ptr<Engine>> engine = Engine::load(path, {.threads = 1});
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), bad.code) << engine.status().text();
    EXPECT_NE(engine.status().text().find(bad.mentions), std::string::npos) << engine.status().text();
  }
}

TEST(ModelFile, TheUndamagedModelLoads) {
  const std::string path = testing::write_file("good.gguf", testing::toy_model({}).build());
  Result<std::unique_ptr<Engine>> engine = Engine::load(path, {.threads = 1});
  ASSERT_TRUE(engine.ok()) << engine.status().text();
  const ModelConfig& c = engine.value()->config();
  EXPECT_EQ(c.head_dim, testing::kToyHeadDim);
  EXPECT_EQ(c.vocab_size, testing::kToyVocab);
  EXPECT_EQ(engine.value()->context(), testing::kToyContext);
}

TEST(ModelFile, OptionsOutOfRangeAreRefused) {
  const std::string path = testing::write_file("good.gguf", testing::toy_model({}).build());
  EXPECT_FALSE(Engine::load(path, {.threads = -1}).ok());
  EXPECT_FALSE(Engine::load(path, {.threads = 1, .context = testing::kToyContext + 1}).ok());
  EXPECT_FALSE(Engine::load(path, {.threads = 1, .page_size = 0}).ok());
  EXPECT_EQ(Engine::load("/no/such/file.gguf", {.threads = 1}).status().code(), Code::kIo);
}

}  // namespace
}  // namespace tessera
