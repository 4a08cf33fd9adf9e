// Attention with one K/V head whose V is in K, on sm_90 under docs/contract.md (hopper-k16-f25). README.md has
// the roles, the shared-memory map, the barriers and the timing.
#pragma once

#include "kernels/sm90/dependent_launch.cuh"
#include "kernels/sm90/fmha_mqa_512/combine.cuh"
#include "kernels/sm90/fmha_mqa_512/mqa_512.h"
#include "kernels/sm90/fmha_mqa_512/multiplier.cuh"
#include "kernels/sm90/fmha_mqa_512/scorer.cuh"

namespace tessera::sm90 {

template <class Layout>
__device__ __forceinline__ void init_mqa_barriers(uint32_t shared) {
  for (int buffer = 0; buffer < Layout::kBuffers; ++buffer) {
    for (int group = 0; group < Layout::kGroups; ++group) {
      barrier_init(shared + Layout::kEmpty + 8 * (Layout::kGroups * buffer + group), 128);
    }
    barrier_init(shared + Layout::kMoved + 8 * buffer, 128);
    barrier_init(shared + Layout::kSummed + 8 * buffer, 128);
    barrier_init(shared + Layout::kWeighed + 8 * buffer, 128);
  }
  barrier_init(shared + Layout::kQFull, 128 * Layout::kScorers);
  barrier_init(shared + Layout::kQEmpty, 128 * Layout::kScorers);
  for (int slot = 0; slot < Layout::kTileSlots; ++slot) {
    barrier_init(shared + Layout::kTileFull + 8 * slot, 32);
    barrier_init(shared + Layout::kTileEmpty + 8 * slot, Layout::kThreads);
  }
  barrier_init_fence();
}

// Each block walks over items: query tiles, or parts of their keys.
template <class Tag>
__global__ void __launch_bounds__(MqaTiling::kThreads, 1) fmha_mqa_512_sm90(const __grid_constant__ MqaArguments args) {
  using Layout = MqaLayout<Tag::kHeadDim>;
  extern __shared__ __align__(1024) uint8_t shared_mqa[];
  const uint32_t shared = shared_address(shared_mqa);
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
  if (threadIdx.x == 0) {
    init_mqa_barriers<Layout>(shared);
  }
  __syncthreads();
  launch_dependents();
  if (warpgroup < Layout::kScorers) {
    give_registers<Layout::kScorerRegisters>();
    MqaScorer<Tag>(args, shared, warpgroup).run();
  } else {
    take_registers<Layout::kMultiplierRegisters>();
    MqaMultiplier<Tag>(args, shared, warpgroup - Layout::kScorers).run();
  }
}

template <class Tag>
cudaError_t launch_mqa_512(const MqaArguments& arguments, int blocks, cudaStream_t stream) {
  using Layout = MqaLayout<Tag::kHeadDim>;
  cudaError_t error =
      cudaFuncSetAttribute(fmha_mqa_512_sm90<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kBytes);
  if (error != cudaSuccess) {
    return error;
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(Layout::kThreads);
  launch.dynamicSmemBytes = Layout::kBytes;
  launch.stream = stream;
  error = cudaLaunchKernelEx(&launch, fmha_mqa_512_sm90<Tag>, arguments);
  if (error != cudaSuccess || arguments.parts.value == 1) {
    return error;
  }
  const auto tiles = static_cast<unsigned>(arguments.total_items) / arguments.parts.value;
  return launch_dependent(combine_mqa_512_sm90<Tag>, dim3(tiles, MqaSlice::kCount), dim3(MqaSlice::kThreads), arguments,
                          stream);
}

}  // namespace tessera::sm90
