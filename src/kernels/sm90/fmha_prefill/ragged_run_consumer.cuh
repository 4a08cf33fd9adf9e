// A consumer of a ragged kernel of head dim 128 without modifiers: runs of plain granules as ordinary consumers have
// them (consumer.cuh), and what a granule is to the rows is found beside the matrix work before it. Head dim 64 is
// slower with it where rows see few granules (README.md, section 10).
#pragma once

#include "kernels/sm90/fmha_prefill/ragged_consumer.cuh"

namespace tessera::sm90 {

template <class Tag>
struct RaggedRunConsumer : RaggedConsumer<Tag> {
  using Base = RaggedConsumer<Tag>;
  using Ordinary = OrdinaryConsumer<Tag>;
  using Base::args, Base::k_ring, Base::q_ring, Base::v_ring;
  using Base::kChunkTiles, Base::kElement, Base::kOwnBarrier, Base::kTileKeys;
  using Base::kFresh, Base::kEnds, Base::kBegins, Base::kAbsent, Base::kLast, Base::kAbsentShift, Base::kMasked;
  using Base::slot_of, Base::late_chunk;
  using Base::thread, Base::own_row, Base::round_of, Base::release_query, Base::skip;
  using typename Base::Fragments, typename Base::LateChunk, typename Base::Position, typename Base::TilePosition;

  // Further bits of a granule's kind, between its set and its absent boxes.
  static constexpr uint32_t kUnproved = 64;  // some maximum may move
  // Of the granule and the plain ones behind it: whether the last one of them is the last one of the tile, and how many
  // are behind it.
  static constexpr uint32_t kRunLasts = 128;
  static constexpr uint32_t kRunShift = 8;
  static constexpr uint32_t kRun = (kChunkTiles - 1) << kRunShift;
  static_assert(kRun < 1U << kAbsentShift && (kChunkTiles & (kChunkTiles - 1)) == 0, "kinds: no room for a run");
  // R3 to the letter.
  static constexpr uint32_t kExactRun = kFresh | kUnproved;

  __device__ __forceinline__ static uint32_t kind_of(const RaggedWalk& walk, int j) {
    uint32_t kind = j == walk.first || j % kChunkTiles == 0 ? kFresh : 0U;
    kind |= j >= walk.open_end ? kEnds : 0U;
    kind |= j < walk.open_first ? kBegins : 0U;
    kind |= j + 1 == walk.end ? kLast : 0U;
    return kind;
  }
  __device__ __forceinline__ uint32_t absent_kind(const Position& at) const {
    const uint32_t absent = Base::absent_boxes(at);
    return absent != 0 ? kAbsent | absent << kAbsentShift : 0U;
  }
  // kind_of() but for absent keys, and how many granules follow that are neither masked nor the first ones of their
  // chunk; some of their keys may have no page.
  __device__ __forceinline__ uint32_t run_from(int warpgroup, int j, const Position& at) const {
    const RaggedWalk walk = slot_of(at).walk(warpgroup);
    const int plain = min(min(walk.open_end, walk.end), (j / kChunkTiles + 1) * kChunkTiles);
    const int end = j + 1 < walk.open_first ? j + 1 : max(j + 1, plain);
    return kind_of(walk, j) | (end == walk.end ? kRunLasts : 0U) | static_cast<uint32_t>(end - j - 1) << kRunShift;
  }

  // ---------------------------------------------------------------- one granule

  // Granule j as the thread sees it.
  __device__ __forceinline__ RaggedGranule granule(int warpgroup, int j, const Position& at) const {
    const int t = thread();
    const RaggedSlot slot = slot_of(at);
    return {slot, slot.get(RaggedSlot::kFirstRow) + warpgroup * kWarpgroupRows + own_row(t), j * kTileKeys + t % 4 * 2};
  }
  // What R2 leaves of it, as far as the kind says that it is not all; better asked for beside S.
  __device__ __forceinline__ SeenKeys seen_of(int warpgroup, int j, uint32_t kind, const Position& at) const {
    return (kind & (kEnds | kBegins)) != 0 ? seen_keys(args, granule(warpgroup, j, at)) : SeenKeys{};
  }
  // R2 for a granule.
  __device__ __forceinline__ void mask(Fragments& f, uint32_t kind, const SeenKeys& seen) const {
    if ((kind & (kEnds | kBegins)) != 0) {
      mask_unseen(f.s, seen);
    }
    if ((kind & kAbsent) != 0) {
      mask_absent(args, f.s, kind >> kAbsentShift);
    }
  }

  // As weigh() of ordinary consumers.
  __device__ __forceinline__ void weigh(Fragments& f, int warpgroup, int j, uint32_t kind, const Position& at) const {
    float rescale[kRowsPerThread];
    GranuleSums sums;
#pragma unroll 1
    while (true) {
      Base::issue_scores(f, warpgroup, Base::descriptor_of(at));
      const SeenKeys seen = seen_of(warpgroup, j, kind, at);
      Base::wait_scores(f, warpgroup, at);
      rescale[0] = rescale[1] = 1.0F;
      if ((kind & kMasked) != 0) {
        mask(f, kind, seen);
      }
      if ((kind & kExactRun) != 0 && Base::move(f, kind, rescale)) {
        rescale_output(f.o, rescale);
      }
      sums = weigh_and_round<kElement>(f.s, f.p, f.rows, args.c, args.bias, args.zero);
      if ((kind & kExactRun) != 0 ||
          !any_of_warpgroup(kOwnBarrier + warpgroup, may_move(f.rows, sums, args.move_limit))) {
        break;
      }
      kind |= kUnproved;
    }
    add_sums(f.rows, rescale, sums);
    stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
  }

  // As multiply() of ordinary consumers, for granule j. `next`: run_from() for the one behind it.
  __device__ __forceinline__ void multiply(Fragments& f, int warpgroup, int j, uint32_t kind, const Position& at,
                                           uint32_t& next) const {
    const bool leader = thread() == 0;
    Base::start_output(f, warpgroup, kind, at);
    Base::release_keys_by_warps(at);
    if (leader && (kind & kLast) != 0) {
      release_query(warpgroup);
    }
    if ((kind & kLast) == 0) {
      next = uniform(run_from(warpgroup, j + 1, at));
      k_ring().wait_full(at.next());  // producer: K_{j+1}
    }
    wgmma_wait<0>();
    pin_registers(f.o);
    stamp<Tag>(*this, warpgroup, Event::kOutputDone);
    if (leader) {
      v_ring().release(at);
    }
  }

  // ---------------------------------------------------------------- tiles

  // The end of a granule's chunk or tile, with its P V.
  __device__ __forceinline__ void end_chunk(Fragments& f, int warpgroup, int j, uint32_t kind, const Position& at,
                                            uint32_t& next) const {
    const LateChunk chunk = late_chunk(warpgroup, j / kChunkTiles, at);
    const bool last = (kind & kLast) != 0;
    if (Base::continues(chunk)) {
      const auto far = Base::fetch_far(warpgroup);
      multiply(f, warpgroup, j, kind, at, next);
      Base::close_rows(f);
      Base::chain_chunk(f, far, warpgroup);
    } else {
      multiply(f, warpgroup, j, kind, at, next);
      Base::close_rows(f);
    }
    Base::store_chunk(f, warpgroup, chunk, last);
    stamp<Tag>(*this, warpgroup, Event::kChunkDone);
  }

  // One granule after the other; the other warpgroups multiply while this one computes weights. As with ordinary
  // consumers, runs of plain granules have a loop of their own.
  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, int first, Position& at) const {
    const bool leader = thread() == 0;
    int j = first;
    uint32_t next = uniform(run_from(warpgroup, j, at));
    k_ring().wait_full(at);  // producer: the first K
#pragma unroll 1
    while (true) {
      uint32_t kind = uniform(next | absent_kind(at));
      weigh(f, warpgroup, j, kind, at);
      const bool proved = args.ragged.page_table == nullptr ? attend_plain<false>(f, warpgroup, j, kind, at, leader)
                                                            : attend_plain<true>(f, warpgroup, j, kind, at, leader);
      kind |= (kind & kRunLasts) != 0 ? kLast : 0U;
      if (!proved) {
        next = uniform(run_from(warpgroup, j, at) | kUnproved);
        continue;
      }
      if ((kind & kLast) != 0 || (j + 1) % kChunkTiles == 0) {
        end_chunk(f, warpgroup, j, kind, at, next);
        if ((kind & kLast) != 0) {
          put_state(f, warpgroup);
        }
      } else {
        multiply(f, warpgroup, j, kind, at, next);
      }
      at.advance();
      if ((kind & kLast) != 0) {
        break;
      }
      ++j;
    }
  }
  // (m, l) of the whole rows on the way from attend() to finish(), where R8 keeps those of the chunks before. In
  // registers ptxas carries them through all granules.
  __device__ __forceinline__ void put_state(const Fragments& f, int warpgroup) const {
    __syncwarp();
    if (thread() % 4 == 0) {
      *Base::chain_states(warpgroup) = make_float4(f.closed.m[0], f.closed.m[1], f.closed.l[0], f.closed.l[1]);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void get_state(Fragments& f, int warpgroup) const {
    const float4 state = *Base::chain_states(warpgroup);
    f.closed = {{state.x, state.y}, {state.z, state.w}};
  }
  // P V of granule j, and the plain granules behind it in a loop that has nothing in it that other granules need, but
  // for the P V of the last one: j becomes that granule. False where granule j has keys without a page or has to be
  // weighed exactly.
  template <bool kPaged>
  __device__ __forceinline__ bool attend_plain(Fragments& f, int warpgroup, int& j, uint32_t& kind, Position& at,
                                               bool leader) const {
    uint32_t descriptor = Base::descriptor_of(at);
    const int end = j + 1 + static_cast<int>((kind & kRun) >> kRunShift);
    bool fresh = (kind & kFresh) != 0;
    kind = j + 1 < end ? kind & kRunLasts : kind;
#pragma unroll 1
    while (j + 1 < end) {
      Ordinary::multiply(f, warpgroup, fresh, false, at, leader, descriptor);
      fresh = false;
      at.advance();
      ++j;
      const bool absent = kPaged && Base::absent_boxes(at) != 0;
      if (!Base::weigh_plain(f, warpgroup, at, descriptor, absent)) {
        return false;
      }
    }
    return true;
  }
  // All tiles of the block.
  __device__ __forceinline__ void consume(int warpgroup) const {
    Position at;  // of the next granule in the rings; its top bits count the tiles
#pragma unroll 1
    while (true) {
      Base::tile_ring().wait_full(TilePosition{round_of(at)});
      const int batch = slot_of(at).get(RaggedSlot::kBatch);
      const RaggedWalk walk = slot_of(at).walk(warpgroup);  // of no meaning behind the last tile
      if (uniform(batch) < 0) {
        break;
      }
      stamp<Tag>(*this, warpgroup, Event::kTileTaken);
      Fragments f;
      f.rows.clear();
      const int first = uniform(walk.first);
      const bool any = uniform(walk.first < walk.end);
      skip(warpgroup, uniform(slot_of(at).get(RaggedSlot::kFirstGranule)), first, at);
      q_ring(warpgroup).wait_full(RingPosition<1>{round_of(at)});  // producer: Q of this warpgroup
      stamp<Tag>(*this, warpgroup, Event::kQueryThere);
      if (any) {
        attend(f, warpgroup, first, at);
      } else {
        f.closed.clear();
        put_state(f, warpgroup);
#pragma unroll
        for (int i = 0; i < Base::kOutputs; ++i) {
          f.o[i] = 0.0F;
        }
        named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);  // all have seen Q full
        if (thread() == 0) {
          release_query(warpgroup);
        }
      }
      skip(warpgroup, uniform(slot_of(at).walk(warpgroup).end), uniform(slot_of(at).get(RaggedSlot::kEndGranule)), at);
      stamp<Tag>(*this, warpgroup, Event::kRowsSkipped);
      const RaggedRows rows = RaggedRows::load(slot_of(at), warpgroup);
      if (rows.first_row >= 0) {
        get_state(f, warpgroup);
        Base::finish(f, warpgroup, rows);
      }
      stamp<Tag>(*this, warpgroup, Event::kTileDone);
      Base::release_tile(warpgroup, round_of(at));
      at.use = (at.use & Base::kUseMask) | ((round_of(at) + 1) << Base::kRoundShift);
    }
    if (thread() == 0) {
      store_wait_read();
    }
  }
};

}  // namespace tessera::sm90
