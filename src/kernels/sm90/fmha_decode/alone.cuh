// The kernel in which one block takes a unit alone: four warps copy, four score and four sum outputs, and several
// blocks share a multiprocessor, so that one's arithmetic hides behind the others' copies.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/alone.h"
#include "kernels/sm90/fmha_decode/alone_copy.cuh"
#include "kernels/sm90/fmha_decode/alone_outputs.cuh"
#include "kernels/sm90/fmha_decode/alone_scores.cuh"
#include "kernels/sm90/fmha_decode/combine.cuh"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

template <class Tag>
__global__ void __launch_bounds__(AloneLayout<Tag>::kThreads, AloneLayout<Tag>::kResident)
    fmha_decode_alone_sm90(const __grid_constant__ DecodeArguments args) {
  using Layout = AloneLayout<Tag>;
  extern __shared__ __align__(1024) uint8_t alone_shared[];
  const uint32_t smem = shared_address(alone_shared);
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x < Layout::kStages) {
    barrier_init(smem + Layout::kFull + 8 * threadIdx.x, 32 * kAloneCopyWarps);
    barrier_init(smem + Layout::kEmpty + 8 * threadIdx.x, kAloneWarps);
  }
  if (threadIdx.x < 2) {
    barrier_init(smem + Layout::kSlotFull + 8 * threadIdx.x, kAloneWarps);
    barrier_init(smem + Layout::kSlotEmpty + 8 * threadIdx.x, kAloneWarps);
    barrier_init(smem + Layout::kRunningFull + 8 * threadIdx.x, kAloneWarps);
  }
  fetch_arguments(args);
  __syncthreads();
  Unit last{};
  last.batch = -1;
  if (warp < kAloneCopyWarps) {
    if (Layout::kResident == 2) {
      give_registers<Layout::kCopyRegisters>();
    }
    AloneCopy<Tag>(args, smem, static_cast<int>(threadIdx.x)).run();
  } else if (warp < kAloneCopyWarps + kAloneWarps) {
    if (Layout::kResident == 2) {
      take_registers<Layout::kOutputRegisters>();
    }
    last = AloneOutputs<Tag>(args, smem, warp - kAloneCopyWarps).run();
  } else {
    AloneScores<Tag>(args, smem, warp - kAloneCopyWarps - kAloneWarps).run();
  }
  // The last unit's chunk is handed in. Meanwhile a copying warp goes through it with nothing to do, so that the
  // instructions are there.
  if (Layout::kResident == 1 && (warp == 0 || uniform(last.batch) >= 0)) {
    HandIn<Tag, Layout::kLastStatesAhead>(args, last, warp - kAloneCopyWarps).run(warp != 0);
  }
}

}  // namespace tessera::sm90
