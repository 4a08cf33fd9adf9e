// What every consumer of a prefill kernel does: its tiles, and with each granule S, softmax, P and P V. A consumer is
// one warpgroup, 64 query rows, keys in ascending granules. Every rounding is one of the rules R1..R9 of
// docs/contract.md; the helpers that apply them are in softmax.cuh. How chunks are chained and rows finished is in
// consumer.cuh and consumer_wide.cuh.
#pragma once

#include <type_traits>

#include "kernels/sm90/fmha_prefill/common.cuh"
#include "kernels/sm90/fmha_prefill/general_finish.cuh"
#include "kernels/sm90/fmha_prefill/ragged_mask.cuh"
#include "kernels/sm90/fmha_prefill/timeline.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

template <class Tag>
struct PrefillGranules : PrefillCommon<Tag> {
  using Base = PrefillCommon<Tag>;
  using Base::args, Base::shared;
  using Base::kConsumers, Base::kDim, Base::kElement, Base::kNumbers, Base::kSchedule, Base::kTileKeys;
  using Base::key_limit, Base::key_tiles, Base::k_ring, Base::q_ring, Base::v_ring;
  using typename Base::Layout, typename Base::Position, typename Base::TilePosition;

  static constexpr int kScores = kTileKeys / 2;  // fp32 per thread of S (64, kTileKeys)
  static constexpr int kOutputs = kDim / 2;      // fp32 per thread of O (64, kDim)
  // A chunk without end is a chunk no sequence fills.
  static constexpr int kChunkTiles = kNumbers.chunk_keys > 0 ? kNumbers.chunk_keys / kTileKeys : 1 << 30;
  // Named barrier 1 + w is warpgroup w alone.
  static constexpr uint32_t kOwnBarrier = 1;

  // A ring needs a use's number modulo 2 kStages, the tile ring and Q's need the tile's modulo 2 kTileSlots (8).
  static constexpr uint32_t kRoundShift = 28;
  static constexpr uint32_t kUseMask = 2 * kSchedule.stages - 1;

  // Whether Q is let go after the tile's last S already; with the general finish there is no register left for it.
  static constexpr bool kEarlyQuery = !kSchedule.general_finish || kSchedule.ragged;
  static constexpr bool kRagged = kSchedule.ragged;

  // The granules of a consumer's rows. The ordinary kernels know all of it from two numbers.
  struct PlainWalk {
    int first_row;
    int first_masked;  // from this granule on some row does not see all keys
  };
  // Ragged kernels read it from the tile's slot at every use, for want of registers; `at` has the slot's number.
  struct LateWalk {
    const PrefillGranules& self;
    const Position& at;
    int warpgroup;

    __device__ __forceinline__ RaggedSlot slot() const { return self.slot_of(round_of(at)); }
    __device__ __forceinline__ int get(int field) const {
      return uniform(load_shared(slot().address + RaggedSlot::kWalks + 16 * warpgroup + 4 * field));
    }
    __device__ __forceinline__ int first() const { return get(0); }
    __device__ __forceinline__ int end() const { return get(1); }
    __device__ __forceinline__ int open_first() const { return get(2); }
    __device__ __forceinline__ int open_end() const { return get(3); }
  };
  using Walk = std::conditional_t<kRagged, LateWalk, PlainWalk>;
  using Rows = std::conditional_t<kRagged, RaggedRows, QueryTile>;  // of a consumer, once its granules are done

  __device__ __forceinline__ RaggedSlot slot_of(uint32_t round) const {
    return {Base::tile_slot(TilePosition{round}.stage())};
  }
  __device__ __forceinline__ Walk walk_of(int warpgroup, const Position& at) const {
    if constexpr (kRagged) {
      return {*this, at, warpgroup};
    } else {
      const int first_row = Base::own_rows(tile_of(round_of(at)), warpgroup).first_row;
      return {first_row, key_limit(first_row) / kTileKeys};
    }
  }
  __device__ __forceinline__ static int first_granule(const Walk& walk) {
    if constexpr (kRagged) {
      return walk.first();
    } else {
      return 0;
    }
  }
  // Whether granule j is the first one of its chunk that the rows look at.
  __device__ __forceinline__ static bool is_fresh(const Walk& walk, int j) {
    if constexpr (kRagged) {
      return j % kChunkTiles == 0 || j == walk.first();
    } else {
      return j % kChunkTiles == 0;
    }
  }
  __device__ __forceinline__ static bool is_masked(const Walk& walk, int j) {
    if constexpr (kRagged) {
      return kSchedule.modifiers || j >= walk.open_end() || j < walk.open_first();
    } else {
      return j >= walk.first_masked;
    }
  }

  __device__ __forceinline__ static uint32_t round_of(const Position& at) { return at.use >> kRoundShift; }

  // Everything a thread carries from granule to granule.
  struct Fragments {
    float s[kScores];            // S, then p
    uint32_t p[kScores / 8][4];  // P, in the registers of S
    float o[kOutputs];           // O of the current chunk
    ChunkRows rows;              // of the current chunk
    StateRows closed;            // (m, l) that belong to O once a chunk has ended
  };

  // Read anew at every use: what is computed from it once per tile shall not sit in registers during the granules.
  __device__ __forceinline__ static int thread() { return thread_index() % kWarpgroupThreads; }
  // First of a thread's two rows within its warpgroup; the other is 8 further.
  __device__ __forceinline__ static int own_row(int thread) { return thread / 32 * 16 + thread % 32 / 4; }

  // This block's tile number `round`, which stays in its slot until release_tile(). It is read there at every use
  // rather than kept in registers.
  __device__ __forceinline__ QueryTile tile_of(uint32_t round) const {
    return load_tile(Base::tile_slot(TilePosition{round}.stage()));
  }
  // Behind the last granule that the consumer's rows of it look at.
  __device__ __forceinline__ int own_granules(int warpgroup, uint32_t round) const {
    if constexpr (kRagged) {
      return uniform(load_shared(slot_of(round).address + RaggedSlot::kWalks + 16 * warpgroup + 4));
    }
    return uniform(load_shared(own_granules_slot(Base::tile_slot(TilePosition{round}.stage()), warpgroup)));
  }
  // All threads of the warpgroup have read it for the last time.
  __device__ __forceinline__ void release_tile(int warpgroup, uint32_t round) const {
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
    if (thread() == 0) {
      Base::tile_ring().release(TilePosition{round});
    }
  }

  // ---------------------------------------------------------------- matrix work

  // Issues S = Q K_j^T (R1).
  __device__ __forceinline__ void start_scores(Fragments& f, int warpgroup, uint32_t stage) const {
    uint32_t q_tile = shared + Layout::kQ + warpgroup * Layout::kQBytes;
    if constexpr (kRagged && Layout::kWide) {
      // Found anew: the descriptors of 16 steps would not fit the uniform registers beside what ragged tiles take.
      q_tile = uniform(static_cast<uint32_t>(opaque(static_cast<int>(q_tile))));
    }
    const uint64_t q = tile_descriptor<KMajorTile>(q_tile);
    const uint64_t k = tile_descriptor<KMajorTile>(shared + Layout::kK + stage * Layout::kKvBytes);
    wgmma_fence();
    wgmma_ss_first<kElement>(f.s, q, k);
#pragma unroll
    for (int step = 1; step < kDim / 16; ++step) {
      wgmma_ss_next<kElement>(f.s, KMajorTile::step(q, kWarpgroupRows, step), KMajorTile::step(k, kTileKeys, step));
    }
    wgmma_commit();
    stamp<Tag>(*this, warpgroup, Event::kScoresIssued);
  }

  // Issues O := [O +] P_j V_j (R6).
  __device__ __forceinline__ void start_output(Fragments& f, uint32_t stage, bool fresh) const {
    using VTile = MnMajorTile<kTileKeys>;
    const uint64_t v = tile_descriptor<VTile>(shared + Layout::kV + stage * Layout::kKvBytes);
    pin_registers(f.o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      wgmma_rs<kElement>(f.o, f.p[step], VTile::step(v, step), step > 0 || !fresh);
    }
    wgmma_commit();
  }

  // ---------------------------------------------------------------- softmax

  __device__ __forceinline__ static void close_rows(Fragments& f) {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      f.closed.m[h] = f.rows.m[h];
      f.closed.l[h] = sum_classes(f.rows.l[h]);
    }
  }

  // R3 and O a of R6 for the scores of a granule.
  __device__ __forceinline__ void move(Fragments& f, bool fresh, float (&rescale)[kRowsPerThread]) const {
    if (fresh) {
      f.rows.clear();
    }
    const bool moved = move_maximum<kNumbers.lazy_max>(f.s, f.rows, rescale, args.c, kLazyThreshold);
    if (moved && !fresh) {
      rescale_output(f.o, rescale);
    }
  }

  // R2, R3 and O a of R6 for granule j.
  __device__ __forceinline__ void mask_and_move(Fragments& f, int j, int first_row, int first_masked,
                                                float (&rescale)[kRowsPerThread]) const {
    if (j >= first_masked) {
      const int t = thread();
      const int first_key = j * kTileKeys + t % 4 * 2;
      const int limit[kRowsPerThread] = {key_limit(first_row + own_row(t)) - first_key,
                                         key_limit(first_row + own_row(t) + 8) - first_key};
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        f.s[i] = i / 4 * 8 + i % 2 < limit[i / 2 % 2] ? f.s[i] : minus_infinity();
      }
    }
    move(f, j % kChunkTiles == 0, rescale);
  }

  // The same in a ragged kernel, and the modifiers of R1. `absent`: boxes of keys that are not there.
  __device__ __forceinline__ void mask_and_move(Fragments& f, int j, const LateWalk& walk, int absent, uint32_t stage,
                                                float (&rescale)[kRowsPerThread]) const {
    const int t = thread();
    const RaggedSlot slot = walk.slot();
    const RaggedGranule g{slot, slot.get(RaggedSlot::kFirstRow) + walk.warpgroup * kWarpgroupRows + own_row(t),
                          j * kTileKeys + t % 4 * 2};
    if (unclean(slot)) {
      clean_values<Tag>(shared + Layout::kV + stage * Layout::kKvBytes, t);
      named_barrier_sync(kOwnBarrier + walk.warpgroup, kWarpgroupThreads);
    }
    if constexpr (kSchedule.modifiers) {
      if (args.ragged.natural) {
        modify_scores(args, f.s, g);
      }
      if (args.ragged.mask.data != nullptr) {
        mask_bits(args, f.s, g);
      }
    }
    if (j >= walk.open_end()) {
      mask_ends(args, f.s, g);
    }
    if (j < walk.open_first()) {
      mask_begins(args, f.s, g);
    }
    if (absent != 0) {
      mask_absent(args, f.s, static_cast<uint32_t>(absent));
    }
    move(f, is_fresh(walk, j), rescale);
  }

  // Ragged kernels: whether the tile's V may hold rows that no query sees and that the copy engine has not cut off.
  __device__ __forceinline__ bool unclean(RaggedSlot slot) const {
    return (kSchedule.modifiers && args.ragged.mask.data != nullptr) ||
           (slot.get(RaggedSlot::kFirstGranule) + 1 == slot.get(RaggedSlot::kEndGranule) &&
            slot.get(RaggedSlot::kFirstKey) % kTileKeys != 0);
  }

  // Softmax and P of granule j, and its S unless that has been issued (kIssued). Where the maximum cannot be known in
  // advance (first granule of a chunk, masked granules) R3 is followed literally. Elsewhere the weights are computed
  // with the maximum so far, and only if their sums do not prove that R3 keeps it, S is computed once more: almost no
  // granule looks for a maximum.
  template <bool kIssued>
  __device__ __forceinline__ void weigh(Fragments& f, int warpgroup, int j, const Walk& walk,
                                        const Position& at) const {
    bool redo = false;
    float rescale[kRowsPerThread];
    GranuleSums sums;
#pragma unroll 1
    while (true) {
      if constexpr (!kIssued) {
        start_scores(f, warpgroup, uniform(at.stage()));
      }
      int absent = 0;
      if constexpr (kRagged) {
        absent = uniform(load_shared(Base::absent_word(at.stage())));
      }
      const bool exact = redo || !kNumbers.lazy_max || is_masked(walk, j) || is_fresh(walk, j) || absent != 0;
      v_ring().wait_full(at);  // producer: V_j, which came with K_j
      wgmma_wait<0>();
      pin_registers(f.s);
      stamp<Tag>(*this, warpgroup, Event::kScoresDone);
      rescale[0] = rescale[1] = 1.0F;
      if (exact) {
        if constexpr (kRagged) {
          mask_and_move(f, j, walk, absent, at.stage(), rescale);
        } else {
          mask_and_move(f, j, walk.first_row, walk.first_masked, rescale);
        }
      }
      sums = weigh_and_round<kElement>(f.s, f.p, f.rows, args.c, args.bias, args.zero);
      if (exact || !any_of_warpgroup(kOwnBarrier + warpgroup, may_move(f.rows, sums, args.move_limit))) {
        break;
      }
      redo = true;
      if constexpr (kIssued) {
        start_scores(f, warpgroup, uniform(at.stage()));
      }
    }
    add_sums(f.rows, rescale, sums);
    stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
  }

  // One thread, no further S of this tile: its Q may be replaced by the next one's.
  __device__ __forceinline__ void release_query(int warpgroup) const {
    q_ring(warpgroup).release(RingPosition<1>{});
  }

  // P V of granule j. In its shadow: the stages of K are let go and waited for.
  __device__ __forceinline__ void multiply(Fragments& f, int warpgroup, int j, int tiles, const Walk& walk,
                                           const Position& at, bool leader) const {
    start_output(f, uniform(at.stage()), is_fresh(walk, j));
    stamp<Tag>(*this, warpgroup, Event::kOutputIssued);
    if (leader) {
      k_ring().release(at);
      if (kEarlyQuery && j + 1 == tiles) {
        release_query(warpgroup);
      }
    }
    if (j + 1 < tiles) {
      k_ring().wait_full(at.next());  // producer: K_{j+1}
    }
    wgmma_wait<0>();
    pin_registers(f.o);
    stamp<Tag>(*this, warpgroup, Event::kOutputDone);
    if (leader) {
      v_ring().release(at);
    }
  }

  // ---------------------------------------------------------------- chunks (R8)

  // Thread-private float4 i of the chunks' chained O, or of the part of it that lies in global scratch.
  __device__ __forceinline__ float4* chain_global(int warpgroup) const {
    return args.chains +
           static_cast<int64_t>(blockIdx.x * kConsumers + warpgroup) * Layout::kChainGlobal * kWarpgroupThreads +
           thread();
  }
  __device__ __forceinline__ float4* superchunk_memory(int warpgroup) const {
    return args.superchunks +
           static_cast<int64_t>(blockIdx.x * kConsumers + warpgroup) * (kOutputs / 4 + 1) * kWarpgroupThreads +
           thread();
  }
  // (m, l) of a thread's rows of the chunks so far; the four threads of a row share it.
  __device__ __forceinline__ float4* chain_states(int warpgroup) const {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    return reinterpret_cast<float4*>(shared_bytes + Layout::kStates + warpgroup * Layout::kStateBytes) + thread() / 4;
  }
  __device__ __forceinline__ static int first_chunk(const Walk& walk) {
    return first_granule(walk) / kChunkTiles;
  }
  // Whether the chunk has others of its superchunk before it.
  __device__ __forceinline__ static bool continues(const Walk& walk, int index) {
    if constexpr (kRagged) {
      return index % kSuperchunkChunks != 0 && index > first_chunk(walk);
    } else {
      return index % kSuperchunkChunks != 0;
    }
  }
  // Whether the chunk's superchunk has others before it.
  __device__ __forceinline__ static bool joins(const Walk& walk, int index) {
    if constexpr (kRagged) {
      return index / kSuperchunkChunks > first_chunk(walk) / kSuperchunkChunks;
    } else {
      return index >= kSuperchunkChunks;
    }
  }
  // Piece i of the thread's O.
  __device__ __forceinline__ static float4 output(const Fragments& f, int i) {
    return make_float4(f.o[4 * i], f.o[4 * i + 1], f.o[4 * i + 2], f.o[4 * i + 3]);
  }

  // The copy engine has read the finished tile that was staged in this warpgroup's chain memory, and every thread is
  // done with its own part of it.
  __device__ __forceinline__ void wait_staging(int warpgroup) const {
    if (thread() == 0) {
      store_wait_read();
    }
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
  }
  // R9: a row's part of `finish`: LSE, and 1 / l in `inverse`. `row` is own_row() of thread t.
  __device__ __forceinline__ void finish_rows(const StateRows& closed, const Rows& query, int t, int row,
                                              float (&inverse)[kRowsPerThread]) const {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const bool none = closed.m[h] == minus_infinity();
      inverse[h] = none ? 0.0F : __frcp_rn(closed.l[h]);
      const int i = query.first_row + row + 8 * h;
      if (args.lse != nullptr && t % 4 == 0 && i < tokens_of(args, query)) {
        args.lse[query.batch * args.lse_stride_batch + token_of(query, i) * args.lse_stride_token +
                 query.head * args.lse_stride_head] =
            none ? minus_infinity()
                 : __fmul_rn(__fadd_rn(soft_log2(closed.l[h]), __fsub_rn(closed.m[h], args.bias)), kLn2);
      }
    }
  }

  // The staged panel of the finished tile that holds columns from `column` on -> O. One thread of the warpgroup.
  __device__ __forceinline__ void store_panel(uint32_t source, int column, int warpgroup, const Rows& query) const {
    if constexpr (kRagged) {
      const RaggedRows rows = RaggedRows::load(query.slot, warpgroup);  // rather than kept in registers
      const ClippedBox box =
          clip_box(rows.first_token + rows.first_row, 0, rows.tokens - rows.first_row, kWarpgroupRows);
      store_clipped_box(&args.o_map, source, column, box.row, box.sum, rows.head,
                        args.ragged.cu_seqlens_q != nullptr ? 0 : rows.batch);
    } else {
      store_box(&args.o_map, source, column, query.first_row, query.head, query.batch);
    }
  }

  // Granules that only other rows of the block see.
  __device__ __forceinline__ void skip(int warpgroup, int tiles, int ring_tiles, Position& at) const {
#pragma unroll 1
    for (int j = tiles; j < ring_tiles; ++j, at.advance()) {
      k_ring().wait_full(at);
      v_ring().wait_full(at);
      // A warp that has not seen the stages full must not meet them full once more.
      named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
      if (thread() == 0) {
        k_ring().release(at);
        v_ring().release(at);
      }
    }
  }

  // ---------------------------------------------------------------- tiles

  // The first granule that the consumer's rows of the tile look at; there is none if own_granules() is not above it.
  __device__ __forceinline__ int first_own_granule(int warpgroup, const Position& at) const {
    if constexpr (kRagged) {
      return walk_of(warpgroup, at).first();
    } else {
      return 0;
    }
  }

  // Waits for the block's next tile, the consumer's Q of it and, with kKeys, the K of its first granule. False: there
  // is no further tile. Granules that only rows above this consumer's see are let go of.
  template <bool kKeys>
  __device__ __forceinline__ bool enter_tile(int warpgroup, Position& at) const {
    const uint32_t round = round_of(at);
    Base::tile_ring().wait_full(TilePosition{round});
    bool any;
    if constexpr (kRagged) {
      any = uniform(slot_of(round).get(RaggedSlot::kBatch)) >= 0;
    } else {
      any = uniform(tile_of(round).granules) >= 0;
    }
    if (any) {
      stamp<Tag>(*this, warpgroup, Event::kTileTaken);
      if constexpr (kRagged) {
        skip(warpgroup, uniform(slot_of(round).get(RaggedSlot::kFirstGranule)), walk_of(warpgroup, at).first(), at);
      }
      q_ring(warpgroup).wait_full(RingPosition<1>{round});  // producer: Q of this warpgroup
      stamp<Tag>(*this, warpgroup, Event::kQueryThere);
      if (kKeys && own_granules(warpgroup, round) > first_own_granule(warpgroup, at)) {
        k_ring().wait_full(at);  // producer: K
      }
    }
    return any;
  }

  // This warpgroup's granules of the tile are done: lets go of what is left of it. `at` moves on to the next tile.
  // Ordinary kernels return their own rows of it; ragged ones keep the slot until finish_tile().
  __device__ __forceinline__ QueryTile leave_tile(int warpgroup, Position& at) const {
    QueryTile own{};
    if constexpr (kRagged) {
      if (own_granules(warpgroup, round_of(at)) <= first_own_granule(warpgroup, at) && thread() == 0) {
        release_query(warpgroup);
      }
      skip(warpgroup, own_granules(warpgroup, round_of(at)),
           uniform(slot_of(round_of(at)).get(RaggedSlot::kEndGranule)), at);
    } else {
      const QueryTile whole = tile_of(round_of(at));
      own = Base::own_rows(whole, warpgroup);
      own.granules = own_granules(warpgroup, round_of(at));
      if ((!kEarlyQuery || own.granules == 0) && thread() == 0) {
        release_query(warpgroup);
      }
      skip(warpgroup, own.granules, uniform(whole.granules), at);
      release_tile(warpgroup, round_of(at));
    }
    stamp<Tag>(*this, warpgroup, Event::kRowsSkipped);
    at.use = (at.use & kUseMask) | ((round_of(at) + 1) << kRoundShift);
    return own;
  }
  // Hands the rows of the tile that was left last to `self`, to finish them.
  template <class Self>
  __device__ __forceinline__ void finish_tile(const Self& self, Fragments& f, int warpgroup, const QueryTile& own,
                                              const Position& at) const {
    if constexpr (kRagged) {
      const Position before{((round_of(at) + 15) % 16) << kRoundShift};
      const RaggedSlot slot = slot_of(round_of(before));
      const LateWalk walk{*this, before, warpgroup};
      self.finish(f, warpgroup, RaggedRows::load(slot, warpgroup), walk, walk.end());
      release_tile(warpgroup, round_of(before));
    } else {
      self.finish(f, warpgroup, own, Walk{}, own.granules);
    }
    stamp<Tag>(*this, warpgroup, Event::kTileDone);
  }

  // All tiles of the block. `self` has attend() and finish().
  template <class Self>
  __device__ __forceinline__ void consume_with(const Self& self, int warpgroup) const {
    Position at;  // of the next granule in the rings; its top bits count the tiles, which saves a register
    while (enter_tile<false>(warpgroup, at)) {
      Fragments f;
      f.rows.clear();
      f.closed.clear();
      if (own_granules(warpgroup, round_of(at)) > first_own_granule(warpgroup, at)) {
        self.attend(f, warpgroup, at);
      } else {
#pragma unroll
        for (float& o : f.o) {
          o = 0.0F;
        }
        named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);  // all have seen Q full
      }
      const QueryTile own = leave_tile(warpgroup, at);
      finish_tile(self, f, warpgroup, own, at);
    }
    if (thread() == 0) {
      store_wait_read();
    }
  }
};

}  // namespace tessera::sm90
