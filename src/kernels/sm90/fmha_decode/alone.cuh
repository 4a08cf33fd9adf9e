// The kernel in which one block takes a unit alone, or two share one: four warps copy, four score and four sum outputs,
// and several blocks share a multiprocessor, so that one's arithmetic hides behind the others' copies; a block by
// itself on a multiprocessor has eight warps that copy (of modified scores four) and eight that score.
#pragma once

#include <cstdint>

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/alone.h"
#include "kernels/sm90/fmha_decode/alone_copy.cuh"
#include "kernels/sm90/fmha_decode/alone_outputs.cuh"
#include "kernels/sm90/fmha_decode/alone_scores.cuh"
#include "kernels/sm90/fmha_decode/combine.cuh"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

template <class Tag>
__device__ __forceinline__ void run_alone(const DecodeArguments& args) {
  using Layout = AloneLayout<Tag>;
  extern __shared__ __align__(1024) uint8_t alone_shared[];
  const uint32_t smem = shared_address(alone_shared);
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x < Layout::kStages) {
    barrier_init(smem + Layout::kFull + 8 * threadIdx.x, 32 * Layout::kCopyWarps);
    barrier_init(smem + Layout::kEmpty + 8 * threadIdx.x, 32 * kAloneWarps);
  }
  if (threadIdx.x < Layout::kSlotCount) {
    const uint32_t slot = 8 * threadIdx.x;
    // What comes from the other block counts bytes. Else every lane arrives for the words that it has stored or read.
    const bool own = Layout::kShare == 1 || threadIdx.x % Layout::kShare == cluster_rank();
    barrier_init(smem + Layout::kSlotFull + slot, own ? 32 * kAloneWarps : 1);
    barrier_init(smem + Layout::kSlotEmpty + slot, 32 * kAloneWarps);
    barrier_init(smem + Layout::kRunningFull + slot, Layout::kShare == 1 ? 32 * kAloneWarps : 1);
    if (Layout::kShare > 1) {
      barrier_init_fence();
      barrier_arrive_expect(smem + Layout::kRunningFull + slot, 4 * Layout::kRows);
      if (!own) {
        barrier_arrive_expect(smem + Layout::kSlotFull + slot, Layout::kSlotBytes);
      }
    }
  }
  fetch_arguments(args);
  launch_dependents();
  __syncthreads();
  if (Layout::kShare > 1) {
    if (uniform(UnitFinder<Tag>(args).find(static_cast<int>(blockIdx.x) / Layout::kShare).batch) < 0) {
      return;
    }
    cluster_arrive();
  }
  if (warp < Layout::kCopyWarps) {
    AloneCopy<Tag>(args, smem, static_cast<int>(threadIdx.x)).run();
  } else if (warp < Layout::kCopyWarps + kAloneWarps) {
    AloneOutputs<Tag>(args, smem, warp - Layout::kCopyWarps).run();
  } else {
    AloneScores<Tag>(args, smem, warp - Layout::kCopyWarps - kAloneWarps).run();
  }
  if (Layout::kShare > 1) {
    // Nobody leaves before all that it sends and that is sent to it has come.
    __syncwarp();
    if (warp < Layout::kCopyWarps + kAloneWarps) {
      cluster_wait();
    }
    cluster_arrive();
    cluster_wait();
  }
}

template <class Tag>
__global__ void __launch_bounds__(AloneLayout<Tag>::kThreads, AloneLayout<Tag>::kResident)
    fmha_decode_alone_sm90(const __grid_constant__ DecodeArguments args) {
  run_alone<Tag>(args);
}

}  // namespace tessera::sm90
