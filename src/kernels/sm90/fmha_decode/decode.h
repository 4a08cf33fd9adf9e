// Host side of the decode kernels: from a problem to tensor maps and a launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/tma_map.h"
#include "tessera/tessera.h"

namespace tessera::sm90 {

// O = softmax(scale Q K^T) V under hopper-k16-f25 (docs/contract.md) for few query tokens, token i at key position
// keys - seqlen_q + i.
struct DecodeProblem {
  tessera_dtype dtype = TESSERA_BF16;  // fp16 or bf16; of Q, K, V, and of O unless it is wide
  TensorView q, o;                     // (batch, seqlen_q, heads_q, head_dim)
  TensorView k, v;                     // (batch, seqlen_k, heads_kv, head_dim); heads_kv divides heads_q
  int64_t seqlen_k = 0;                // bound of the lengths
  const int32_t* seqlens_k = nullptr;  // [batch] on the device, clamped to 0 .. seqlen_k; null: all seqlen_k
  // Paged K and V are (page, slot, heads_kv, head_dim); key j of sequence b lies in page
  // page_table[b * page_table_stride + j / page_size]. Pages that the pool does not have are absent keys.
  const int32_t* page_table = nullptr;
  int64_t page_table_stride = 0;
  bool causal = false;
  // Keys to the left and right of its own that a token sees; -1: all.
  int64_t window_left = -1;
  int64_t window_right = -1;
  float softmax_scale = 0.0F;    // > 0, finite
  const float* sinks = nullptr;  // [heads_q], natural units, or null
  bool wide_output = false;      // O in fp32
  bool unnormalized = false;     // O before R9
  // Data null: not wanted. LSE is a natural log; the row maximum is m - b of R9, the row sum l.
  tessera_row_scalars lse{}, row_max{}, row_sum{};
  void* scratch = nullptr;  // decode_scratch_bytes(), 64-byte aligned; may hold anything
};

// A kernel as the launcher sees it.
struct DecodeEntry {
  const char* name;
  int head_dim;  // and multiples of 8 below
  bool bf16;
  int rows;     // of a tile of the seqlen_q * heads_q / heads_kv ones that share K and V
  int cluster;  // blocks that share a chunk
  int own;      // granules that each of them scores at a time
  int chunk_keys;
  int granule_keys;
  int threads;
  bool paged;  // by rows: takes K and V with or without a page table
  int value_box_dims;
  cudaError_t (*resident_clusters)(int* clusters);  // of the current device
  cudaError_t (*launch)(const DecodeArguments& arguments, int clusters, cudaStream_t stream);
};

// The kernel for a problem of these shapes, or null: by head dim, dtype, pages, rows, and by how many blocks its chunks
// keep busy (no length is looked at but the bound).
const DecodeEntry* find_decode(const DecodeProblem& problem);

// Units of a problem at most, with tiles of `rows` query rows: no length is looked at but the bound.
int64_t most_units(const DecodeProblem& problem, int rows);

// Scratch of a launch, for U = batch * K/V heads * tiles of `rows` rows and chunks = ceil(seqlen_k / C) (within a
// window: of it): a counter of 8 bytes per 16 columns of each of the U, and a state of 8 rows * head_dim
// bytes per chunk of each. Launches that run at the same time need scratch of their own.
size_t decode_scratch_bytes(const DecodeEntry& entry, const DecodeProblem& problem);

// Checks the problem against the entry, builds the maps and enqueues the kernel on `clusters` clusters at most (0: as
// many as are resident). kInvalidArgument or kUnsupported before anything is enqueued, kDevice if CUDA refuses.
Status run_decode(const DecodeEntry& entry, const DecodeProblem& problem, int clusters, cudaStream_t stream);

}  // namespace tessera::sm90
