// Hyperparameters of a model, read from its GGUF file and checked before any memory is taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/gguf/model_files.h"
#include "tessera/tessera.h"

namespace tessera {

enum class Arch { kLlama, kQwen2, kQwen3 };

struct ModelConfig {
  Arch arch = Arch::kLlama;
  std::string arch_name;       // general.architecture
  std::string name;            // general.name, or the file name
  int64_t vocab_size = 0;      // rows of token_embd
  int64_t context_length = 0;  // {arch}.context_length
  int64_t n_layers = 0;        // {arch}.block_count
  int64_t hidden = 0;          // {arch}.embedding_length
  int64_t ffn = 0;             // {arch}.feed_forward_length
  int32_t num_heads_q = 0;     // {arch}.attention.head_count
  int32_t num_heads_kv = 0;    // {arch}.attention.head_count_kv
  int32_t head_dim = 0;        // {arch}.attention.key_length, else hidden / num_heads_q; K and V alike
  int32_t rotary_dim = 0;      // {arch}.rope.dimension_count
  float rms_eps = 0;           // {arch}.attention.layer_norm_rms_epsilon
  double rope_freq_base = 0;   // {arch}.rope.freq_base
  double rope_scale = 1;       // linear scaling: angles are divided by it
  tessera_rope_pairing rope_pairing = TESSERA_ROPE_INTERLEAVED;
  bool qkv_bias = false;    // qwen2
  bool qk_norm = false;     // qwen3
  float softmax_scale = 0;  // 1 / sqrt(head_dim)

  int64_t q_dim() const { return int64_t{num_heads_q} * head_dim; }
  int64_t kv_dim() const { return int64_t{num_heads_kv} * head_dim; }
};

// Reads and cross-checks the hyperparameters. Refuses by name what this engine does not compute: other architectures,
// rope scaling types other than none and linear, experts, per-layer head counts, sliding windows.
Result<ModelConfig> read_config(const ModelFiles& files);

}  // namespace tessera
