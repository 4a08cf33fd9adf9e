// What every consumer of a prefill kernel does: its tiles, and with each granule S, softmax, P and P V. A consumer is
// one warpgroup, 64 query rows, keys in ascending granules. Every rounding is one of the rules R1..R9 of
// docs/contract.md; the helpers that apply them are in softmax.cuh. How chunks are chained and rows finished is in
// consumer.cuh and consumer_wide.cuh.
#pragma once

#include "kernels/sm90/fmha_prefill/common.cuh"
#include "kernels/sm90/fmha_prefill/general_finish.cuh"
#include "kernels/sm90/fmha_prefill/timeline.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

template <class Tag>
struct PrefillGranules : PrefillCommon<Tag> {
  using Base = PrefillCommon<Tag>;
  using Base::args, Base::shared;
  using Base::kConsumers, Base::kElement, Base::kNumbers, Base::kSchedule, Base::kTileKeys;
  using Base::key_limit, Base::key_tiles, Base::k_ring, Base::q_ring, Base::v_ring;
  using typename Base::Layout, typename Base::Position, typename Base::TilePosition;

  static constexpr int kScores = kTileKeys / 2;           // fp32 per thread of S (64, kTileKeys)
  static constexpr int kOutputs = kNumbers.dims_v() / 2;  // fp32 per thread of O (64, dims of V)
  // A chunk without end is a chunk no sequence fills.
  static constexpr int kChunkTiles = kNumbers.chunk_keys > 0 ? kNumbers.chunk_keys / kTileKeys : 1 << 20;
  // Named barrier 1 + w is warpgroup w alone.
  static constexpr uint32_t kOwnBarrier = 1;

  // A ring needs a use's number modulo 2 kStages, the tile ring and Q's need the tile's modulo 2 kTileSlots (8).
  static constexpr uint32_t kRoundShift = 28;
  static constexpr uint32_t kUseMask = 2 * kSchedule.stages - 1;

  // Whether Q is let go after the tile's last S already; with the general finish there is no register left for it.
  static constexpr bool kEarlyQuery = !kSchedule.general_finish;

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
  // Granules that the consumer's rows of it see.
  __device__ __forceinline__ int own_granules(int warpgroup, uint32_t round) const {
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

  // A granule, or the half of it among which are all keys that any of the consumer's rows sees. Those of the other half
  // have weights of +0, which move no sum of R6 or R7: nobody computes them.
  template <int kPartKeys>
  struct Part {
    static constexpr int kKeys = kPartKeys;
    static constexpr int kScores = kKeys / 2;  // fp32 per thread

    __device__ __forceinline__ static float (&scores(Fragments& f))[kScores] {
      return reinterpret_cast<float(&)[kScores]>(f.s);
    }
    __device__ __forceinline__ static uint32_t (&weights(Fragments& f))[kScores / 8][4] {
      return reinterpret_cast<uint32_t(&)[kScores / 8][4]>(f.p);
    }
  };
  using Whole = Part<kTileKeys>;
  using Half = Part<kTileKeys / 2>;

  // Low word of the matrix descriptor of K in a stage; V's is kKeysToValues further. Loops carry it along, or the
  // tensor cores would wait for its arithmetic between P V and the next S.
  __device__ __forceinline__ uint32_t descriptor_of(const Position& at) const {
    return static_cast<uint32_t>(
        tile_descriptor<KMajorTile>(shared + Layout::kK + uniform(at.stage()) * Layout::kKvBytes));
  }
  // Of the stage after `at`.
  __device__ __forceinline__ static uint32_t next_descriptor(uint32_t k, const Position& at) {
    constexpr uint32_t kStep = Layout::kKvBytes >> 4;
    return at.next().stage() == 0 ? k - (kSchedule.stages - 1) * kStep : k + kStep;
  }

  // Issues S = Q K_j^T (R1).
  template <class Keys = Whole>
  __device__ __forceinline__ void start_scores(Fragments& f, int warpgroup, uint32_t stage) const {
    issue_scores<Keys>(f, warpgroup, descriptor_of(Position{stage}));
  }
  template <class Keys = Whole>
  __device__ __forceinline__ void issue_scores(Fragments& f, int warpgroup, uint32_t descriptor) const {
    const uint64_t q = tile_descriptor<KMajorTile>(shared + Layout::kQ + warpgroup * Layout::kQBytes);
    const uint64_t k = with_low_word(KMajorTile::kFlags, descriptor);
    auto& s = Keys::scores(f);
    wgmma_fence();
    wgmma_ss_first<kElement>(s, q, k);
#pragma unroll
    for (int step = 1; step < kNumbers.dims_qk() / 16; ++step) {
      wgmma_ss_next<kElement>(s, KMajorTile::step(q, kWarpgroupRows, step), KMajorTile::step(k, kTileKeys, step));
    }
    wgmma_commit();
  }

  // Issues O := [O +] P_j V_j (R6).
  using VTile = MnMajorTile<kTileKeys>;
  static constexpr uint32_t kKeysToValues =
      static_cast<uint32_t>(VTile::kFlags - KMajorTile::kFlags) + (static_cast<uint32_t>(Layout::kV - Layout::kK) >> 4);
  template <class Keys = Whole>
  __device__ __forceinline__ void start_output(Fragments& f, uint32_t stage, bool fresh) const {
    issue_output<Keys>(f, descriptor_of(Position{stage}), fresh);
  }
  template <class Keys>
  __device__ __forceinline__ void issue_output(Fragments& f, uint32_t descriptor, bool fresh) const {
    const uint64_t v = with_low_word(VTile::kFlags, descriptor + kKeysToValues);
    pin_registers(f.o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Keys::kKeys / 16; ++step) {
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

  // R2 for granule j.
  template <class Keys = Whole>
  __device__ __forceinline__ void mask(Fragments& f, int j, int first_row, int first_masked) const {
    if (j >= first_masked) {
      const int t = thread();
      const int first_key = j * kTileKeys + t % 4 * 2;
      auto& scores = Keys::scores(f);
#pragma unroll
      for (int h = 0; h < kRowsPerThread; ++h) {
        // Of a row a thread holds two of every eight keys, ascending: those that are seen come first. Bits, because
        // ptxas has them seven at a time.
        const int limit = max(0, key_limit(first_row + own_row(t) + 8 * h) - first_key);
        const int seen = limit / 8 * 2 + min(limit % 8, 2);
        const uint32_t bits = seen >= 32 ? 0xffffffffU : (1U << seen) - 1U;
#pragma unroll
        for (int i = 0; i < Keys::kScores / 2; ++i) {
          float& s = scores[i / 2 * 4 + 2 * h + i % 2];
          s = (bits >> i & 1U) != 0 ? s : minus_infinity();
        }
      }
    }
  }
  // R3 for granule j. Whether O has to follow with O a of R6.
  template <class Keys = Whole>
  __device__ __forceinline__ bool move(Fragments& f, int j, float (&rescale)[kRowsPerThread]) const {
    const bool fresh = j % kChunkTiles == 0;
    if (fresh) {
      f.rows.clear();
    }
    return move_maximum(Keys::scores(f), f.rows, rescale, args.c, kLazyThreshold) && !fresh;
  }
  // S of a granule, complete.
  template <class Keys = Whole>
  __device__ __forceinline__ void compute_scores(Fragments& f, int warpgroup, const Position& at,
                                                 uint32_t descriptor) const {
    issue_scores<Keys>(f, warpgroup, descriptor);
    wait_scores<Keys>(f, warpgroup, at);
  }
  template <class Keys = Whole>
  __device__ __forceinline__ void wait_scores(Fragments& f, int warpgroup, const Position& at) const {
    stamp<Tag>(*this, warpgroup, Event::kScoresIssued);
    v_ring().wait_full(at);  // producer: V_j, which came with K_j
    wgmma_wait<0>();
    pin_registers(Keys::scores(f));
    stamp<Tag>(*this, warpgroup, Event::kScoresDone);
  }

  // S, softmax and P of granule j. With `exact` R3 is followed literally, as in the first granule of a chunk. Elsewhere
  // the weights are computed with the maximum so far, and only if their sums do not prove that R3 keeps it, S is
  // computed once more: almost no granule looks for a maximum.
  template <class Keys = Whole>
  __device__ __forceinline__ void weigh(Fragments& f, int warpgroup, int j, bool exact, int first_row, int first_masked,
                                        const Position& at) const {
    float rescale[kRowsPerThread];
    GranuleSums sums;
#pragma unroll 1
    while (true) {
      compute_scores<Keys>(f, warpgroup, at, descriptor_of(at));
      mask<Keys>(f, j, first_row, first_masked);
      rescale[0] = rescale[1] = 1.0F;
      if (exact && move<Keys>(f, j, rescale)) {
        rescale_output(f.o, rescale);
      }
      sums = weigh_and_round<kElement>(Keys::scores(f), Keys::weights(f), f.rows, args.c, args.bias, args.zero);
      if (exact || !any_of_warpgroup(kOwnBarrier + warpgroup, may_move(f.rows, sums, args.move_limit))) {
        break;
      }
      exact = true;
    }
    add_sums(f.rows, rescale, sums);
    stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
  }
  // The same for a granule that is neither the first one of its chunk nor masked. False, with nothing changed, where it
  // has to be weighed exactly, or where any thread of the warpgroup has a `veto`.
  __device__ __forceinline__ bool weigh_plain(Fragments& f, int warpgroup, const Position& at, uint32_t descriptor,
                                              bool veto = false) const {
    compute_scores(f, warpgroup, at, descriptor);
    const GranuleSums sums = weigh_and_round<kElement, true>(f.s, f.p, f.rows, args.c, args.bias, args.zero);
    if (any_of_warpgroup(kOwnBarrier + warpgroup, veto || may_move(f.rows, sums, args.move_limit))) {
      return false;
    }
    const float keep[kRowsPerThread] = {1.0F, 1.0F};
    add_sums(f.rows, keep, sums);
    stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
    return true;
  }

  // K of a granule may go. Ordinary kernels: the leader says so for its warpgroup, when wgmma is done with K in all
  // warps. Ragged ones: every warp for itself, because its first lane has read the absent word as well.
  __device__ __forceinline__ void release_keys_by_leader(const Position& at) const {
    if constexpr (!kSchedule.ragged) {
      k_ring().release(at);
    }
  }
  __device__ __forceinline__ void release_keys_by_warps(const Position& at) const {
    if constexpr (kSchedule.ragged) {
      if (thread() % 32 == 0) {
        k_ring().release(at);
      }
    }
  }
  // One thread, no further S of this tile: its Q may be replaced by the next one's.
  __device__ __forceinline__ void release_query(int warpgroup) const {
    q_ring(warpgroup).release(RingPosition<1>{});
  }

  // P V of a granule, `fresh` if it is the first one of its chunk. In its shadow: K is let go, and Q after the `last`
  // one of the tile; else the next K is waited for.
  template <class Keys = Whole>
  __device__ __forceinline__ void multiply(Fragments& f, int warpgroup, bool fresh, bool last, const Position& at,
                                           bool leader) const {
    uint32_t descriptor = descriptor_of(at);
    multiply<Keys>(f, warpgroup, fresh, last, at, leader, descriptor);
  }
  // `descriptor` moves on to the next stage.
  template <class Keys = Whole>
  __device__ __forceinline__ void multiply(Fragments& f, int warpgroup, bool fresh, bool last, const Position& at,
                                           bool leader, uint32_t& descriptor) const {
    issue_output<Keys>(f, descriptor, fresh);
    descriptor = next_descriptor(descriptor, at);
    stamp<Tag>(*this, warpgroup, Event::kOutputIssued);
    release_keys_by_warps(at);
    if (leader) {
      release_keys_by_leader(at);
      if (kEarlyQuery && last) {
        release_query(warpgroup);
      }
    }
    if (!last) {
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
  // A chunk of rows that look at no chunk before `first` (ragged kernels; elsewhere a chunk is its index).
  struct LateChunk {
    int index;
    int first;
  };
  __device__ __forceinline__ static int index_of(int index) {
    return index;
  }
  __device__ __forceinline__ static int index_of(const LateChunk& chunk) {
    return chunk.index;
  }
  // Whether it is the first one.
  __device__ __forceinline__ static bool starts(int index) {
    return index == 0;
  }
  __device__ __forceinline__ static bool starts(const LateChunk& chunk) {
    return chunk.index == chunk.first;
  }
  // Whether it has others of its superchunk before it.
  __device__ __forceinline__ static bool continues(int index) {
    return index % kSuperchunkChunks != 0;
  }
  __device__ __forceinline__ static bool continues(const LateChunk& chunk) {
    return chunk.index % kSuperchunkChunks != 0 && chunk.index > chunk.first;
  }
  // Whether its superchunk has others before it.
  __device__ __forceinline__ static bool joins(int index) {
    return index >= kSuperchunkChunks;
  }
  __device__ __forceinline__ static bool joins(const LateChunk& chunk) {
    return chunk.index / kSuperchunkChunks > chunk.first / kSuperchunkChunks;
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
  // R9: 1 / l of a thread's rows, 0 where no key was visible.
  __device__ __forceinline__ static void invert_sums(const StateRows& closed, float (&inverse)[kRowsPerThread]) {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      inverse[h] = closed.m[h] == minus_infinity() ? 0.0F : __frcp_rn(closed.l[h]);
    }
  }
  // R9: LSE. `row` is own_row() of thread t. Better stored after the rows themselves: the fence before their way
  // through the copy engine waits for these stores as well.
  template <class Rows>
  __device__ __forceinline__ void store_lse(const StateRows& closed, const Rows& query, int t, int row) const {
    // The four threads of two rows hold the same scalars: the first takes the one row, the second the other.
    const bool second = t % 4 == 1;
    const int i = query.first_row + row + (second ? 8 : 0);
    if (args.lse != nullptr && t % 4 < kRowsPerThread && i < tokens_of(args, query)) {
      const float m = second ? closed.m[1] : closed.m[0];
      const float l = second ? closed.l[1] : closed.l[0];
      args.lse[query.batch * args.lse_stride_batch + token_of(query, i) * args.lse_stride_token +
               query.head * args.lse_stride_head] =
          m == minus_infinity() ? m : __fmul_rn(__fadd_rn(soft_log2(l), __fsub_rn(m, args.bias)), kLn2);
    }
  }

  // The staged panel of the finished tile that holds columns from `column` on -> O. One thread of the warpgroup.
  __device__ __forceinline__ void store_panel(uint32_t source, int column, const QueryTile& query) const {
    store_box_as(&args.o_map, source, column, query.first_row, query.head, query.batch, read_once_policy());
  }
  __device__ __forceinline__ void store_panel(uint32_t source, int column, const RaggedRows& query) const {
    if (column >= args.ragged.v_dims) {
      return;
    }
    const RaggedRows rows = RaggedRows::load(query.slot, query.consumer);  // rather than kept in registers
    const ClippedBox box = clip_box(rows.first_token + rows.first_row, 0, rows.tokens - rows.first_row, kWarpgroupRows);
    store_clipped_box_as(&args.o_map, source, column, box.row, box.sum, rows.head,
                         args.ragged.cu_seqlens_q != nullptr ? 0 : rows.batch, read_once_policy());
  }

  // Granules that only other rows of the block see.
  __device__ __forceinline__ void skip(int warpgroup, int tiles, int ring_tiles, Position& at) const {
#pragma unroll 1
    for (int j = tiles; j < ring_tiles; ++j, at.advance()) {
      k_ring().wait_full(at);
      v_ring().wait_full(at);
      // A warp that has not seen the stages full must not meet them full once more.
      named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
      release_keys_by_warps(at);
      if (thread() == 0) {
        release_keys_by_leader(at);
        v_ring().release(at);
      }
    }
  }

  // ---------------------------------------------------------------- tiles

  // All tiles of the block. `self` has attend() and finish().
  template <class Self>
  __device__ __forceinline__ void consume_with(const Self& self, int warpgroup) const {
    Position at;  // of the next granule in the rings; its top bits count the tiles, which saves a register
    while (true) {
      const uint32_t round = round_of(at);
      Base::tile_ring().wait_full(TilePosition{round});
      if (uniform(tile_of(round).granules) < 0) {
        break;
      }
      stamp<Tag>(*this, warpgroup, Event::kTileTaken);
      Fragments f;
      f.rows.clear();
      f.closed.clear();
      q_ring(warpgroup).wait_full(RingPosition<1>{round});  // producer: Q of this warpgroup
      stamp<Tag>(*this, warpgroup, Event::kQueryThere);
      if (own_granules(warpgroup, round) > 0) {
        self.attend(f, warpgroup, Base::own_rows(tile_of(round), warpgroup), at);
      } else {
#pragma unroll
        for (float& o : f.o) {
          o = 0.0F;
        }
        named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);  // all have seen Q full
      }
      const QueryTile whole = tile_of(round_of(at));
      const int granules = own_granules(warpgroup, round_of(at));
      if ((!kEarlyQuery || granules == 0) && thread() == 0) {
        release_query(warpgroup);
      }
      skip(warpgroup, granules, uniform(whole.granules), at);
      release_tile(warpgroup, round_of(at));
      stamp<Tag>(*this, warpgroup, Event::kRowsSkipped);
      QueryTile own = Base::own_rows(whole, warpgroup);
      own.granules = granules;
      self.finish(f, warpgroup, own);
      stamp<Tag>(*this, warpgroup, Event::kTileDone);
      at.use = (at.use & kUseMask) | ((round_of(at) + 1) << kRoundShift);
    }
    if (thread() == 0) {
      store_wait_read();
    }
  }
};

}  // namespace tessera::sm90
