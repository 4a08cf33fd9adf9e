// The scheduler of a ragged kernel: one warp of the producer warpgroup draws query tiles, finds their sequences and
// lengths and describes them to the others.
#pragma once

#include "kernels/sm90/fmha_prefill/ragged.cuh"

namespace tessera::sm90 {

template <class Tag>
struct RaggedScheduler : PrefillCommon<Tag> {
  using Base = PrefillCommon<Tag>;
  using Base::args;
  using Base::kConsumers, Base::kTileKeys;
  using typename Base::Layout, typename Base::TilePosition;

  __device__ __forceinline__ static int lane() { return thread_index() % 32; }

  // Queries have lengths of their own, but so few that each lane keeps the tiles before one of the sequences.
  __device__ __forceinline__ bool few() const {
    const RaggedArguments& r = args.ragged;
    return r.tile_prefix == nullptr && (r.cu_seqlens_q != nullptr || r.seqlens_q != nullptr);
  }
  // Tiles per head of the sequences before the lane's, if few(); in `all` those of all sequences.
  __device__ __forceinline__ int tiles_before_own(int& all) const {
    const RaggedArguments& r = args.ragged;
    all = 0;
    if (!few()) {
      return 0;
    }
    const int tokens = lane() < r.batch ? token_range(r.cu_seqlens_q, r.seqlens_q, args.seqlen_q, lane()).count : 0;
    const int tiles = (tokens + Layout::kBlockM - 1) / Layout::kBlockM;
    int up_to_own = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(kAllLanes, up_to_own, step);
      up_to_own += lane() >= step ? before : 0;
    }
    all = __shfl_sync(kAllLanes, up_to_own, 31);
    return up_to_own - tiles;
  }
  // Tiles per head of the sequences before b.
  __device__ __forceinline__ int tiles_before(int b, int before_own) const {
    if (args.ragged.tile_prefix != nullptr) {
      return args.ragged.tile_prefix[b];
    }
    return few() ? __shfl_sync(kAllLanes, before_own, b) : b * args.ragged.query_tiles;
  }
  // The sequence of tile `rank` of all sequences' tiles of one head: the last one with no more tiles before it.
  __device__ __forceinline__ int sequence_of(int rank, int before_own) const {
    if (args.ragged.tile_prefix == nullptr) {
      return few() ? __popc(__ballot_sync(kAllLanes, lane() < args.ragged.batch && before_own <= rank)) - 1
                   : rank / args.ragged.query_tiles;
    }
    int low = 0;
    int high = args.ragged.batch;
    while (high - low > 1) {
      const int step = (high - low + 31) / 32;
      const int probe = low + lane() * step;
      const bool before = probe < high && args.ragged.tile_prefix[probe] <= rank;
      low += (__popc(__ballot_sync(kAllLanes, before)) - 1) * step;
      high = min(low + step, high);
    }
    return low;
  }

  // Tile `index` of the launch, described at `slot`.
  __device__ __forceinline__ void describe(RaggedSlot slot, int index, int before_own) const {
    const RaggedArguments& r = args.ragged;
    const int rank = index / args.heads_q;
    const int b = sequence_of(rank, before_own);
    const int before = tiles_before(b, before_own);
    const TokenRange q = token_range(r.cu_seqlens_q, r.seqlens_q, args.seqlen_q, b);
    const TokenRange k = token_range(r.cu_seqlens_k, r.seqlens_k, args.seqlen_k, b);
    const int position0 = r.q_positions != nullptr ? r.q_positions[b] : k.count - q.count;

    const RaggedSight sight = sight_of(r, position0, k.count);
    const RaggedTile tile = ragged_tile(r, sight, index - before * args.heads_q, q.count, k.count, args.heads_q,
                                        args.group, Layout::kBlockM, kTileKeys);
    const bool unclean = r.mask.data != nullptr || tile.both_ends_in_one;
    if (lane() != 0) {
      return;  // the lane that says that the slot is full writes all of it
    }
    store_shared(slot.address + 4 * RaggedSlot::kBatch, make_int4(b, tile.head, tile.first_row, q.count));
    store_shared(slot.address + 4 * RaggedSlot::kFirstToken, make_int4(q.first, position0, tile.begin, tile.end));
    store_shared(slot.address + 4 * RaggedSlot::kFirstGranule,
                 make_int4(tile.first_granule, tile.end_granule, k.first, k.count));
    store_shared(slot.address + 4 * RaggedSlot::kBeginBase,
                 make_int4(sight.begin_base, sight.end_base, sight.last_key, unclean ? 1 : 0));
#pragma unroll
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      const RaggedWalk walk = ragged_walk(tile, sight, consumer, q.count, kTileKeys);
      store_shared(slot.address + RaggedSlot::kWalks + 16 * consumer,
                   make_int4(walk.first, walk.end, walk.open_first, walk.open_end));
    }
  }

  // As draw_tile() of the ordinary producer, by the whole warp.
  __device__ __forceinline__ int draw_tile(int total) const {
    int drawn = 0;
    if (lane() == 0) {
      drawn = atomicAdd(args.tile_counter, 1);
      if (drawn == total - 1) {
        *args.tile_counter = 0;
      }
    }
    return __shfl_sync(kAllLanes, drawn, 0) + static_cast<int>(gridDim.x);
  }

  __device__ __forceinline__ void schedule() const {
    int all;
    const int before_own = tiles_before_own(all);
    const int total = (few() ? all : tiles_before(args.ragged.batch, before_own)) * args.heads_q;
    TilePosition at;
    int index = static_cast<int>(blockIdx.x);
#pragma unroll 1
    while (true) {
      const bool any = index < total;
      barrier_wait(Base::tile_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
      const RaggedSlot slot{Base::tile_slot(at.stage())};
      if (any) {
        describe(slot, index, before_own);
      } else if (lane() == 0) {
        store_shared(slot.address + 4 * RaggedSlot::kBatch, -1);
      }
      __syncwarp();
      if (lane() == 0) {
        barrier_arrive(Base::tile_ring().full + 8 * at.stage());
      }
      if (!any) {
        return;
      }
      barrier_wait(Base::taken(), at.use & 1U);  // K: most of this tile has been fetched
      index = draw_tile(total);
      at.advance();
    }
  }
};

}  // namespace tessera::sm90
