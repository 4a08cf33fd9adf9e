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

// Named barriers: of all warps, every mbarrier is set up; of the copying warps, those of units are.
inline constexpr uint32_t kStartBarrier = 4;
inline constexpr uint32_t kUnitBarrier = 5;

template <class Tag>
__device__ __forceinline__ void start(bool wait) {
  using Layout = DecodeLayout<Tag>;
  if (wait) {
    named_barrier_sync(kStartBarrier, Layout::kThreads);
  } else {
    named_barrier_arrive(kStartBarrier, Layout::kThreads);
  }
  if constexpr (Tag::kSchedule.cluster > 1) {
    cluster_arrive();  // a role waits for the others before it first sends
  }
}

// One warp: K of the block's granules.
template <class Tag>
__device__ __forceinline__ void load_keys(const DecodeArguments& args, uint32_t smem, int rank) {
  using Layout = DecodeLayout<Tag>;
  constexpr int kChunk = Tag::kNumbers.chunk_keys;
  UnitDispatcher<Tag> units(args, smem);
  Unit unit;
  StageAt<Layout::kKStages> at;
  const uint64_t policy = read_once_policy();
  while (units.next(unit)) {
    const UnitKeys<Tag> keys(unit);
    const int granules = keys.granules();
    const int ask_at = max(rank, granules - kAskAhead);
#pragma unroll 1
    for (int granule = rank; granule < max(granules, 1); granule += Layout::kCluster) {
      if (granule == ask_at) {
        units.ask();
      }
      if (granule == granules) {
        break;
      }
      if (threadIdx.x % 32 == 0) {
        barrier_wait(smem + Layout::kKEmpty + 8 * at.stage, at.parity ^ 1U);
        const uint32_t full = smem + Layout::kKFull + 8 * at.stage;
        barrier_arrive_expect(full, Layout::kKBytes);
        const uint32_t stage = smem + Layout::kK + at.stage * Layout::kKBytes;
#pragma unroll
        for (int panel = 0; panel < Layout::kHeadDim / kPanelColumns; ++panel) {
          load_box_as(stage + static_cast<uint32_t>(panel * panel_bytes(Layout::kGranule)), &args.k_map, full,
                      panel * kPanelColumns, keys.begin + granule * Layout::kGranule, unit.kv_head, unit.batch, policy);
        }
      }
      __syncwarp();
      at.advance();
    }
  }
}

// One warp: the block's columns of V of every pass's granules.
template <class Tag>
__device__ __forceinline__ void load_values(const DecodeArguments& args, uint32_t smem, int rank) {
  using Layout = DecodeLayout<Tag>;
  constexpr int kChunk = Tag::kNumbers.chunk_keys;
  UnitReader<Tag> units(smem);
  Unit unit;
  StageAt<Layout::kVStages> at;
  const uint64_t policy = read_once_policy();
  while (units.next(unit)) {
    const UnitKeys<Tag> keys(unit);
    const int granules = keys.granules();
#pragma unroll 1
    for (int begin = 0; begin < granules; begin += Layout::kCluster) {
      const int count = granules - begin < Layout::kCluster ? granules - begin : Layout::kCluster;
      if (threadIdx.x % 32 == 0) {
        barrier_wait(smem + Layout::kVEmpty + 8 * at.stage, at.parity ^ 1U);
        const uint32_t full = smem + Layout::kVFull + 8 * at.stage;
        barrier_arrive_expect(full, static_cast<uint32_t>(count * Layout::kGranule * Layout::kSlice * 2));
        const uint32_t stage = smem + Layout::kV + at.stage * Layout::kVBytes;
#pragma unroll 1
        for (int granule = 0; granule < count; ++granule) {
#pragma unroll
          for (int panel = 0; panel < Layout::kPanels; ++panel) {
            load_box_as(stage + static_cast<uint32_t>((panel * Layout::kCluster + granule) * Layout::kPanelGranule),
                        &args.v_map, full, rank * Layout::kSlice + panel * Layout::kPanel,
                        keys.begin + (begin + granule) * Layout::kGranule, unit.kv_head, unit.batch, policy);
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
__device__ __forceinline__ void load_queries(const DecodeArguments& args, uint32_t smem) {
  UnitReader<Tag> units(smem);
  Unit unit;
  QueryCopy<Tag> queries;
  while (units.next(unit)) {
    queries.copy(args, smem, unit);
  }
}

// Warps that read what the first K warp publishes: the other copying ones and all of the other roles.
template <class Tag>
inline constexpr int kUnitReaders = (Tag::kSchedule.paged ? 3 : 2) + DecodeLayout<Tag>::kUsefulWarps
                                    + DecodeLayout<Tag>::kScoreWarps + kDecodeOutputWarps;

// Barriers of one role's ring, set up by the thread that fills it, so that its first copies wait for nobody.
template <class Tag>
__device__ __forceinline__ void init_key_barriers(uint32_t smem) {
  using Layout = DecodeLayout<Tag>;
  for (int s = 0; s < Layout::kKStages; ++s) {
    barrier_init(smem + Layout::kKFull + 8 * s, Tag::kSchedule.paged ? 2 * 32 * kPagedWarps : 1);
    barrier_init(smem + Layout::kKEmpty + 8 * s, Layout::kScoreWarps);
  }
  for (int s = 0; s < kUnitSlots; ++s) {
    barrier_init(smem + Layout::kUnitFull + 8 * s, 1);
    barrier_init(smem + Layout::kUnitEmpty + 8 * s, kUnitReaders<Tag>);
  }
  barrier_init_fence();
}
template <class Tag>
__device__ __forceinline__ void init_value_barriers(uint32_t smem) {
  using Layout = DecodeLayout<Tag>;
  for (int s = 0; s < Layout::kVStages; ++s) {
    barrier_init(smem + Layout::kVFull + 8 * s, Tag::kSchedule.paged ? 32 * kPagedWarps : 1);
    barrier_init(smem + Layout::kVEmpty + 8 * s, kDecodeOutputWarps);
  }
  barrier_init_fence();
}
template <class Tag>
__device__ __forceinline__ void init_query_barriers(uint32_t smem) {
  using Layout = DecodeLayout<Tag>;
  for (int s = 0; s < kSlots; ++s) {
    barrier_init(smem + Layout::kQFull + 8 * s, 1);
    barrier_init(smem + Layout::kQEmpty + 8 * s, Layout::kScoreWarps);
  }
  barrier_init_fence();
}
template <class Tag>
__device__ __forceinline__ void init_other_barriers(uint32_t smem) {
  using Layout = DecodeLayout<Tag>;
  constexpr bool kAlone = Layout::kCluster == 1;  // warps arrive, else one arrival and bytes
  for (int s = 0; s < kSlots; ++s) {
    barrier_init(smem + Layout::kMaximaFull + 8 * s, 1);
    barrier_init(smem + Layout::kPFull + 8 * s, kAlone ? Layout::kScoreWarps : 1);
    barrier_init(smem + Layout::kSumsFull + 8 * s, kAlone ? kDecodeClasses * Layout::kRows / 32 : 1);
    barrier_init(smem + Layout::kPEmpty + 8 * s, kDecodeOutputWarps * Layout::kCluster);
  }
  for (int w = 0; w < kDecodeOutputWarps; ++w) {
    barrier_init(smem + Layout::kPartFull + 8 * w, 1);
    barrier_init(smem + Layout::kPartEmpty + 8 * w, 1);
  }
  barrier_init_fence();
}

template <class Tag>
__global__ void __launch_bounds__(DecodeLayout<Tag>::kThreads, 1)
    fmha_decode_sm90(const __grid_constant__ DecodeArguments args) {
  using Layout = DecodeLayout<Tag>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t smem = shared_address(shared);
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const bool one = threadIdx.x % 32 == 0;
  const uint32_t rank = Layout::kCluster > 1 ? uniform(cluster_rank()) : 0;
  constexpr int kFirstScore = kDecodeCopyWarps + kDecodeFinishWarps;
  constexpr int kFirstOutput = kFirstScore + Layout::kScoreWarps;
  if (warp < kDecodeCopyWarps) {
    if (warp == 0 && one) {
      init_key_barriers<Tag>(smem);
    }
    if (warp == 1 && one) {
      init_query_barriers<Tag>(smem);
    }
    if (warp == 2 && one) {
      init_value_barriers<Tag>(smem);
    }
    __syncwarp();
    if constexpr (Tag::kSchedule.paged) {
      start<Tag>(true);
      if (warp < kPagedWarps) {
        load_paged_keys<Tag>(args, smem, warp, static_cast<int>(rank));
      } else {
        load_paged_values<Tag>(args, smem, warp - kPagedWarps, static_cast<int>(rank));
      }
    } else if (warp == 0) {
      named_barrier_arrive(kUnitBarrier, 96);
      start<Tag>(false);
      load_keys<Tag>(args, smem, static_cast<int>(rank));
    } else if (warp == 2) {
      named_barrier_sync(kUnitBarrier, 96);
      start<Tag>(false);
      load_values<Tag>(args, smem, static_cast<int>(rank));
    } else if (warp == 1) {
      named_barrier_sync(kUnitBarrier, 96);
      start<Tag>(false);
      load_queries<Tag>(args, smem);
    } else {
      start<Tag>(true);
    }
    if constexpr (Layout::kCluster > 1) {
      __syncwarp();
      cluster_wait();
    }
  } else if (warp < kFirstScore) {
    if (warp == kDecodeCopyWarps && one) {
      init_other_barriers<Tag>(smem);
    }
    __syncwarp();
    start<Tag>(true);
    FinishRole<Tag>(args, smem, warp - kDecodeCopyWarps, rank).run();
    if constexpr (Layout::kCluster > 1) {
      __syncwarp();
      cluster_wait();
    }
  } else if (warp < kFirstOutput) {
    start<Tag>(true);
    ScoreRole<Tag>(args, smem, warp - kFirstScore, rank).run();
  } else {
    start<Tag>(true);
    OutputRole<Tag>(args, smem, warp - kFirstOutput, rank).run();
  }
}

}  // namespace tessera::sm90
