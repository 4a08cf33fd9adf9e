// A consumer of head dim 256: O fills half of the registers, so the chained O of the chunks so far (R8) stays in global
// scratch and is only ever held piece by piece. A chunk's end changes it in place; the row's last chunk is chained on
// the way from the registers to the finished tile. O in registers is never written outside of P V and its rescaling:
// ptxas would give a chained O registers of its own.
#pragma once

#include "kernels/sm90/fmha_prefill/granule.cuh"

namespace tessera::sm90 {

template <class Tag>
struct PrefillWideConsumer : PrefillGranules<Tag> {
  using Base = PrefillGranules<Tag>;
  using Base::args, Base::kElement, Base::kOutputs, Base::kChunkTiles, Base::kOwnBarrier;
  using Base::chain_global, Base::superchunk_memory, Base::chain_states, Base::wait_staging;
  using Base::close_rows, Base::continues, Base::output;
  using Base::start_scores, Base::start_output, Base::mask, Base::move, Base::v_ring;
  using Base::thread, Base::own_row, Base::key_limit, Base::kTileKeys, Base::k_ring;
  using typename Base::Fragments, typename Base::Layout, typename Base::Position;

  static constexpr int kPieces = kOutputs / 4;  // float4 per thread of O
  static constexpr int kBatch = 4;              // pieces fetched together
  // Batches in flight at the end of a chunk, the first one while the chunk's last P V runs, and at the end of a row.
  static constexpr int kPutDepth = 3;
  static constexpr int kFinishDepth = 2;
  static_assert(Layout::kChainShared == 0 && Layout::kChainGlobal == kPieces, "chain: all of it in global scratch");

  __device__ __forceinline__ void consume(int warpgroup) const { Base::consume_with(*this, warpgroup); }

  // ---------------------------------------------------------------- chunks (R8)

  // The left side of a chain step: a state before the current one, if there is one.
  struct Before {
    bool any;
    const float4* memory;  // its O, thread-private
    ChainWeights w;
  };
  // `state` := chain(the left side, state) in its scalars.
  __device__ __forceinline__ static Before chain_before(bool any, const float4* memory, const float4* scalars,
                                                        StateRows& state) {
    // With zeros on the left side these weights leave the bits alone but for the sign of a zero, which R9 drops.
    Before before{any, memory, {{0.0F, 0.0F}, {1.0F, 1.0F}}};
    if (any) {
      const float4 x = *scalars;
      StateRows first{{x.x, x.y}, {x.z, x.w}};
      before.w = chain_scalars(first, state);
      state = first;
    }
    return before;
  }
  // The chunks of the superchunk of chunk `index` that lie before it.
  template <class Chunk>
  __device__ __forceinline__ Before chunks_before(const Chunk& index, int warpgroup, StateRows& state) const {
    return chain_before(continues(index), chain_global(warpgroup), chain_states(warpgroup), state);
  }

  __device__ __forceinline__ static float4 chain_piece(const float4& first, const float4& second,
                                                       const ChainWeights& w) {
    return make_float4(chain_output(first.x, second.x, w, 0), chain_output(first.y, second.y, w, 1),
                       chain_output(first.z, second.z, w, 2), chain_output(first.w, second.w, w, 3));
  }

  // Pieces of the left side's O, zeros if there is none.
  struct Batch {
    float4 x[kBatch];
  };
  __device__ __forceinline__ static Batch fetch(bool any, const float4* memory, int first) {
    Batch batch;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch.x[i] = load_if(any, memory + (first + i) * kWarpgroupThreads);
    }
    return batch;
  }
  // Hands pieces [kFirst, kFirst + kCount), of which the first batch is there, to put(i, piece), which returns what it
  // made of it. kDepth batches are in flight at most: left to itself ptxas loads as many pieces as there are registers,
  // and then a few more.
  template <int kFirst, int kCount, int kDepth, class Put>
  __device__ __forceinline__ void for_pieces(const Batch& head, bool any, const float4* memory, const Put& put) const {
    constexpr int kBatches = kCount / kBatch;
    const float4* source[kDepth];
    Batch batch[kDepth];
#pragma unroll
    for (int slot = 0; slot < kDepth; ++slot) {
      source[slot] = memory;
      batch[slot] = slot == 0 ? head : fetch(any, memory, kFirst + slot * kBatch);
    }
#pragma unroll
    for (int n = 0; n < kBatches; ++n) {
      const int slot = n % kDepth;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        source[slot] += put(kFirst + n * kBatch + i, batch[slot].x[i]) & args.zero;
      }
      if (n + kDepth < kBatches) {
        batch[slot] = fetch(any, source[slot], kFirst + (n + kDepth) * kBatch);
      }
    }
  }

  // Chunk `index` ends: (f.o, f.closed) joins the chunks before it, and if its superchunk or the row ends with it, the
  // superchunks before that. `head`: the first pieces of those.
  template <class Chunk>
  __device__ __forceinline__ void put_away(Fragments& f, const Batch& head, int warpgroup, const Chunk& index,
                                           bool last) const {
    float4* const memory = chain_global(warpgroup);
    const Before chunks = chunks_before(index, warpgroup, f.closed);
    for_pieces<0, kPieces, kPutDepth>(head, chunks.any, memory, [&](int i, const float4& x) {
      const float4 piece = chain_piece(x, output(f, i), chunks.w);
      __stcg(memory + i * kWarpgroupThreads, piece);
      return __float_as_uint(piece.w);
    });
    if (last || !continues(Base::index_of(index) + 1)) {
      close_superchunk(f, warpgroup, index, last);
      return;
    }
    const float4 state = make_float4(f.closed.m[0], f.closed.m[1], f.closed.l[0], f.closed.l[1]);
    __syncwarp();  // all four threads of a row have read its state
    if (thread() % 4 == 0) {
      *chain_states(warpgroup) = state;
    }
    __syncwarp();
  }

  // The chunks that were put away and f.closed join the superchunks before them: where superchunks are kept, or with
  // `last` where `finish` looks for them.
  template <class Chunk>
  __device__ __forceinline__ void close_superchunk(Fragments& f, int warpgroup, const Chunk& index, bool last) const {
    float4* const chunks = chain_global(warpgroup);
    float4* const memory = superchunk_memory(warpgroup);
    float4* const scalars = memory + kPieces * kWarpgroupThreads;
    const Before before = chain_before(Base::joins(index), memory, scalars, f.closed);
    float4* const to = last ? chunks : memory;
#pragma unroll 4
    for (int i = 0; i < kPieces; ++i) {
      const float4 piece = load_if(true, chunks + i * kWarpgroupThreads);
      __stcg(to + i * kWarpgroupThreads,
             chain_piece(load_if(before.any, memory + i * kWarpgroupThreads), piece, before.w));
    }
    if (!last) {
      *scalars = make_float4(f.closed.m[0], f.closed.m[1], f.closed.l[0], f.closed.l[1]);
    }
  }

  // ---------------------------------------------------------------- tiles

  // Whether a row whose last chunk this is has its O in memory before `finish`, chained to the end: a second chain step
  // on the way to the finished tile would not fit the registers.
  template <class Chunk>
  __device__ __forceinline__ static bool in_memory(const Chunk& last_chunk) {
    return Base::joins(last_chunk);
  }

  // Granule after granule, S of the next one issued before P V of the current one: the weights of the next granule are
  // computed in the shadow of P V. The last chunk is left in f, unless it is in_memory().
  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, const QueryTile& query, Position& at) const {
    const int tiles = Base::own_granules(warpgroup, Base::round_of(at));
    const int first_masked = key_limit(query.first_row) / kTileKeys;
    const bool leader = thread() == 0;  // speaks for the warpgroup
    k_ring().wait_full(at);             // producer: K_0
    start_scores(f, opaque(warpgroup), uniform(at.stage()));
    wgmma_wait<0>();
    weigh_exactly(f, 0, query.first_row, first_masked);
    if (leader) {
      k_ring().release(at);
    }
    round_weights<kElement>(f.s, f.p);
    int j = 0;
#pragma unroll 1
    for (; j + 1 < tiles; ++j) {
      k_ring().wait_full(at.next());  // producer: K_{j+1}
      start_scores(f, opaque(warpgroup), uniform(at.next().stage()));
      v_ring().wait_full(at);  // producer: V_j
      start_output(f, uniform(at.stage()), j % kChunkTiles == 0);
      stamp<Tag>(*this, warpgroup, Event::kOutputIssued);
      at.advance();
      wgmma_wait<1>();  // S of granule j + 1
      stamp<Tag>(*this, warpgroup, Event::kScoresDone);
      const bool chunk_ends = (j + 1) % kChunkTiles == 0;
      if (chunk_ends) {
        close_rows(f);
      }
      weigh_ahead(f, warpgroup, j + 1, query.first_row, first_masked, at);
      if (leader) {
        k_ring().release(at);
      }
      stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
      wgmma_wait<0>();  // P V of granule j
      pin_registers(f.o);
      stamp<Tag>(*this, warpgroup, Event::kOutputDone);
      if (leader) {
        v_ring().release(Position{at.use - 1});
      }
      round_weights<kElement>(f.s, f.p);
      if (chunk_ends) {
        const int chunk = j / kChunkTiles;
        put_away(f, fetch(continues(chunk), chain_global(warpgroup), 0), warpgroup, chunk, false);
        stamp<Tag>(*this, warpgroup, Event::kChunkDone);
      }
    }
    if (Base::kEarlyQuery && leader) {
      Base::release_query(warpgroup);
    }
    v_ring().wait_full(at);  // producer: the last V
    start_output(f, uniform(at.stage()), j % kChunkTiles == 0);
    const int chunk = j / kChunkTiles;
    close_rows(f);
    wgmma_wait<0>();
    pin_registers(f.o);
    if (leader) {
      v_ring().release(at);
    }
    at.advance();
    if (in_memory(chunk)) {
      put_away(f, fetch(continues(chunk), chain_global(warpgroup), 0), warpgroup, chunk, true);
    }
  }

  // R2 to R4 and R7 for granule j, to the letter. Where the maximum moves, O follows once the P V in flight has
  // finished.
  __device__ __forceinline__ void weigh_exactly(Fragments& f, int j, int first_row, int first_masked) const {
    float rescale[kRowsPerThread];
    pin_registers(f.s);
    mask(f, j, first_row, first_masked);
    if (move(f, j, rescale)) {
      wgmma_wait<0>();
      pin_registers(f.o);
      rescale_output(f.o, rescale);
    }
    add_sums(f.rows, rescale, weigh_only(f.s, f.rows, args.c, args.bias, args.zero));
  }

  // Weights of granule j while P V of granule j - 1 is in flight. See `weigh`.
  __device__ __forceinline__ void weigh_ahead(Fragments& f, int warpgroup, int j, int first_row, int first_masked,
                                              const Position& at) const {
    const bool exact = !Base::kNumbers.lazy_max || j >= first_masked || j % kChunkTiles == 0;
    if (exact) {
      weigh_exactly(f, j, first_row, first_masked);
      return;
    }
    pin_registers(f.s);
    const GranuleSums sums = weigh_only(f.s, f.rows, args.c, args.bias, args.zero);
    if (any_of_warpgroup(kOwnBarrier + warpgroup, may_move(f.rows, sums, args.move_limit))) {
      wgmma_wait<0>();
      pin_registers(f.o);
      start_scores(f, opaque(warpgroup), uniform(at.stage()));
      wgmma_wait<0>();
      weigh_exactly(f, j, first_row, first_masked);
      return;
    }
    const float keep[kRowsPerThread] = {1.0F, 1.0F};
    add_sums(f.rows, keep, sums);
  }

  // R8 of the last chunk and R9: f.o, f.closed and what was put away -> O and LSE.
  __device__ __forceinline__ void finish(Fragments& f, int warpgroup, const QueryTile& query) const {
    finish_from(f, warpgroup, query, max(0, query.granules - 1) / kChunkTiles);
  }
  // The same, told which chunk is the last one.
  template <class Rows, class Chunk>
  __device__ __forceinline__ void finish_from(Fragments& f, int warpgroup, const Rows& query, const Chunk& last) const {
    if (query.first_row >= tokens_of(args, query)) {
      return;
    }
    const bool chained = in_memory(last);
    const Before chunks =
        chain_before(continues(last) && !chained, chain_global(warpgroup), chain_states(warpgroup), f.closed);
    const int t = thread();
    const int row = own_row(t);
    if constexpr (Base::kSchedule.general_finish) {
      if (!goes_through_copy_engine(args, query)) {
        const GeneralFinish<Tag> rows(args, f.closed, query, t, row);
        if (args.wide_output) {
          finish_rows_of<true>(f, chunks, chained, rows);
        } else {
          finish_rows_of<false>(f, chunks, chained, rows);
        }
        return;
      }
    }
    float inverse[kRowsPerThread];
    Base::invert_sums(f.closed, inverse);
    Base::store_lse(f.closed, query, t, row);  // first: after the panels there would be no register for it
    finish_panels<0>(f, chunks, chained, inverse, warpgroup, query);
    finish_panels<Layout::kChainPanels>(f, chunks, chained, inverse, warpgroup, query);
  }

  template <bool kWideOutput>
  __device__ __forceinline__ void finish_rows_of(const Fragments& f, const Before& chunks, bool chained,
                                                 const GeneralFinish<Tag>& rows) const {
    const bool any = chunks.any || chained;
    for_pieces<0, kPieces, kFinishDepth>(fetch(any, chunks.memory, 0), any, chunks.memory, [&](int i, const float4& x) {
      const float4 piece = chain_piece(x, output(f, i), chunks.w);
      return rows.template put<kWideOutput>(i, make_float4(chained ? x.x : piece.x, chained ? x.y : piece.y,
                                                           chained ? x.z : piece.z, chained ? x.w : piece.w));
    });
  }

  // Columns 64 kPanel .. of the finished tile, as many panels as can be staged at a time.
  template <int kPanel, class Rows>
  __device__ __forceinline__ void finish_panels(const Fragments& f, const Before& chunks, bool chained,
                                                const float (&inverse)[kRowsPerThread], int warpgroup,
                                                const Rows& query) const {
    constexpr int kPanelPieces = kPanelColumns / 8;
    const uint32_t staging = Base::shared + Layout::kChain + warpgroup * Layout::kChainBytes;
    const int t = thread();
    const uint32_t first = staging + swizzled_offset(kWarpgroupRows, own_row(t), t % 4 * 2);
    wait_staging(warpgroup);
    const bool any = chunks.any || chained;
    for_pieces<kPanel * kPanelPieces, Layout::kChainPanels * kPanelPieces, kFinishDepth>(
        fetch(any, chunks.memory, kPanel * kPanelPieces), any, chunks.memory, [&](int i, const float4& x) {
          const float4 piece = chain_piece(x, output(f, i), chunks.w);
          const float o[2 * kRowsPerThread] = {chained ? x.x : piece.x, chained ? x.y : piece.y,
                                               chained ? x.z : piece.z, chained ? x.w : piece.w};
          // The piece's place in its row is all that the swizzle changes; eight rows further it is the same.
          const uint32_t to = (first ^ static_cast<uint32_t>(i % kPanelPieces << 4)) +
                              (i / kPanelPieces - kPanel) * panel_bytes(kWarpgroupRows);
          uint32_t pair = 0;
#pragma unroll
          for (int h = 0; h < kRowsPerThread; ++h) {
            pair = finish_pair<kElement>(__fmul_rn(o[2 * h], inverse[h]), __fmul_rn(o[2 * h + 1], inverse[h]));
            store_shared(to + h * kSwizzleBytes, static_cast<int>(pair));
          }
          return pair;
        });
    fence_async_proxy();
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
    if (t == 0) {
      for (int panel = 0; panel < Layout::kChainPanels; ++panel) {
        Base::store_panel(staging + panel * panel_bytes(kWarpgroupRows), (kPanel + panel) * kPanelColumns, query);
      }
      store_commit();
    }
  }
};

}  // namespace tessera::sm90
