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

// O = softmax(scale Q K^T) V under hopper-k16-f25 (docs/contract.md), every query token at key position
// seqlen_k - seqlen_q + i.
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
  void* timeline = nullptr;                       // kernels with one: PrefillArguments::timeline, zeros
  void* scratch = nullptr;                        // prefill_scratch_bytes(), 16-byte aligned; zero before its first use
};

// Scratch of a launch: the tile counter and, per resident block, what of the accumulators of R8 shared memory has no
// room for: of chunks once the keys exceed one, of superchunks once they exceed one of those. Launches that run at the
// same time need scratch of their own.
size_t prefill_scratch_bytes(const PrefillProblem& problem, int multiprocessors);

// A kernel as the launcher sees it.
struct PrefillEntry {
  const char* name;
  int head_dim;
  bool bf16;
  bool causal;
  bool general_finish;
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
          Tag::kNumbers.bf16,
          Tag::kSchedule.causal,
          Tag::kSchedule.general_finish,
          PrefillLayout<Tag>::kBlockM,
          Tag::kNumbers.granule_keys,
          &launch_prefill<Tag>};
}

// Whether the problem needs a kernel with the general finish.
inline bool needs_general_finish(const PrefillProblem& problem) {
  return problem.wide_output || problem.unnormalized || problem.sinks != nullptr ||
         problem.row_max_log2.data != nullptr || problem.row_sum.data != nullptr;
}

// Checks the problem against the entry, builds the maps and enqueues the kernel on `multiprocessors` blocks at most.
// kInvalidArgument or kUnsupported before anything is enqueued, kDevice if CUDA refuses.
Status run_prefill(const PrefillEntry& entry, const PrefillProblem& problem, int multiprocessors, cudaStream_t stream);

}  // namespace tessera::sm90
