// A model's weights in the layouts that the kernels read.
//
// Matrices are packed (tessera_gemm_pack) into one anonymous arena, straight from the mapped file, whose pages are
// dropped as soon as a matrix is done: the peak stays near the size of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/aligned_buffer.h"
#include "engine/config.h"
#include "engine/gguf/model_files.h"
#include "engine/thread_pool.h"
#include "tessera/tessera.h"

namespace tessera {

// y (m, n) = x (m, k) W^T
struct Matrix {
  tessera_weight_type type = TESSERA_WEIGHT_F32;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* packed = nullptr;
};

using Vector = std::vector<float>;  // norm weights and biases; empty: absent

struct LayerWeights {
  Vector attn_norm;          // [hidden]
  Matrix q, k, v, attn_out;  // (q_dim, hidden), (kv_dim, hidden), (kv_dim, hidden), (hidden, q_dim)
  Vector q_bias, k_bias, v_bias;
  Vector q_norm, k_norm;  // [head_dim]
  Vector ffn_norm;        // [hidden]
  Matrix gate, up, down;  // (ffn, hidden), (ffn, hidden), (hidden, ffn)
};

struct Weights {
  Matrix token_embd;  // (vocab, hidden)
  Matrix output;      // (vocab, hidden); aliases token_embd when the file ties them
  bool tied = false;
  Vector output_norm;   // [hidden]
  Vector rope_factors;  // [rotary_dim / 2] or empty
  std::vector<LayerWeights> layers;
  AlignedBuffer arena;  // holds every packed matrix
};

// Called with bytes done and bytes in all; from the loading thread.
using LoadProgress = std::function<void(uint64_t, uint64_t)>;

// Checks that exactly the tensors of the architecture are there, with exact shapes, then packs them.
Result<Weights> load_weights(const ModelFiles& files, const ModelConfig& config, ThreadPool& pool,
                             const LoadProgress& progress);

}  // namespace tessera
