// The decode kernel: roles of a block. See README.md.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/cluster.cuh"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/finish.cuh"
#include "kernels/sm90/fmha_decode/outputs.cuh"
#include "kernels/sm90/fmha_decode/paged.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/queries.cuh"
#include "kernels/sm90/fmha_decode/scores.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/smem_tile.cuh"

namespace tessera::sm90 {

// One warp: K of the block's granule of every round.
template <class Tag>
__device__ __forceinline__ void load_keys(const DecodeArguments& args, uint32_t smem, int rank, int64_t first,
                                          int64_t step) {
  using Layout = DecodeLayout<Tag>;
  constexpr int kChunk = Tag::kNumbers.chunk_keys;
  UnitWalker<kChunk> walker(args);
  Unit unit;
  StageAt<Layout::kKStages> at;
  const uint64_t policy = read_once_policy();
  for (int64_t number = first; walker.find(number, unit); number += step) {
    const UnitKeys<kChunk> keys(unit);
    for (int granule = rank; granule < keys.granules(); granule += Layout::kCluster) {
      if (threadIdx.x % 32 == 0) {
        barrier_wait(smem + Layout::kKEmpty + 8 * at.stage, at.parity ^ 1U);
        const uint32_t full = smem + Layout::kKFull + 8 * at.stage;
        barrier_arrive_expect(full, Layout::kKBytes);
        const uint32_t stage = smem + Layout::kK + at.stage * Layout::kKBytes;
#pragma unroll
        for (int panel = 0; panel < Layout::kHeadDim / kPanelColumns; ++panel) {
          load_box_once(stage + static_cast<uint32_t>(panel * panel_bytes(kDecodeGranule)), &args.k_map, full,
                        panel * kPanelColumns, keys.begin + granule * kDecodeGranule, unit.head, unit.batch, policy);
        }
      }
      __syncwarp();
      at.advance();
    }
  }
}

// One warp: the block's columns of V of every round's granules.
template <class Tag>
__device__ __forceinline__ void load_values(const DecodeArguments& args, uint32_t smem, int rank, int64_t first,
                                            int64_t step) {
  using Layout = DecodeLayout<Tag>;
  constexpr int kChunk = Tag::kNumbers.chunk_keys;
  UnitWalker<kChunk> walker(args);
  Unit unit;
  StageAt<Layout::kVStages> at;
  const uint64_t policy = read_once_policy();
  for (int64_t number = first; walker.find(number, unit); number += step) {
    const UnitKeys<kChunk> keys(unit);
    const int granules = keys.granules();
    for (int begin = 0; begin < granules; begin += Layout::kCluster) {
      const int count = granules - begin < Layout::kCluster ? granules - begin : Layout::kCluster;
      if (threadIdx.x % 32 == 0) {
        barrier_wait(smem + Layout::kVEmpty + 8 * at.stage, at.parity ^ 1U);
        const uint32_t full = smem + Layout::kVFull + 8 * at.stage;
        barrier_arrive_expect(full, static_cast<uint32_t>(count * kDecodeGranule * Layout::kSlice * 2));
        const uint32_t stage = smem + Layout::kV + at.stage * Layout::kVBytes;
        for (int granule = 0; granule < count; ++granule) {
#pragma unroll
          for (int panel = 0; panel < Layout::kPanels; ++panel) {
            load_box_once(stage + static_cast<uint32_t>((panel * Layout::kCluster + granule) * Layout::kPanelGranule),
                          &args.v_map, full, rank * Layout::kSlice + panel * Layout::kPanel,
                          keys.begin + (begin + granule) * kDecodeGranule, unit.head, unit.batch, policy);
          }
        }
      }
      __syncwarp();
      at.advance();
    }
  }
}

// One warp: Q of every unit.
template <class Tag>
__device__ __forceinline__ void load_queries(const DecodeArguments& args, uint32_t smem, int64_t first, int64_t step) {
  UnitWalker<Tag::kNumbers.chunk_keys> walker(args);
  Unit unit;
  QueryCopy<Tag> queries;
  for (int64_t number = first; walker.find(number, unit); number += step) {
    queries.fetch(args, unit);
    queries.store(smem);
  }
}

template <class Tag>
__device__ __forceinline__ void init_barriers(uint32_t smem) {
  using Layout = DecodeLayout<Tag>;
  for (int s = 0; s < Layout::kKStages; ++s) {
    barrier_init(smem + Layout::kKFull + 8 * s, Tag::kSchedule.paged ? 2 * 32 * kPagedWarps : 1);
    barrier_init(smem + Layout::kKEmpty + 8 * s, kDecodeScoreWarps);
  }
  for (int s = 0; s < Layout::kVStages; ++s) {
    barrier_init(smem + Layout::kVFull + 8 * s, Tag::kSchedule.paged ? 32 * kPagedWarps : 1);
    barrier_init(smem + Layout::kVEmpty + 8 * s, kDecodeOutputWarps);
  }
  for (int s = 0; s < kSlots; ++s) {
    barrier_init(smem + Layout::kQFull + 8 * s, 1);
    barrier_init(smem + Layout::kQEmpty + 8 * s, kDecodeScoreWarps);
    barrier_init(smem + Layout::kMaximaFull + 8 * s, 1);
    barrier_init(smem + Layout::kPFull + 8 * s, 1);
    barrier_init(smem + Layout::kSumsFull + 8 * s, 1);
    barrier_init(smem + Layout::kPEmpty + 8 * s, kDecodeOutputWarps * Layout::kCluster);
  }
  for (int w = 0; w < kDecodeOutputWarps; ++w) {
    barrier_init(smem + Layout::kPartFull + 8 * w, 1);
    barrier_init(smem + Layout::kPartEmpty + 8 * w, 1);
  }
  barrier_init_fence();
}

template <class Tag>
__global__ void __launch_bounds__(kDecodeThreads, 1) fmha_decode_sm90(const __grid_constant__ DecodeArguments args) {
  using Layout = DecodeLayout<Tag>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t smem = shared_address(shared);
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const uint32_t rank = uniform(cluster_rank());
  const int64_t first = blockIdx.x / Layout::kCluster;
  const int64_t step = gridDim.x / Layout::kCluster;
  if (threadIdx.x == 0) {
    if constexpr (!Tag::kSchedule.paged) {
      prefetch_map(&args.k_map);
      prefetch_map(&args.v_map);
    }
    init_barriers<Tag>(smem);
  }
  __syncthreads();
  cluster_arrive();  // a role waits for the others before it first sends
  constexpr int kFirstScore = kDecodeCopyWarps + kDecodeFinishWarps;
  constexpr int kFirstOutput = kFirstScore + kDecodeScoreWarps;
  if (warp < kDecodeCopyWarps) {
    if constexpr (Tag::kSchedule.paged) {
      if (warp < kPagedWarps) {
        load_paged_keys<Tag>(args, smem, warp, static_cast<int>(rank), first, step);
      } else {
        load_paged_values<Tag>(args, smem, warp - kPagedWarps, static_cast<int>(rank), first, step);
      }
    } else if (warp == 0) {
      load_keys<Tag>(args, smem, static_cast<int>(rank), first, step);
    } else if (warp == 1) {
      load_queries<Tag>(args, smem, first, step);
    } else if (warp == 2) {
      load_values<Tag>(args, smem, static_cast<int>(rank), first, step);
    }
    cluster_wait();
  } else if (warp < kFirstScore) {
    FinishRole<Tag>(args, smem, warp - kDecodeCopyWarps, rank).run(first, step);
    cluster_wait();
  } else if (warp < kFirstOutput) {
    ScoreRole<Tag>(args, smem, warp - kFirstScore, rank).run(first, step);
  } else {
    OutputRole<Tag>(args, smem, warp - kFirstOutput, rank).run(first, step);
  }
  __syncwarp();
  // Nobody leaves while others may still send to it.
  cluster_arrive();
  cluster_wait();
}

}  // namespace tessera::sm90
