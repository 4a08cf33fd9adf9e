// Prefill attention of head dim 512 on sm_90 under docs/contract.md (hopper-k16-f25). README.md has the roles, the
// shared-memory map, the barriers and the timing.
#pragma once

#include "kernels/sm90/fmha_prefill_512/clipped_producer.cuh"
#include "kernels/sm90/fmha_prefill_512/consumer.cuh"
#include "kernels/sm90/fmha_prefill_512/prefill_512.h"
#include "kernels/sm90/fmha_prefill_512/producer.cuh"

namespace tessera::sm90 {

__device__ __forceinline__ void init_barriers_512(uint32_t shared) {
  using Layout = Layout512;
  for (int slice = 0; slice < Layout::kSlices; ++slice) {
    barrier_init(shared + Layout::kFull + 8 * slice, 1);
    barrier_init(shared + Layout::kEmpty + 8 * slice, 4 * Layout::kConsumers);  // warps
  }
  for (int w = 0; w < Layout::kConsumers; ++w) {
    barrier_init(shared + Layout::kQFull + 8 * w, 1);
    barrier_init(shared + Layout::kQEmpty + 8 * w, 4);
    barrier_init(shared + Layout::kMaximaFull + 8 * w, 1);
    barrier_init(shared + Layout::kWeightsFull + 8 * w, 1);
    barrier_init(shared + Layout::kPeerFree + 8 * w, 4);
  }
  for (int slot = 0; slot < Layout::kTileSlots; ++slot) {
    barrier_init(shared + Layout::kTileFull + 8 * slot, 1);
    barrier_init(shared + Layout::kTileEmpty + 8 * slot, kTileReaders);
  }
  barrier_init_fence();
}

// Grid: clusters of two blocks, each walking over query tiles.
template <class Tag>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(Layout512::kThreads, 1)
    fmha_prefill_512_sm90(const __grid_constant__ Arguments512 args) {
  using Layout = Layout512;
  extern __shared__ __align__(1024) uint8_t shared_512[];
  const uint32_t shared = shared_address(shared_512);
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
  const int rank = uniform(static_cast<int>(cluster_rank()));
  if (threadIdx.x == 0) {
    prefetch_map(&args.q_map);
    prefetch_map(&args.k_map);
    prefetch_map(&args.v_map);
    init_barriers_512(shared);
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  if (warpgroup == 0) {
    give_registers<Layout::kProducerRegisters>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0 && args.clipped) {
      ClippedProducer512{{args, shared}}.produce();
    } else if (threadIdx.x % 32 == 0) {
      const Producer512 producer{args, shared};
      if (warp == 0) {
        producer.produce();
      } else if (warp <= Layout::kConsumers) {
        producer.produce_queries(warp - 1);
      } else if (rank == 0) {
        TileGiver{args, shared}.run();
      }
    }
    __syncwarp();
  } else {
    take_registers<Layout::kConsumerRegisters>();
    Consumer512<Tag>(args, shared, warpgroup - 1, rank).run();
  }
  // The other block may still send, or count at barriers here.
  cluster_arrive();
  cluster_wait();
}

template <class Tag>
cudaError_t launch_prefill_512(const Arguments512& arguments, int clusters, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(fmha_prefill_512_sm90<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout512::kBytes);
  if (error != cudaSuccess) {
    return error;
  }
  fmha_prefill_512_sm90<Tag>
      <<<static_cast<unsigned>(2 * clusters), Layout512::kThreads, Layout512::kBytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace tessera::sm90
