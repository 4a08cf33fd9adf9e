// The scheduler of a ragged kernel: one warp of the producer warpgroup draws query tiles, finds their sequences and
// lengths and describes them to the others. Device arrays may hold anything: a length outside its bound is clamped, as
// the sm80 kernels do.
#pragma once

#include "kernels/sm90/fmha_prefill/ragged.cuh"

namespace tessera::sm90 {

// Tokens of a sequence: the first one's index in its tensor and how many there are.
struct TokenRange {
  int first;
  int count;
};

__device__ __forceinline__ TokenRange token_range(const int32_t* cumulative, const int32_t* used, int bound, int b) {
  TokenRange range{0, bound};
  if (cumulative != nullptr) {
    range.first = cumulative[b];
    const int end = cumulative[b + 1];
    range.count = range.first < 0 || end <= range.first ? 0 : min(end - range.first, bound);
    range.first = max(range.first, 0);
  }
  if (used != nullptr) {
    range.count = max(0, min(used[b], range.count));
  }
  return range;
}

template <class Tag>
struct RaggedScheduler : PrefillCommon<Tag> {
  using Base = PrefillCommon<Tag>;
  using Base::args;
  using Base::kConsumers, Base::kTileKeys;
  using typename Base::Layout, typename Base::TilePosition;
  static constexpr unsigned kAllLanes = 0xffffffffU;

  __device__ __forceinline__ static int lane() { return thread_index() % 32; }

  // Tiles per head of the sequences before b.
  __device__ __forceinline__ int tiles_before(int b) const {
    return args.ragged.tile_prefix == nullptr ? b * args.ragged.query_tiles : args.ragged.tile_prefix[b];
  }
  // The sequence of tile `rank` of all sequences' tiles of one head: the last one with no more tiles before it.
  __device__ __forceinline__ int sequence_of(int rank) const {
    if (args.ragged.tile_prefix == nullptr) {
      return rank / args.ragged.query_tiles;
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
  __device__ __forceinline__ void describe(RaggedSlot slot, int index) const {
    const RaggedArguments& r = args.ragged;
    const int rank = index / args.heads_q;
    const int b = sequence_of(rank);
    const int before = tiles_before(b);
    const TokenRange q = token_range(r.cu_seqlens_q, r.seqlens_q, args.seqlen_q, b);
    const TokenRange k = token_range(r.cu_seqlens_k, r.seqlens_k, args.seqlen_k, b);
    const int position0 = r.q_positions != nullptr ? r.q_positions[b] : k.count - q.count;

    // Inside a sequence the last tiles come first, for as many heads at a time as fit the L2 cache.
    const int tiles = (q.count + Layout::kBlockM - 1) / Layout::kBlockM;
    const int64_t wanted_heads = max(r.section_heads, r.section_keys / max(k.count, 1)) * args.group;
    const int section_heads = static_cast<int>(min(wanted_heads, int64_t{args.heads_q}));
    const int within = index - before * args.heads_q;
    const int section = within / (section_heads * tiles);
    const int rest = within - section * section_heads * tiles;
    const int width = min(section_heads, args.heads_q - section * section_heads);
    const int head = section * section_heads + rest % width;
    const int tile = tiles - 1 - rest / width;
    const int last_row = (q.count + kWarpgroupRows - 1) / kWarpgroupRows * kWarpgroupRows;
    const int first_row = last_row - (tiles - tile) * Layout::kBlockM;

    constexpr int64_t kFar = int64_t{1} << 30;
    RaggedSight sight;
    sight.begin_base = static_cast<int>(max(-kFar, min(kFar, position0 - r.left)));
    sight.end_base = static_cast<int>(max(-kFar, min(kFar, position0 + r.right_end)));
    sight.first_key = r.first_key;
    sight.last_key = min(k.count, r.last_key);
    sight.position0 = position0;
    sight.compress_ratio = r.compress_ratio;
    const int begin = sight.begin(max(first_row, 0));
    const int end = sight.end(min(first_row + Layout::kBlockM, q.count) - 1);
    const bool any = begin < end;
    const int first_granule = any ? begin / kTileKeys : 0;
    const int end_granule = any ? (end - 1) / kTileKeys + 1 : 0;

    // Both ends of the keys inside one box, or holes between them.
    const bool unclean = r.mask.data != nullptr || (first_granule + 1 == end_granule && begin % kTileKeys != 0);

    const int t = lane();
    if (t == 0) {
      store_shared(slot.address + 4 * RaggedSlot::kBatch, make_int4(b, head, first_row, q.count));
      store_shared(slot.address + 4 * RaggedSlot::kFirstToken, make_int4(q.first, position0, begin, end));
      store_shared(slot.address + 4 * RaggedSlot::kFirstGranule,
                   make_int4(first_granule, end_granule, k.first, k.count));
      store_shared(slot.address + 4 * RaggedSlot::kBeginBase,
                   make_int4(sight.begin_base, sight.end_base, sight.last_key, unclean ? 1 : 0));
    }
    if (t < kConsumers) {
      const int own_first = first_row + t * kWarpgroupRows;
      const int own_last = min(own_first + kWarpgroupRows, q.count) - 1;
      const int own_begin = sight.begin(own_first);
      const int own_end = sight.end(own_last);
      int4 walk = make_int4(first_granule, first_granule, 0, 0);
      if (own_first >= 0 && own_begin < own_end) {
        walk = make_int4(own_begin / kTileKeys, (own_end - 1) / kTileKeys + 1,
                         (sight.begin(own_last) + kTileKeys - 1) / kTileKeys, max(0, sight.end(own_first)) / kTileKeys);
      }
      store_shared(slot.address + RaggedSlot::kWalks + 16 * t, walk);
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
    const int total = tiles_before(args.ragged.batch) * args.heads_q;
    TilePosition at;
    int index = static_cast<int>(blockIdx.x);
#pragma unroll 1
    while (true) {
      const bool any = index < total;
      const int next = any ? draw_tile(total) : 0;
      barrier_wait(Base::tile_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
      const RaggedSlot slot{Base::tile_slot(at.stage())};
      if (any) {
        describe(slot, index);
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
      at.advance();
      index = next;
    }
  }
};

}  // namespace tessera::sm90
