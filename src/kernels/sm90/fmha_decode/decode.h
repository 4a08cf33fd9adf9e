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
  tessera_dtype dtype = TESSERA_BF16;  // fp16 or bf16; of Q, K, V and O
  TensorView q, o;                     // (batch, seqlen_q, heads_q, head_dim)
  TensorView k, v;                     // (batch, seqlen_k, heads_kv, head_dim); heads_kv divides heads_q
  int64_t seqlen_k = 0;                // bound of the lengths
  const int32_t* seqlens_k = nullptr;  // [batch] on the device, clamped to 0 .. seqlen_k; null: all seqlen_k
  // Paged K and V are (page, slot, heads_kv, head_dim); key j of sequence b lies in page
  // page_table[b * page_table_stride + j / page_size]. Pages that the pool does not have are absent keys.
  const int32_t* page_table = nullptr;
  int64_t page_table_stride = 0;
  bool causal = false;
  float softmax_scale = 0.0F;  // > 0, finite
  tessera_row_scalars lse{};   // natural log; data null: not wanted
  void* scratch = nullptr;     // decode_scratch_bytes(), 64-byte aligned; zero before its first use
};

// A kernel as the launcher sees it.
struct DecodeEntry {
  const char* name;
  int head_dim;
  bool bf16;
  int rows;     // at least seqlen_q * heads_q / heads_kv
  int cluster;  // blocks that share a chunk
  int chunk_keys;
  bool paged;  // by rows: takes K and V with or without a page table
  int value_box_dims;
  cudaError_t (*resident_clusters)(int* clusters);  // of the current device
  cudaError_t (*launch)(const DecodeArguments& arguments, int clusters, cudaStream_t stream);
};

// Scratch of a launch: a counter per (sequence, K/V head, 16 columns) and the state of every chunk. Launches that run
// at the same time need scratch of their own.
size_t decode_scratch_bytes(const DecodeEntry& entry, const DecodeProblem& problem);

// Checks the problem against the entry, builds the maps and enqueues the kernel on `clusters` clusters at most (0: as
// many as are resident). kInvalidArgument or kUnsupported before anything is enqueued, kDevice if CUDA refuses.
Status run_decode(const DecodeEntry& entry, const DecodeProblem& problem, int clusters, cudaStream_t stream);

}  // namespace tessera::sm90
