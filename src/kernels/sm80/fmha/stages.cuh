// The stages of K and V in shared memory while one query tile meets one segment: which tile of keys is asked for when,
// by whom, and what is waited for. README.md, pipeline, has the picture.
//
// A granule is kTiles tiles of K and as many of V, which are opened (waited for), read and closed in the order
// K 0, K 1, .., V 0, V 1, .., then those of the next granule. Tile i of a tensor lies in stage i mod kStages.
#pragma once

#include <cstdint>

#include "kernels/sm80/fmha/config.h"
#include "kernels/sm80/fmha/ptx.cuh"
#include "kernels/sm80/fmha/tiles.cuh"
#include "kernels/sm80/fmha/visibility.cuh"

namespace tessera::sm80 {

extern __shared__ __align__(128) uint8_t shared_bytes[];

enum class Operand { kK, kV };

template <class Tag>
struct Stages {
  using L = Layout<Tag>;
  static constexpr Schedule kSchedule = Tag::kSchedule;
  static constexpr int kStages = kSchedule.stages;
  static constexpr int kTiles = L::kTiles;
  static constexpr bool kAtNextTile = kSchedule.refill == Refill::kAtNextTile;
  static constexpr bool kAtNextOfTensor = kSchedule.refill == Refill::kAtNextOfTensor;
  static constexpr bool kPoisons = kSchedule.fault != StageFault::kNone;
  static constexpr bool kLoses = kSchedule.fault == StageFault::kPoisonAndLose;
  static constexpr int kLostTile = 1;
  static constexpr bool kStaging = kSchedule.staging_warps > 0;
  // Threads that copy: rows of a tile are dealt to multiples of eight threads, and 96 threads would need twelve rows.
  static constexpr int kCopiers = kStaging            ? kSchedule.staging_warps * kWarpThreads
                                  : L::kWorkers == 96 ? 64
                                                      : L::kWorkers;

  const Arguments& args;
  uint32_t shared;
  int segment;
  int b;
  int head_kv;
  int first_token;
  int first;        // granule, whose first tile is tile 0
  uint32_t staged;  // tiles of K, and of V, that the block has met before; with mbarriers, whose phases go on
  int granules;
  KeyInterval wanted;
  bool paged;

  // Copies asked for behind those of tile t of a granule when it is opened. Between the opening of a tile and that of
  // the one that had its stage before there are S tiles of its tensor and T of the other per end of a granule.
  static constexpr int newer_groups(int t) {
    const int openings = kStages + kTiles * ((kStages - t + kTiles - 1) / kTiles);
    return openings - (kAtNextOfTensor ? 3 : kAtNextTile ? 2 : 1);
  }
  static constexpr bool kHalfAPhaseLater = kSchedule.refill == Refill::kHalfAPhaseLater && !kStaging;
  static_assert(L::kHasBarriers || newer_groups(kTiles - 1) >= 0,
                "refill: a single stage of a part of a granule is filled at once");
  static_assert(!kAtNextOfTensor || (kStages > 1 && kTiles == 1), "refill: allowed with two stages of whole granules");
  static_assert(!kHalfAPhaseLater || kStages >= kTiles, "stages: allowed a whole granule or more with this refill");

  // ---------------------------------------------------------------- filling

  // Of tile i among all of the block.
  __device__ __forceinline__ auto number(int i) const {
    if constexpr (L::kHasBarriers) {
      return staged + static_cast<uint32_t>(i);
    } else {
      return i;
    }
  }

  template <Operand kOperand>
  __device__ __forceinline__ uint32_t stage(int i) const {
    return kOperand == Operand::kK ? shared + L::kK + number(i) % kStages * L::kKBytes
                                   : shared + L::kV + number(i) % kStages * L::kVBytes;
  }

  // One byte per key of tile i: does its page exist.
  __device__ __forceinline__ uint8_t* present(int i) const {
    return shared_bytes + L::kPresent + number(i) / kTiles % L::kPresentSlots * L::kGranule + i % kTiles * L::kTileKeys;
  }

  __device__ __forceinline__ static int copier() { return kStaging ? thread() - L::kWorkers : thread(); }

  // Strides and pages are read anew for every tile: between the tiles their registers belong to S and O.
  template <Operand kOperand>
  __device__ __forceinline__ void copy(int i) const {
    const int same = forget(segment);
    const tessera_kv_segment& its = args.params.segments[same];
    if constexpr (kOperand == Operand::kK) {
      const KeySource k(its, its.k, args.params.head_dim_qk, args.k_vectors[same], b, head_kv, first_token);
      load_keys<L::kTileKeys, L::kQRowBytes, kCopiers>(stage<kOperand>(i), k, (first * kTiles + i) * L::kTileKeys,
                                                       wanted, paged ? present(i) : nullptr, copier());
    } else {
      const KeySource v(its, its.v, args.params.head_dim_v, args.v_vectors[same], b, head_kv, first_token);
      load_keys<L::kTileKeys, L::kVRowBytes, kCopiers>(stage<kOperand>(i), v, (first * kTiles + i) * L::kTileKeys,
                                                       wanted, nullptr, copier());
    }
  }

  template <Operand kOperand, int kThreads>
  __device__ __forceinline__ void poison(int i, int at) const {
    constexpr int kBytes = kOperand == Operand::kK ? L::kKBytes : L::kVBytes;
    constexpr uint32_t kNans = 0xffffffffU;
#pragma unroll 1
    for (int byte = at * kPieceBytes; byte < kBytes; byte += kThreads * kPieceBytes) {
      store_shared(stage<kOperand>(i) + byte, make_uint4(kNans, kNans, kNans, kNans));
    }
  }

  // One group per tile, empty behind the last one, so that the counts of newer_groups hold.
  template <Operand kOperand>
  __device__ __forceinline__ void fill(int i) const {
    if constexpr (kPoisons) {
      poison<kOperand, L::kWorkers>(i, thread());
      __syncthreads();
    }
    if (i < granules * kTiles && (kCopiers == L::kWorkers || thread() < kCopiers) &&
        !(kLoses && kOperand == Operand::kV && i == kLostTile)) {
      copy<kOperand>(i);
    }
    copy_commit();
  }

  // ---------------------------------------------------------------- every thread copies, barriers of the block

  // Before tile 0 is opened: what the tiles of the granules before it would have asked for, empty groups included,
  // which are counted. The last group is left to the first opening where openings fill.
  __device__ __forceinline__ void start() const {
    if constexpr (kAtNextOfTensor) {
#pragma unroll 1
      for (int i = 0; i < kStages - 1; ++i) {
        fill<Operand::kK>(i);
        fill<Operand::kV>(i);
      }
    } else {
      start_all();
    }
  }
  __device__ __forceinline__ void start_all() const {
#pragma unroll 1
    for (int i = -(kStages + kTiles - 1) / kTiles * kTiles; i < 0; i += kTiles) {
#pragma unroll 1
      for (int t = i; t < i + kTiles; ++t) {
        start_with<Operand::kK>(t + kStages);
      }
#pragma unroll 1
      for (int t = i; t < i + kTiles; ++t) {
        if (!kAtNextTile || t < -1) {
          start_with<Operand::kV>(t + kStages);
        }
      }
    }
  }

  template <Operand kOperand>
  __device__ __forceinline__ void start_with(int i) const {
    if (i >= 0) {
      fill<kOperand>(i);
    } else {
      copy_commit();
    }
  }

  // ---------------------------------------------------------------- mbarriers

  // Stages that are full, then stages that are empty.
  template <Operand kOperand>
  __device__ __forceinline__ uint32_t full(int i) const {
    return shared + L::kBarriers + ((kOperand == Operand::kV ? kStages : 0) + number(i) % kStages) * L::kBarrierBytes;
  }
  template <Operand kOperand>
  __device__ __forceinline__ uint32_t empty(int i) const {
    return full<kOperand>(i) + 2 * kStages * L::kBarrierBytes;
  }

  // A stage is full when every copying thread has arrived twice, for its copies and for what it stored itself; it is
  // empty when every thread that owns rows has read it. Each thread arrives for itself, not one for its warp: racecheck
  // orders an arrival by what the arriving thread has read and stored.
  __device__ __forceinline__ static void init_barriers(uint32_t shared) {
    for (int s = 0; s < 2 * kStages; ++s) {
      barrier_init(shared + L::kBarriers + s * L::kBarrierBytes, 2 * kCopiers);
      barrier_init(shared + L::kBarriers + (2 * kStages + s) * L::kBarrierBytes, L::kWorkers);
    }
  }

  template <Operand kOperand>
  __device__ __forceinline__ void wait_until_empty(int i) const {
    barrier_wait(empty<kOperand>(i), (number(i) / kStages + 1) % 2);
  }

  template <Operand kOperand>
  __device__ __forceinline__ void copy_and_arrive(int i) const {
    if (!(kLoses && kOperand == Operand::kV && i == kLostTile)) {
      copy<kOperand>(i);
    }
    barrier_arrive_with_copies(full<kOperand>(i));
    barrier_arrive(full<kOperand>(i));
  }

  // This thread's share of tile i, when every warp has read what is there.
  template <Operand kOperand>
  __device__ __forceinline__ void refill(int i) const {
    if (i >= granules * kTiles) {
      return;
    }
    wait_until_empty<kOperand>(i);
    if constexpr (kPoisons) {
      poison<kOperand, L::kWorkers>(i, thread());
      __syncthreads();
    }
    if (kCopiers == L::kWorkers || thread() < kCopiers) {
      copy_and_arrive<kOperand>(i);
    }
  }

  // Before tile 0 is opened, with kHalfAPhaseLater.
  __device__ __forceinline__ void start_refills() const {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
      refill<Operand::kK>(i);
      refill<Operand::kV>(i);
    }
  }

  template <Operand kOperand>
  __device__ __forceinline__ void stage_tile(int i) const {
    wait_until_empty<kOperand>(i);
    if constexpr (kPoisons) {
      poison<kOperand, kCopiers>(i, copier());
      barrier_of_warps<2, kCopiers>();
    }
    copy_and_arrive<kOperand>(i);
  }

  // All that staging warps do.
  __device__ __forceinline__ void stage_all() const {
#pragma unroll 1
    for (int i = 0; i < granules * kTiles; i += kTiles) {
#pragma unroll 1
      for (int t = 0; t < kTiles; ++t) {
        stage_tile<Operand::kK>(i + t);
      }
#pragma unroll 1
      for (int t = 0; t < kTiles; ++t) {
        stage_tile<Operand::kV>(i + t);
      }
    }
  }

  // ---------------------------------------------------------------- reading

  __device__ __forceinline__ static void wait_for_copies(int t) {  // t is a constant behind unrolling
    if (t == 0) {
      copy_wait<newer_groups(0)>();
    } else if (t == 1) {
      copy_wait<newer_groups(1 % kTiles)>();
    } else if (t == 2) {
      copy_wait<newer_groups(2 % kTiles)>();
    } else {
      copy_wait<newer_groups(3 % kTiles)>();
    }
  }

  // Tile t of the granule whose first tile is `first` may be read.
  template <Operand kOperand>
  __device__ __forceinline__ void open(int first, int t) const {
    const int i = first + t;
    if constexpr (L::kHasBarriers) {
      barrier_wait(full<kOperand>(i), number(i) / kStages % 2);
    } else {
      wait_for_copies(t);
      __syncthreads();  // the copies of all threads have arrived, and the tile opened before has been read
      if constexpr (kAtNextOfTensor) {
        fill<kOperand>(i + kStages - 1);
      } else if constexpr (kAtNextTile) {
        if (t > 0) {
          fill<kOperand>(i - 1 + kStages);
        } else if constexpr (kOperand == Operand::kK) {
          fill<Operand::kV>(i - 1 + kStages);
        } else {
          fill<Operand::kK>(i + kTiles - 1 + kStages);
        }
      }
    }
  }

  // This thread has read tile t.
  template <Operand kOperand>
  __device__ __forceinline__ void close(int first, int t) const {
    const int i = first + t;
    if constexpr (L::kHasBarriers) {
      barrier_arrive(empty<kOperand>(i));
    } else if constexpr (kSchedule.refill == Refill::kBehindProducts) {
      __syncthreads();
      fill<kOperand>(i + kStages);
    }
  }
};

}  // namespace tessera::sm80
