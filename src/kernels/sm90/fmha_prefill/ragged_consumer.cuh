// A consumer of a ragged kernel: an ordinary one (`Base`) whose granules are those that its rows look at, told from the
// tile's slot. What a granule's scores and weights become is the same code.
#pragma once

#include <type_traits>

#include "kernels/sm90/fmha_prefill/consumer.cuh"
#include "kernels/sm90/fmha_prefill/consumer_wide.cuh"
#include "kernels/sm90/fmha_prefill/ragged_mask.cuh"

namespace tessera::sm90 {

template <class Tag>
using OrdinaryConsumer = std::conditional_t<PrefillLayout<Tag>::kWide, PrefillWideConsumer<Tag>, PrefillConsumer<Tag>>;

template <class Tag>
struct RaggedConsumer : OrdinaryConsumer<Tag> {
  using Base = OrdinaryConsumer<Tag>;
  using Base::args, Base::shared;
  using Base::k_ring, Base::q_ring, Base::v_ring;
  using Base::kChunkTiles, Base::kElement, Base::kOwnBarrier, Base::kSchedule, Base::kTileKeys;
  using Base::thread, Base::own_row, Base::round_of, Base::release_query, Base::skip;
  using typename Base::Fragments, typename Base::LateChunk, typename Base::Layout, typename Base::Position,
      typename Base::TilePosition;

  // What a granule is to the consumer's rows. Bits of a set.
  enum Kind : uint32_t {
    kFresh = 1,     // the first one of its chunk
    kEnds = 2,      // keys of it lie behind what some row sees
    kBegins = 4,    // or before that
    kAbsent = 8,    // keys of it have no page
    kChanged = 16,  // softcap, ALiBi, custom bits
    kLast = 32,     // of the tile
  };
  static constexpr uint32_t kAbsentShift = 16;  // above the set: the stage's absent word, of 16 boxes at most
  static constexpr uint32_t kMasked = kEnds | kBegins | kAbsent | kChanged;
  // R3 to the letter. Modified scores are not computed twice.
  static constexpr uint32_t kExact = kFresh | kChanged;

  __device__ __forceinline__ RaggedSlot slot_of(const Position& at) const {
    return {Base::tile_slot(TilePosition{round_of(at)}.stage())};
  }
  // Of granule j, whose K is in stage `at`.
  __device__ __forceinline__ uint32_t kind_of(int warpgroup, int j, const Position& at) const {
    const RaggedWalk walk = slot_of(at).walk(warpgroup);
    const uint32_t absent = absent_boxes(at);
    uint32_t kind = kSchedule.modifiers ? kChanged : 0U;
    kind |= j == walk.first || j % kChunkTiles == 0 ? kFresh : 0U;
    kind |= j >= walk.open_end ? kEnds : 0U;
    kind |= j < walk.open_first ? kBegins : 0U;
    kind |= absent != 0 ? kAbsent | absent << kAbsentShift : 0U;
    kind |= j + 1 == walk.end ? kLast : 0U;
    return uniform(kind);
  }
  // The first lane's answer is its warp's: it alone reads the word, and it is who lets K, and the word, go.
  __device__ __forceinline__ uint32_t absent_boxes(const Position& at) const {
    const bool reads = args.ragged.page_table != nullptr && thread() % 32 == 0;
    return reads ? static_cast<uint32_t>(load_shared(Base::absent_word(at.stage()))) : 0U;
  }
  __device__ __forceinline__ LateChunk late_chunk(int warpgroup, int index, const Position& at) const {
    return {index, uniform(slot_of(at).walk(warpgroup).first) / kChunkTiles};
  }

  // ---------------------------------------------------------------- one granule

  // R2 for granule j, and the modifiers of R1.
  __device__ __forceinline__ void mask(Fragments& f, int warpgroup, int j, uint32_t kind, const Position& at) const {
    const int t = thread();
    const RaggedSlot slot = slot_of(at);
    const RaggedGranule g{slot, slot.get(RaggedSlot::kFirstRow) + warpgroup * kWarpgroupRows + own_row(t),
                          j * kTileKeys + t % 4 * 2};
    if constexpr (kSchedule.modifiers) {
      if (args.ragged.natural) {
        modify_scores(args, f.s, g);
      }
      if (args.ragged.mask.data != nullptr) {
        mask_bits(args, f.s, g);
      }
    }
    if ((kind & kEnds) != 0) {
      mask_ends(args, f.s, g);
    }
    if ((kind & kBegins) != 0) {
      mask_begins(args, f.s, g);
    }
    if ((kind & kAbsent) != 0) {
      mask_absent(args, f.s, kind >> kAbsentShift);
    }
  }

  // R3 for granule j to the letter: what O has to be multiplied with; whether it has to.
  __device__ __forceinline__ bool move(Fragments& f, uint32_t kind, float (&rescale)[kRowsPerThread]) const {
    const bool fresh = (kind & kFresh) != 0;
    if (fresh) {
      f.rows.clear();
    }
    return move_maximum(f.s, f.rows, rescale, args.c, kLazyThreshold) && !fresh;
  }

  // Issues O := [O +] P_j V_j (R6). V is clean: ragged_cleaner.cuh.
  __device__ __forceinline__ void start_output(Fragments& f, int warpgroup, uint32_t kind, const Position& at) const {
    Base::start_output(f, uniform(at.stage()), (kind & kFresh) != 0);
    stamp<Tag>(*this, warpgroup, Event::kOutputIssued);
  }

  // As weigh() of ordinary consumers. `exact` where the kind does not ask for it.
  __device__ __forceinline__ void weigh(Fragments& f, int warpgroup, int j, uint32_t kind, bool exact,
                                        const Position& at) const {
    exact = exact || (kind & kExact) != 0;
    float rescale[kRowsPerThread];
    GranuleSums sums;
#pragma unroll 1
    while (true) {
      Base::compute_scores(f, warpgroup, at, Base::descriptor_of(at));
      rescale[0] = rescale[1] = 1.0F;
      if ((kind & kMasked) != 0) {
        mask(f, warpgroup, j, kind, at);
      }
      if (exact && move(f, kind, rescale)) {
        rescale_output(f.o, rescale);
      }
      sums = weigh_and_round<kElement>(f.s, f.p, f.rows, args.c, args.bias, args.zero);
      if (exact || !any_of_warpgroup(kOwnBarrier + warpgroup, may_move(f.rows, sums, args.move_limit))) {
        break;
      }
      exact = true;
    }
    add_sums(f.rows, rescale, sums);
    stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
  }

  // As multiply() of ordinary consumers.
  __device__ __forceinline__ void multiply(Fragments& f, int warpgroup, uint32_t kind, const Position& at) const {
    const bool leader = thread() == 0;
    start_output(f, warpgroup, kind, at);
    Base::release_keys_by_warps(at);
    if (leader && (kind & kLast) != 0) {
      release_query(warpgroup);
    }
    if ((kind & kLast) == 0) {
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
  __device__ __forceinline__ void end_chunk(Fragments& f, int warpgroup, int index, uint32_t kind,
                                            const Position& at) const {
    const LateChunk chunk = late_chunk(warpgroup, index, at);
    const bool last = (kind & kLast) != 0;
    if (Base::continues(chunk)) {
      const auto far = Base::fetch_far(warpgroup);
      multiply(f, warpgroup, kind, at);
      Base::close_rows(f);
      Base::chain_chunk(f, far, warpgroup);
    } else {
      multiply(f, warpgroup, kind, at);
      Base::close_rows(f);
    }
    Base::store_chunk(f, warpgroup, chunk, last);
    stamp<Tag>(*this, warpgroup, Event::kChunkDone);
  }

  // One granule after the other; the other warpgroups multiply while this one computes weights. As with ordinary
  // consumers, runs of plain granules have a loop of their own.
  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, Position& at) const {
    const bool leader = thread() == 0;
    k_ring().wait_full(at);  // producer: the first K
    int j = uniform(slot_of(at).walk(warpgroup).first);
    bool exact = false;
#pragma unroll 1
    while (true) {
      const uint32_t kind = kind_of(warpgroup, j, at);
      weigh(f, warpgroup, j, kind, exact, at);
      if ((kind & kLast) != 0 || (j + 1) % kChunkTiles == 0) {
        end_chunk(f, warpgroup, j / kChunkTiles, kind, at);
      } else {
        multiply(f, warpgroup, kind, at);
      }
      at.advance();
      if ((kind & kLast) != 0) {
        break;
      }
      ++j;
      exact = false;
      if constexpr (!kSchedule.modifiers) {
        const int end = plain_end(warpgroup, j, at);
        uint32_t descriptor = Base::descriptor_of(at);
#pragma unroll 1
        while (j < end) {
          if (uniform(absent_boxes(at)) != 0) {
            break;
          }
          if (!Base::weigh_plain(f, warpgroup, at, descriptor)) {
            exact = true;
            break;
          }
          Base::multiply(f, warpgroup, false, false, at, leader, descriptor);
          at.advance();
          ++j;
        }
      }
    }
  }
  // Granules [j, plain_end(j)) are neither masked nor the first or last ones of their chunk or tile; some of their keys
  // may have no page.
  __device__ __forceinline__ int plain_end(int warpgroup, int j, const Position& at) const {
    const RaggedWalk walk = slot_of(at).walk(warpgroup);
    const int end = min(min(walk.open_end, walk.end - 1), (j / kChunkTiles + 1) * kChunkTiles - 1);
    return uniform(j < walk.open_first || j % kChunkTiles == 0 ? j : end);
  }

  __device__ __forceinline__ void finish_tile(Fragments& f, int warpgroup, const Position& at) const {
    const RaggedRows rows = RaggedRows::load(slot_of(at), warpgroup);
    if (rows.first_row >= 0) {
      if constexpr (Layout::kWide) {
        const RaggedWalk walk = slot_of(at).walk(warpgroup);
        const int last = uniform(max(walk.first, walk.end - 1)) / kChunkTiles;
        Base::finish_from(f, warpgroup, rows, late_chunk(warpgroup, last, at));
      } else {
        Base::finish(f, warpgroup, rows);
      }
    }
  }

  __device__ __forceinline__ void consume(int warpgroup) const {
    consume_by(*this, warpgroup);
  }
  // All tiles of the block. `self` has attend().
  template <class Self>
  __device__ __forceinline__ void consume_by(const Self& self, int warpgroup) const {
    Position at;  // of the next granule in the rings; its top bits count the tiles
#pragma unroll 1
    while (true) {
      Base::tile_ring().wait_full(TilePosition{round_of(at)});
      if (uniform(slot_of(at).get(RaggedSlot::kBatch)) < 0) {
        break;
      }
      stamp<Tag>(*this, warpgroup, Event::kTileTaken);
      Fragments f;
      f.rows.clear();
      f.closed.clear();
      const int first = uniform(slot_of(at).walk(warpgroup).first);
      skip(warpgroup, uniform(slot_of(at).get(RaggedSlot::kFirstGranule)), first, at);
      q_ring(warpgroup).wait_full(RingPosition<1>{round_of(at)});  // producer: Q of this warpgroup
      stamp<Tag>(*this, warpgroup, Event::kQueryThere);
      if (first < uniform(slot_of(at).walk(warpgroup).end)) {
        self.attend(f, warpgroup, at);
      } else {
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
      finish_tile(f, warpgroup, at);
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
