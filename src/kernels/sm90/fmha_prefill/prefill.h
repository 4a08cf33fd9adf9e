// Host side of the prefill kernels: from a problem to tensor maps, tile order and a launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kernels/sm90/fmha_prefill/config.h"
#include "kernels/sm90/tma_map.h"
#include "tessera/tessera.h"

namespace tessera::sm90 {

// K and V of the heads that are in flight together should stay in the L2 cache (50 MB on the parts this was measured
// on).
inline constexpr int64_t kSectionBytes = int64_t{32} << 20;
// But that many K/V heads may be in flight whatever their size: each still has a handful of tiles at work that read the
// same keys at about the same time, and the longest-first order has more to balance with.
inline constexpr int64_t kSectionHeads = 16;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

inline constexpr size_t kCounterBytes = 16;  // the tile counter at the start of the scratch

// What only ragged kernels take; each field as in tessera_fmha_params and its one segment. Then `tokens` of Q, O, K and
// V only says whether there is more than one; packed tensors have batch = 1, paged ones batch = pages and tokens = page
// size.
struct RaggedProblem {
  bool wanted = false;
  int64_t batch = 0;
  int64_t seqlen_q = 0, seqlen_k = 0;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
  const int32_t* seqlens_k = nullptr;
  const int32_t* q_positions = nullptr;
  const int32_t* page_table = nullptr;
  int64_t page_table_stride = 0;
  int32_t page_size = 0;
  int64_t window_left = -1, window_right = -1;
  int32_t compress_ratio = 0;
  int64_t chunk_begin = 0, chunk_end = 0;
  float softcap = 0.0F;
  const float* alibi_slopes = nullptr;
  tessera_bit_mask mask{};
};

// O = softmax(scale Q K^T) V under hopper-k16-f25 (docs/contract.md); unless ragged, every query token i at key
// position seqlen_k - seqlen_q + i.
struct PrefillProblem {
  tessera_dtype dtype = TESSERA_BF16;  // fp16 or bf16; of Q, K, V and, without wide_output, O
  TensorView q, o;                     // (batch, seqlen_q, heads_q, head_dim)
  TensorView k, v;                     // (batch, seqlen_k, heads_kv, head_dim); heads_kv divides heads_q
  bool causal = false;
  float softmax_scale = 0.0F;  // > 0, finite
  tessera_row_scalars lse{};   // natural log; data null: not wanted
  // For kernels with the general finish:
  bool wide_output = false;   // O in fp32
  bool unnormalized = false;  // O, row_max_log2 and row_sum are the state before R9; wide_output is on
  tessera_row_scalars row_max_log2{}, row_sum{};  // data null: not wanted
  const float* sinks = nullptr;                   // per query head
  RaggedProblem ragged;
  void* timeline = nullptr;  // kernels with one: PrefillArguments::timeline, zeros
  void* scratch = nullptr;   // prefill_scratch_bytes(), 16-byte aligned; zero before its first use
};

// Scratch of a launch: the tile counter, of ragged launches the query tiles of each sequence, and per resident block
// what of the accumulators of R8 shared memory has no room for: of chunks once the keys exceed one, of superchunks once
// they exceed one of those. Launches that run at the
// same time need scratch of their own.
size_t prefill_scratch_bytes(const PrefillProblem& problem, int multiprocessors);

// A kernel as the launcher sees it.
struct PrefillEntry {
  const char* name;
  int head_dim;  // of its tiles
  int dims_qk;   // of problems; ragged: the most
  int dims_v;
  bool bf16;
  bool causal;
  bool general_finish;
  bool ragged;
  bool modifiers;
  int block_m;
  int granule_keys;
  // Enqueues the kernel over `blocks` blocks.
  cudaError_t (*launch)(const PrefillArguments& arguments, int blocks, cudaStream_t stream);
};

template <class Tag>
cudaError_t launch_prefill(const PrefillArguments& arguments, int blocks, cudaStream_t stream);

template <class Tag>
constexpr PrefillEntry prefill_entry() {
  return {Tag::kName,
          Tag::kNumbers.head_dim,
          Tag::kNumbers.dims_qk(),
          Tag::kNumbers.dims_v(),
          Tag::kNumbers.bf16,
          Tag::kSchedule.causal,
          Tag::kSchedule.general_finish,
          Tag::kSchedule.ragged,
          Tag::kSchedule.modifiers,
          PrefillLayout<Tag>::kBlockM,
          Tag::kNumbers.granule_keys,
          &launch_prefill<Tag>};
}

// Whether the problem needs a kernel with the general finish.
inline bool needs_general_finish(const PrefillProblem& problem) {
  return problem.wide_output || problem.unnormalized || problem.sinks != nullptr ||
         problem.row_max_log2.data != nullptr || problem.row_sum.data != nullptr;
}

// Whether the problem needs a ragged kernel with modifiers of the scores.
inline bool needs_modifiers(const PrefillProblem& problem) {
  return problem.ragged.softcap != 0.0F || problem.ragged.alibi_slopes != nullptr ||
         problem.ragged.mask.data != nullptr;
}

// Checks the problem against the entry, builds the maps and enqueues the kernel on `multiprocessors` blocks at most.
// kInvalidArgument or kUnsupported before anything is enqueued, kDevice if CUDA refuses.
Status run_prefill(const PrefillEntry& entry, const PrefillProblem& problem, int multiprocessors, cudaStream_t stream);

}  // namespace tessera::sm90
