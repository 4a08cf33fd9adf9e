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

  // A ring needs a use's number modulo 2 kStages, the tile ring and Q's need the tile's modulo 2 kTileSlots.
  static constexpr uint32_t kRoundShift = 28;
  static constexpr uint32_t kUseMask = 2 * kSchedule.stages - 1;

  static constexpr bool kRagged = kSchedule.ragged;

  // The granules that a consumer's rows look at, and what each of them is in its chunk.
  struct PlainWalk {
    int end_granule;
    int open_end;  // from here on some row does not see all keys

    __device__ __forceinline__ static int first() { return 0; }
    __device__ __forceinline__ int end() const { return end_granule; }
    __device__ __forceinline__ bool masked(int j) const { return j >= open_end; }
    __device__ __forceinline__ static bool fresh(int j) { return j % kChunkTiles == 0; }
    // Whether the chunk has others of its superchunk before it, and its superchunk others.
    __device__ __forceinline__ static bool continues(int chunk) { return chunk % kSuperchunkChunks != 0; }
    __device__ __forceinline__ static bool joins(int chunk) { return chunk >= kSuperchunkChunks; }
    __device__ __forceinline__ static int first_chunk() { return 0; }
  };
  // Read from the tile's slot at every use, for want of registers. `at` has the slot's number.
  struct LateWalk {
    const PrefillGranules& self;
    const Position& at;
    int warpgroup;

    __device__ __forceinline__ RaggedSlot slot() const { return self.slot_of(at); }
    __device__ __forceinline__ int get(int field) const {
      return uniform(load_shared(slot().address + RaggedSlot::kWalks + 16 * warpgroup + 4 * field));
    }
    __device__ __forceinline__ int first() const { return get(0); }
    __device__ __forceinline__ int end() const { return get(1); }
    __device__ __forceinline__ int open_first() const { return get(2); }
    __device__ __forceinline__ int open_end() const { return get(3); }
    __device__ __forceinline__ bool masked(int j) const {
      return kSchedule.modifiers || j < open_first() || j >= open_end();
    }
    __device__ __forceinline__ bool fresh(int j) const { return j == first() || j % kChunkTiles == 0; }
    __device__ __forceinline__ bool continues(int chunk) const {
      return chunk % kSuperchunkChunks != 0 && chunk > first_chunk();
    }
    __device__ __forceinline__ bool joins(int chunk) const {
      return chunk / kSuperchunkChunks > first_chunk() / kSuperchunkChunks;
    }
    __device__ __forceinline__ int first_chunk() const { return first() / kChunkTiles; }
  };
  using Walk = std::conditional_t<kRagged, LateWalk, PlainWalk>;
  struct NoRows {};
  using WalkRows = std::conditional_t<kRagged, NoRows, QueryTile>;  // what attend() knows of the rows
  using Rows = std::conditional_t<kRagged, RaggedRows, QueryTile>;
  // Whether Q is let go after the tile's last S already; with the general finish there is no register left for it.
  static constexpr bool kEarlyQuery = !kSchedule.general_finish || kRagged;

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

  // The index of this block's tile number `round`.
  __device__ __forceinline__ int take_tile(int warpgroup, uint32_t round) const {
    const TilePosition at{round};
    Base::tile_ring().wait_full(at);
    const int index = load_shared(Base::tile_slot(at.stage()));
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);  // all have read it
    if (thread() == 0) {
      Base::tile_ring().release(at);
    }
    return uniform(index);
  }

  // ---------------------------------------------------------------- matrix work

  // Issues S = Q K_j^T (R1).
  __device__ __forceinline__ void start_scores(Fragments& f, int warpgroup, uint32_t stage) const {
    const uint64_t q = tile_descriptor<KMajorTile>(shared + Layout::kQ + warpgroup * Layout::kQBytes);
    const uint64_t k = tile_descriptor<KMajorTile>(shared + Layout::kK + stage * Layout::kKvBytes);
    wgmma_fence();
    wgmma_ss_first<kElement>(f.s, q, k);
#pragma unroll
    for (int step = 1; step < kDim / 16; ++step) {
      wgmma_ss_next<kElement>(f.s, KMajorTile::step(q, kWarpgroupRows, step), KMajorTile::step(k, kTileKeys, step));
    }
    wgmma_commit();
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

  // R3 and O a of R6 for granule j.
  __device__ __forceinline__ void move(Fragments& f, bool fresh, float (&rescale)[kRowsPerThread]) const {
    if (fresh) {
      f.rows.clear();
    }
    const bool moved = move_maximum<kNumbers.lazy_max>(f.s, f.rows, rescale, args.c, kLazyThreshold);
    if (moved && !fresh) {
      rescale_output(f.o, rescale);
    }
  }

  // R2 for granule j, and the modifiers of R1. Ragged kernels: `absent` has the boxes of keys that are not there.
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
    move(f, walk.fresh(j), rescale);
  }

  // Ragged kernels: whether the tile's V may hold rows that no query sees and that the copy engine has not cut off.
  __device__ __forceinline__ bool unclean(RaggedSlot slot) const {
    return (kSchedule.modifiers && args.ragged.mask.data != nullptr) ||
           (slot.get(RaggedSlot::kFirstGranule) + 1 == slot.get(RaggedSlot::kEndGranule) &&
            slot.get(RaggedSlot::kFirstKey) % kTileKeys != 0);
  }

  // S, softmax and P of granule j. Where the maximum cannot be known in advance (first granule of a chunk, masked
  // granules) R3 is followed literally. Elsewhere the weights are computed with the maximum so far, and only if their
  // sums do not prove that R3 keeps it, S is computed once more: almost no granule looks for a maximum.
  __device__ __forceinline__ void weigh(Fragments& f, int warpgroup, int j, const WalkRows& query, const Walk& walk,
                                        const Position& at) const {
    bool redo = false;
    float rescale[kRowsPerThread];
    GranuleSums sums;
#pragma unroll 1
    while (true) {
      int absent = 0;
      if constexpr (kRagged) {
        absent = uniform(load_shared(Base::absent_word(at.stage())));
      }
      start_scores(f, warpgroup, uniform(at.stage()));
      stamp<Tag>(*this, warpgroup, Event::kScoresIssued);
      const bool exact = redo || !kNumbers.lazy_max || walk.masked(j) || walk.fresh(j) || absent != 0;
      v_ring().wait_full(at);  // producer: V_j, which came with K_j
      wgmma_wait<0>();
      pin_registers(f.s);
      stamp<Tag>(*this, warpgroup, Event::kScoresDone);
      rescale[0] = rescale[1] = 1.0F;
      if (exact) {
        if constexpr (kRagged) {
          mask_and_move(f, j, walk, absent, at.stage(), rescale);
        } else {
          mask_and_move(f, j, query.first_row, walk.open_end, rescale);
        }
      }
      sums = weigh_and_round<kElement>(f.s, f.p, f.rows, args.c, args.bias, args.zero);
      if (exact || !any_of_warpgroup(kOwnBarrier + warpgroup, may_move(f.rows, sums, args.move_limit))) {
        break;
      }
      redo = true;
    }
    add_sums(f.rows, rescale, sums);
    stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
  }

  // One thread, no further S of this tile: its Q may be replaced by the next one's.
  __device__ __forceinline__ void release_query(int warpgroup) const {
    q_ring(warpgroup).release(RingPosition<1>{});
  }

  // P V of granule j. In its shadow: the stages of K are let go and waited for.
  __device__ __forceinline__ void multiply(Fragments& f, int warpgroup, int j, const Walk& walk, const Position& at,
                                           bool leader) const {
    start_output(f, uniform(at.stage()), walk.fresh(j));
    stamp<Tag>(*this, warpgroup, Event::kOutputIssued);
    if (leader) {
      k_ring().release(at);
      if (kEarlyQuery && j + 1 == walk.end()) {
        release_query(warpgroup);
      }
    }
    if (j + 1 < walk.end()) {
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
  __device__ __forceinline__ void store_panel(uint32_t source, int column, const Rows& query) const {
    if constexpr (kRagged) {
      const ClippedBox box =
          clip_box(query.first_token + query.first_row, 0, query.tokens - query.first_row, kWarpgroupRows);
      store_clipped_box(&args.o_map, source, column, box.row, box.sum, query.head,
                        args.ragged.cu_seqlens_q != nullptr ? 0 : query.batch);
    } else {
      store_box(&args.o_map, source, column, query.first_row, query.head, query.batch);
    }
  }

  // This warpgroup's rows of a tile, and the granules they see.
  __device__ __forceinline__ QueryTile own_tile(int index, int warpgroup) const {
    QueryTile query = Base::tile(index);
    const int first_row = query.first_row + warpgroup * kWarpgroupRows;
    const bool any = warpgroup * kWarpgroupRows < query.rows && first_row >= 0;
    query.first_row = any ? first_row : args.seqlen_q;
    return query;
  }
  __device__ __forceinline__ int own_tiles(const QueryTile& query) const {
    return key_tiles(query.first_row, kWarpgroupRows);
  }
  __device__ __forceinline__ PlainWalk own_walk(const QueryTile& query, int /*warpgroup*/,
                                                const Position& /*at*/) const {
    return {own_tiles(query), key_limit(query.first_row) / kTileKeys};
  }
  __device__ __forceinline__ LateWalk own_walk(NoRows /*query*/, int warpgroup, const Position& at) const {
    return {*this, at, warpgroup};
  }
  __device__ __forceinline__ RaggedSlot slot_of(const Position& at) const {
    return {Base::tile_slot(TilePosition{at.use >> kRoundShift}.stage())};
  }
  __device__ __forceinline__ static RaggedRows own_rows(RaggedSlot slot, int warpgroup) {
    const int4 place = slot.vector(RaggedSlot::kBatch);
    return {place.z + warpgroup * kWarpgroupRows, place.y, place.x, place.w, slot.get(RaggedSlot::kFirstToken)};
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

  // All tiles of the block. `self` has attend() and finish().
  template <class Self>
  __device__ __forceinline__ void consume_with(const Self& self, int warpgroup) const {
    Position at;  // of the next granule in the rings; its top bits count the tiles, which saves a register
    for (int index = take_tile(warpgroup, 0); index < args.order.total;
         index = take_tile(warpgroup, at.use >> kRoundShift)) {
      stamp<Tag>(*this, warpgroup, Event::kTileTaken);
      Fragments f;
      f.rows.clear();
      f.closed.clear();
      q_ring(warpgroup).wait_full(RingPosition<1>{at.use >> kRoundShift});  // producer: Q of this warpgroup
      stamp<Tag>(*this, warpgroup, Event::kQueryThere);
      if (const QueryTile query = own_tile(index, warpgroup); own_tiles(query) > 0) {
        self.attend(f, warpgroup, query, at);
      } else {
#pragma unroll
        for (float& o : f.o) {
          o = 0.0F;
        }
        named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);  // all have seen Q full
      }
      index = opaque(index);  // the tile is worked out again rather than kept in registers
      const QueryTile query = own_tile(index, warpgroup);
      if ((!kEarlyQuery || own_tiles(query) == 0) && thread() == 0) {
        release_query(warpgroup);
      }
      const QueryTile whole = Base::tile(index);
      skip(warpgroup, own_tiles(query), key_tiles(whole.first_row, whole.rows), at);
      stamp<Tag>(*this, warpgroup, Event::kRowsSkipped);
      self.finish(f, warpgroup, query, own_walk(query, warpgroup, at));
      stamp<Tag>(*this, warpgroup, Event::kTileDone);
      at.use = (at.use & kUseMask) | (((at.use >> kRoundShift) + 1) << kRoundShift);
    }
    if (thread() == 0) {
      store_wait_read();
    }
  }

  // The same in a ragged kernel, where the scheduler describes the tiles.
  template <class Self>
  __device__ __forceinline__ void consume_ragged(const Self& self, int warpgroup) const {
    Position at;
    const LateWalk walk = own_walk(NoRows{}, warpgroup, at);
#pragma unroll 1
    while (true) {
      Base::tile_ring().wait_full(TilePosition{at.use >> kRoundShift});
      if (uniform(walk.slot().get(RaggedSlot::kBatch)) < 0) {
        break;
      }
      Fragments f;
      f.rows.clear();
      f.closed.clear();
      skip(warpgroup, uniform(walk.slot().get(RaggedSlot::kFirstGranule)), walk.first(), at);
      q_ring(warpgroup).wait_full(RingPosition<1>{at.use >> kRoundShift});  // producer: Q of this warpgroup
      if (walk.first() < walk.end()) {
        self.attend(f, warpgroup, NoRows{}, at);
      } else {
#pragma unroll
        for (float& o : f.o) {
          o = 0.0F;
        }
        named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);  // all have seen Q full
      }
      if ((!kEarlyQuery || walk.first() >= walk.end()) && thread() == 0) {
        release_query(warpgroup);
      }
      skip(warpgroup, walk.end(), uniform(walk.slot().get(RaggedSlot::kEndGranule)), at);
      self.finish(f, warpgroup, own_rows(walk.slot(), warpgroup), walk);
      __syncwarp();  // the slot has been read
      if (thread() % 32 == 0) {
        Base::tile_ring().release(TilePosition{at.use >> kRoundShift});
      }
      at.use = (at.use & kUseMask) | (((at.use >> kRoundShift) + 1) << kRoundShift);
    }
    if (thread() == 0) {
      store_wait_read();
    }
  }
};

}  // namespace tessera::sm90
