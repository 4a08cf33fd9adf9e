// Host side of the decode kernels: from a problem to its kernels and their launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/status.h"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/tma_map.h"
#include "tessera/tessera.h"

namespace tessera::sm90 {

// O = softmax(scale Q K^T) V under hopper-k16-f25 (docs/contract.md) for few query tokens, token i at key position
// keys - seqlen_q + i.
struct DecodeProblem {
  tessera_dtype dtype = TESSERA_BF16;  // fp16 or bf16; of Q, K, V, and of O unless it is wide
  TensorView q, o;                     // (batch, seqlen_q, heads_q, head dim of K; of V)
  TensorView k, v;                     // (batch, seqlen_k, heads_kv, head dim); heads_kv divides heads_q
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
  float softmax_scale = 0.0F;            // > 0, finite
  float softcap = 0.0F;                  // 0: off
  const float* alibi_slopes = nullptr;   // [heads_q], or null
  tessera_bit_mask mask{};               // data null: off
  int32_t compress_ratio = 0;            // above 0: instead of causal and windows
  const int32_t* q_positions = nullptr;  // [batch] positions of first tokens, or null
  // The next segment (R10): other keys, lengths, pages and what R2 says of them; everything else is that of the first.
  const DecodeProblem* next = nullptr;
  const float* sinks = nullptr;  // [heads_q], natural units, or null
  bool wide_output = false;      // O in fp32
  bool unnormalized = false;     // O before R9
  // Data null: not wanted. LSE is a natural log; the row maximum is m - b of R9, the row sum l.
  tessera_row_scalars lse{}, row_max{}, row_sum{};
  void* scratch = nullptr;  // decode_scratch_bytes(), 64-byte aligned; may hold anything
};

// How many units a problem may have at most for a kernel: an H200 works on 30 clusters of eight at a time, and has 132
// multiprocessors. (For contiguous rows single is as fast as duo from some 44 units on.)
inline constexpr int64_t kTeamUnits = 30;
inline constexpr int64_t kDuoUnits = 66;
inline constexpr int64_t kDuoContiguousUnits = 44;
inline constexpr int64_t kSingleUnits = 132;
inline constexpr int64_t kAnyUnits = std::numeric_limits<int64_t>::max();

// A kernel as the launcher sees it.
struct DecodeEntry {
  const char* name;
  int head_dim;   // of Q and K, and multiples of 8 below;
  int value_dim;  // of V and O: the same as that of Q and K unless the kernel's are two or it is for modified scores
  bool bf16;
  bool modified;                        // takes softcap, ALiBi and custom bits
  bool twin;                            // takes two K/V heads of half of its head dims as one
  bool segments;                        // takes several segments, compressed keys and positions of queries
  int rows;                             // of a tile of the seqlen_q * heads_q / heads_kv ones that share K and V
  int cluster;                          // blocks that share a chunk
  bool counts;                          // whoever hands in a sequence's last chunk chains; else a second kernel does
  int64_t most_units;                   // of problems that it is for
  cudaError_t (*resident)(int* units);  // that the current device works on at a time
  cudaError_t (*launch)(const DecodeArguments& arguments, int units, cudaStream_t stream);
  cudaError_t (*launch_segments)(const SegmentedArguments& arguments, cudaStream_t stream);
};

// Whether the problem needs a kernel for modified scores.
inline bool has_modified_scores(const DecodeProblem& p) {
  return p.softcap != 0.0F || p.alibi_slopes != nullptr || p.mask.data != nullptr;
}

// Whether the problem needs a kernel for several segments.
inline bool has_segments(const DecodeProblem& p) {
  return p.next != nullptr || p.compress_ratio > 0 || p.q_positions != nullptr;
}

// Whether the kernel is for problems of these head dims, modifiers and segments, and with two heads at a time of these
// strides.
bool is_for(const DecodeEntry& entry, const DecodeProblem& problem);

// The kernel for a problem of these shapes, or null: by head dims, dtype, modifiers, rows, and how many units there are
// (no length is looked at but the bound).
const DecodeEntry* find_decode(const DecodeProblem& problem);

// Units of a problem at most, with tiles of `rows` query rows, or of a kernel: no length is looked at but the bound.
int64_t most_units(const DecodeProblem& problem, int rows);
int64_t most_units(const DecodeEntry& entry, const DecodeProblem& problem);

// Scratch of a launch: a state of a tile of rows for every chunk of the sequences and K/V heads. Launches that run at
// the same time need scratch of their own.
size_t decode_scratch_bytes(const DecodeEntry& entry, const DecodeProblem& problem);

// Checks the problem against the entry and enqueues its kernel, and the one that chains chunks if there may be several.
// `blocks` limits the blocks of kernels whose blocks take units alone, 0 does not. kInvalidArgument or kUnsupported
// before anything is enqueued, kDevice if CUDA refuses.
Status run_decode(const DecodeEntry& entry, const DecodeProblem& problem, int blocks, cudaStream_t stream);

}  // namespace tessera::sm90
