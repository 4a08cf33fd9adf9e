// What the roles of a prefill kernel share: the rings, the order of the query tiles, and which keys a row sees.
#pragma once

#include <cuda_runtime.h>

#include "kernels/sm90/fmha_prefill/config.h"
#include "kernels/sm90/pipeline.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"
#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace tessera::sm90 {

// One query tile: rows [first_row, first_row + rows) of (batch, head), as far as there are such rows.
struct QueryTile {
  int first_row;
  int rows;
  int head;
  int batch;
  int granules;  // that any of the rows sees; -1: no tile, the block is done
};

// A QueryTile in shared memory, and what of it each consumer sees: (first_row, rows, head, batch), granules, granules
// of the rows of consumers 0, 1, 2.
static_assert(kTileSlotBytes == 32 && most_consumers(64) <= 3);
__device__ __forceinline__ void store_tile(uint32_t slot, const QueryTile& tile) {
  store_shared(slot, make_int4(tile.first_row, tile.rows, tile.head, tile.batch));
  store_shared(slot + 16, tile.granules);
}
__device__ __forceinline__ QueryTile load_tile(uint32_t slot) {
  const int4 x = load_shared_int4(slot);
  return {x.x, x.y, x.z, x.w, load_shared(slot + 16)};
}
__device__ __forceinline__ uint32_t own_granules_slot(uint32_t slot, int consumer) {
  return slot + 20 + 4 * consumer;
}

template <class Tag>
struct PrefillCommon {
  using Layout = PrefillLayout<Tag>;
  static constexpr PrefillNumbers kNumbers = Tag::kNumbers;
  static constexpr PrefillSchedule kSchedule = Tag::kSchedule;
  static constexpr Element kElement = kNumbers.bf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kDim = kNumbers.head_dim;
  static constexpr int kTileKeys = kNumbers.granule_keys;
  static constexpr int kConsumers = kSchedule.consumer_warpgroups;
  static constexpr int kTileSlots = Layout::kTileSlots;
  using Position = RingPosition<kSchedule.stages>;
  using TilePosition = RingPosition<kTileSlots>;

  const PrefillArguments& args;
  uint32_t shared;  // address of the 1024-byte aligned base

  __device__ __forceinline__ Ring q_ring(int warpgroup) const {
    const uint32_t base = shared + Layout::kBarriers + 16 * warpgroup;
    return {base, base + 8};
  }
  __device__ __forceinline__ Ring k_ring() const {
    const uint32_t base = shared + Layout::kBarriers + 16 * kConsumers;
    return {base, base + 8 * kSchedule.stages};
  }
  __device__ __forceinline__ Ring v_ring() const {
    const uint32_t base = shared + Layout::kBarriers + 16 * kConsumers + 16 * kSchedule.stages;
    return {base, base + 8 * kSchedule.stages};
  }
  // Query tiles, from the producer to the consumers and to the threads that feed their Q.
  __device__ __forceinline__ Ring tile_ring() const {
    const uint32_t base = shared + Layout::kBarriers + 16 * kConsumers + 32 * kSchedule.stages;
    return {base, base + 8 * kTileSlots};
  }
  __device__ __forceinline__ uint32_t tile_slot(uint32_t stage) const {
    return shared + Layout::kTiles + Layout::kSlotBytes * stage;
  }
  // Ragged kernels: bit i says that the pool has no page for box i of the keys in this stage.
  __device__ __forceinline__ uint32_t absent_word(uint32_t stage) const { return shared + Layout::kAbsent + 4 * stage; }

  // Ragged kernels: the warp that feeds K has fetched most of another tile.
  __device__ __forceinline__ uint32_t taken() const { return shared + Layout::kTaken; }

  // Ragged kernels: V of this stage is there, but for the cleaner only (ragged_cleaner.cuh).
  __device__ __forceinline__ uint32_t raw(uint32_t stage) const { return shared + Layout::kRaw + 8 * stage; }

  __device__ __forceinline__ void init_barriers() const {
    if constexpr (kSchedule.ragged) {
      barrier_init(taken(), 1);
      for (uint32_t stage = 0; stage < kSchedule.stages; ++stage) {
        barrier_init(raw(stage), 1);
      }
    }
    for (int w = 0; w < kConsumers; ++w) {
      q_ring(w).init(1, 1);
    }
    k_ring().init(kSchedule.stages, kSchedule.ragged ? kWarpgroupWarps * kConsumers : kConsumers);
    v_ring().init(kSchedule.stages, kConsumers);
    // The consumers and the threads that feed their Q; of ragged kernels also the warps of K and V and the cleaner,
    // which at head dim 256 feeds V as well.
    tile_ring().init(kTileSlots, 2 * kConsumers + (kSchedule.ragged ? 2 : 0));
    barrier_init_fence();
  }

  // Tile `index` of the launch's order.
  __device__ __forceinline__ QueryTile tile(int index) const {
    const TileOrder& order = args.order;
    int pair;
    QueryTile query;
    if (index >= order.total) {
      return {0, 0, 0, 0, -1};
    }
    if (index < order.tall) {
      const int per_section = order.section_heads * order.query_tiles;
      const int section = index / per_section;
      const int within = index % per_section;
      const int first = section * order.section_heads;
      const int width = min(order.section_heads, order.heads_and_batch - first);
      pair = first + within % width;
      query.rows = Layout::kBlockM;
      query.first_row = order.first_row + (order.query_tiles - 1 - within / width) * Layout::kBlockM;
    } else {
      const int within = index - order.tall;
      pair = order.heads_and_batch + within / order.low_query_tiles;
      query.rows = Layout::kBlockM - kWarpgroupRows;
      query.first_row = within % order.low_query_tiles * query.rows;
    }
    query.head = pair % args.heads_q;
    query.batch = pair / args.heads_q;
    query.granules = key_tiles(query.first_row, query.rows);
    return query;
  }

  // The rows of one consumer, none if the sequence has no such rows.
  __device__ __forceinline__ QueryTile own_rows(const QueryTile& tile, int consumer) const {
    const int first_row = tile.first_row + consumer * kWarpgroupRows;
    const bool any = consumer * kWarpgroupRows < tile.rows && first_row >= 0;
    return {any ? first_row : args.seqlen_q, kWarpgroupRows, tile.head, tile.batch, 0};
  }

  // R2: keys [0, key_limit) are visible to the query row.
  __device__ __forceinline__ int key_limit(int row) const {
    if constexpr (!kSchedule.causal) {
      return args.seqlen_k;
    } else {
      return max(0, min(args.seqlen_k, row + 1 + args.seqlen_k - args.seqlen_q));
    }
  }
  // Granules that rows [first_row, first_row + rows) see any key of.
  __device__ __forceinline__ int key_tiles(int first_row, int rows) const {
    if (first_row >= args.seqlen_q) {
      return 0;
    }
    return (key_limit(min(first_row + rows, args.seqlen_q) - 1) + kTileKeys - 1) / kTileKeys;
  }
};

}  // namespace tessera::sm90
