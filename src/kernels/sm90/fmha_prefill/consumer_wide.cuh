// A consumer of head dim 256: O fills half of the registers, so the chained O of the chunks so far (R8) stays in
// memory, a quarter of it shared and the rest global scratch, and is only ever held piece by piece. A chunk's end
// changes it in place; the row's last chunk is chained on the way from the registers to the finished tile. O in
// registers is never written outside of P V and its rescaling: ptxas would give a chained O registers of its own.
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
  // Of the chained O, pieces in shared memory, where the finished tile is staged afterwards; the others lie in scratch.
  static constexpr int kNear = Layout::kChainBytes / kWarpgroupThreads / static_cast<int>(sizeof(float4));
  // Batches in flight at the end of a chunk, and at the end of a row.
  static constexpr int kPutDepth = 4;
  static constexpr int kFinishDepth = Base::kSchedule.ragged ? 3 : 4;
  static constexpr int kNearBatches = kNear / kBatch;
  static_assert(kNear == kNearBatches * kBatch && kNearBatches <= kFinishDepth,
                "chain: what is near is read before the finished tile is staged in its place");

  __device__ __forceinline__ void consume(int warpgroup) const { Base::consume_with(*this, warpgroup); }

  // ---------------------------------------------------------------- chunks (R8)

  // The left side of a chain step: a state before the current one, if there is one.
  struct Before {
    bool any;
    ChainWeights w;
  };
  // `state` := chain(the left side, state) in its scalars.
  __device__ __forceinline__ static Before chain_before(bool any, const float4* scalars, StateRows& state) {
    // With zeros on the left side these weights leave the bits alone but for the sign of a zero, which R9 drops.
    Before before{any, {{0.0F, 0.0F}, {1.0F, 1.0F}}};
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
    return chain_before(continues(index), chain_states(warpgroup), state);
  }

  __device__ __forceinline__ static float4 chain_piece(const float4& first, const float4& second,
                                                       const ChainWeights& w) {
    return make_float4(chain_output(first.x, second.x, w, 0), chain_output(first.y, second.y, w, 1),
                       chain_output(first.z, second.z, w, 2), chain_output(first.w, second.w, w, 3));
  }

  // Thread-private float4 i * kWarpgroupThreads: pieces 0 .. kNear - 1 of the chained O.
  __device__ __forceinline__ float4* near_memory(int warpgroup) const {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    return reinterpret_cast<float4*>(shared_bytes + Layout::kChain + warpgroup * Layout::kChainBytes) + thread();
  }
  struct Batch {
    float4 x[kBatch];
  };
  __device__ __forceinline__ static Batch fetch(const float4* memory, int first) {
    Batch batch;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch.x[i] = load_if(true, memory + (first + i) * kWarpgroupThreads);
    }
    return batch;
  }

  // Chunk `index` ends: (f.o, f.closed) joins the chunks before it, and if its superchunk or the row ends with it, the
  // superchunks before that.
  template <class Chunk>
  __device__ __forceinline__ void put_away(Fragments& f, int warpgroup, const Chunk& index, bool last) const {
    put_away(f, warpgroup, index, last, fetch_first(warpgroup, index));
  }
  // The first far pieces of what chunk `index` will be chained with: fetched beside its last P V.
  template <class Chunk>
  __device__ __forceinline__ Batch fetch_first(int warpgroup, const Chunk& index) const {
    Batch batch;
    const float4* const far = chain_global(warpgroup);
    const bool any = continues(index);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch.x[i] = load_if(any, far + (kNear + i) * kWarpgroupThreads);
    }
    return batch;
  }
  template <class Chunk>
  __device__ __forceinline__ void put_away(Fragments& f, int warpgroup, const Chunk& index, bool last,
                                           const Batch& first) const {
    const Before chunks = chunks_before(index, warpgroup, f.closed);
    float4* const near = near_memory(warpgroup);
    float4* const far = chain_global(warpgroup);
    if (chunks.any) {
      chain_pieces(f, near, far, first, chunks.w);
    } else {
      wait_staging(warpgroup);
#pragma unroll
      for (int i = kNear; i < kPieces; ++i) {
        __stcg(far + i * kWarpgroupThreads, output(f, i));
      }
#pragma unroll
      for (int i = 0; i < kNear; ++i) {
        near[i * kWarpgroupThreads] = output(f, i);
      }
    }
    if constexpr (Base::kSchedule.ragged) {
      if (last && !Base::joins(index)) {
        return;
      }
    }
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
  // The chained O changes in place. kPutDepth batches are in flight at most: left to itself ptxas loads as many pieces
  // as there are registers, and then a few more; here the addresses of a batch depend on the one kPutDepth before it.
  __device__ __forceinline__ void chain_pieces(const Fragments& f, float4* near, float4* far, const Batch& first,
                                               const ChainWeights& w) const {
    constexpr int kBatches = (kPieces - kNear) / kBatch;
    constexpr int kDepth = kBatches < kPutDepth ? kBatches : kPutDepth;
    const float4* source = far;
    Batch batch[kDepth];
    batch[0] = first;
#pragma unroll
    for (int slot = 1; slot < kDepth; ++slot) {
      batch[slot] = fetch(far, kNear + slot * kBatch);
    }
#pragma unroll
    for (int i = 0; i < kNear; ++i) {
      near[i * kWarpgroupThreads] = chain_piece(near[i * kWarpgroupThreads], output(f, i), w);
    }
#pragma unroll
    for (int n = 0; n < kBatches; ++n) {
      const int slot = n % kDepth;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = kNear + n * kBatch + i;
        const float4 piece = chain_piece(batch[slot].x[i], output(f, at), w);
        __stcg(far + at * kWarpgroupThreads, piece);
        source += __float_as_uint(piece.w) & args.zero;
      }
      if (n + kDepth < kBatches) {
        batch[slot] = fetch(source, kNear + (n + kDepth) * kBatch);
      }
    }
  }

  // The chunks that were put away and f.closed join the superchunks before them: where superchunks are kept, or with
  // `last` where `finish` looks for them.
  template <class Chunk>
  __device__ __forceinline__ void close_superchunk(Fragments& f, int warpgroup, const Chunk& index, bool last) const {
    float4* const memory = superchunk_memory(warpgroup);
    float4* const scalars = memory + kPieces * kWarpgroupThreads;
    const Before before = chain_before(Base::joins(index), scalars, f.closed);
    const auto close = [&](float4* chunks, int i) {
      const float4 old = load_if(before.any, memory + i * kWarpgroupThreads);
      (last ? chunks : memory)[i * kWarpgroupThreads] = chain_piece(old, chunks[i * kWarpgroupThreads], before.w);
    };
#pragma unroll 4
    for (int i = 0; i < kNear; ++i) {
      close(near_memory(warpgroup), i);
    }
#pragma unroll 4
    for (int i = kNear; i < kPieces; ++i) {
      close(chain_global(warpgroup), i);
    }
    if (!last) {
      *scalars = make_float4(f.closed.m[0], f.closed.m[1], f.closed.l[0], f.closed.l[1]);
    }
  }

  // ---------------------------------------------------------------- tiles

  // Whether a row whose last chunk this is has its O in memory before `finish`, chained to the end: a second chain step
  // on the way to the finished tile would not fit the registers. Nor do ragged kernels, with their two ways to finish,
  // have room for a first one.
  template <class Chunk>
  __device__ __forceinline__ bool in_memory(const Chunk& last_chunk) const {
    return Base::joins(last_chunk) || (Base::kSchedule.ragged && !args.ragged.fast_finish && continues(last_chunk));
  }

  // Granule after granule, S of the next one issued before P V of the current one: the weights of the next granule are
  // computed in the shadow of P V. Granules that are neither masked nor the first ones of their chunk have a loop of
  // their own. The last chunk is left in f, unless it is in_memory().
  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, const QueryTile& query, Position& at) const {
    const int first_masked = uniform(key_limit(query.first_row) / kTileKeys);
    const bool leader = thread() == 0;  // speaks for the warpgroup
    k_ring().wait_full(at);             // producer: K_0
    int j = 0;
    bool proven = false;
#pragma unroll 1
    while (!proven) {
      // Granule j by itself, O being complete: the first one, and those whose maxima may move.
      start_scores(f, opaque(warpgroup), uniform(at.stage()));
      wgmma_wait<0>();
      pin_registers(f.s);
      pin_registers(f.o);
      mask(f, j, query.first_row, first_masked);
      float rescale[kRowsPerThread];
      if (move(f, j, rescale)) {
        rescale_output(f.o, rescale);
      }
      weigh_exactly(f, rescale);
      if (leader) {
        k_ring().release(at);
      }
      round_weights<kElement>(f.s, f.p);
#pragma unroll 1
      while (true) {
        proven = true;
        const int tiles = Base::own_granules(warpgroup, Base::round_of(at));
        const int plain_end = uniform(min(min((j / kChunkTiles + 1) * kChunkTiles, tiles), first_masked));
#pragma unroll 1
        while (j + 1 < plain_end) {
          start_both(f, warpgroup, j % kChunkTiles == 0, at);
          ++j;
          if (!weigh_ahead<true>(f, warpgroup)) {
            complete_output(f, leader, at);
            __syncwarp();
            proven = false;
            break;
          }
          end_granule(f, warpgroup, leader, at);
        }
        if (!proven || j + 1 >= tiles) {
          break;
        }
        start_both(f, warpgroup, j % kChunkTiles == 0, at);
        ++j;
        mask(f, j, query.first_row, first_masked);
        if (j % kChunkTiles != 0) {
          if (!weigh_ahead<false>(f, warpgroup)) {
            complete_output(f, leader, at);
            __syncwarp();
            proven = false;
            break;
          }
          end_granule(f, warpgroup, leader, at);
        } else {
          close_rows(f);
          move(f, j, rescale);
          const Batch first = fetch_first(warpgroup, j / kChunkTiles - 1);
          weigh_exactly(f, rescale);
          end_granule(f, warpgroup, leader, at);
          put_away(f, warpgroup, j / kChunkTiles - 1, false, first);
          stamp<Tag>(*this, warpgroup, Event::kChunkDone);
        }
      }
    }
    if (Base::kEarlyQuery && leader) {
      Base::release_query(warpgroup);
    }
    v_ring().wait_full(at);  // producer: the last V
    start_output(f, uniform(at.stage()), j % kChunkTiles == 0);
    const int chunk = j / kChunkTiles;
    close_rows(f);
    fetch_last(f, warpgroup, chunk);
    wgmma_wait<0>();
    pin_registers(f.o);
    if (leader) {
      v_ring().release(at);
    }
    at.advance();
    if (in_memory(chunk)) {
      put_away(f, warpgroup, chunk, true);
    }
  }

  // Issues S of the next granule and P V of the current one, `fresh` if it is the first one of its chunk, and goes on
  // to the next one, whose S is complete then.
  __device__ __forceinline__ void start_both(Fragments& f, int warpgroup, bool fresh, Position& at) const {
    k_ring().wait_full(at.next());  // producer: K_{j+1}
    start_scores(f, opaque(warpgroup), uniform(at.next().stage()));
    v_ring().wait_full(at);  // producer: V_j
    start_output(f, uniform(at.stage()), fresh);
    stamp<Tag>(*this, warpgroup, Event::kOutputIssued);
    at.advance();
    wgmma_wait<1>();
    pin_registers(f.s);
    stamp<Tag>(*this, warpgroup, Event::kScoresDone);
  }
  // P V of the granule before the one at `at` is complete.
  __device__ __forceinline__ void complete_output(Fragments& f, bool leader, const Position& at) const {
    wgmma_wait<0>();
    pin_registers(f.o);
    if (leader) {
      v_ring().release(Position{at.use - 1});
    }
  }
  // The granule at `at` has its weights.
  __device__ __forceinline__ void end_granule(Fragments& f, int warpgroup, bool leader, const Position& at) const {
    Base::release_keys_by_warps(at);
    if (leader) {
      Base::release_keys_by_leader(at);
    }
    stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
    complete_output(f, leader, at);
    stamp<Tag>(*this, warpgroup, Event::kOutputDone);
    round_weights<kElement>(f.s, f.p);
  }

  // R4 and R7 of a granule whose maxima have been found.
  __device__ __forceinline__ void weigh_exactly(Fragments& f, const float (&rescale)[kRowsPerThread]) const {
    add_sums(f.rows, rescale, weigh_only(f.s, f.rows, args.c, args.bias, args.zero));
  }
  // R4 and R7 with the maxima so far, P V of the granule before in flight. False, with f.rows as they were, where the
  // sums do not prove that R3 keeps them. kAnyKeys: each row has had a key.
  template <bool kAnyKeys>
  __device__ __forceinline__ bool weigh_ahead(Fragments& f, int warpgroup) const {
    const GranuleSums sums = weigh_only<kAnyKeys>(f.s, f.rows, args.c, args.bias, args.zero);
    if (any_of_warpgroup(kOwnBarrier + warpgroup, may_move(f.rows, sums, args.move_limit))) {
      return false;
    }
    const float keep[kRowsPerThread] = {1.0F, 1.0F};
    add_sums(f.rows, keep, sums);
    return true;
  }

  // The first far pieces of what the row's last chunk will be chained with, into the registers of S: fetched beside its
  // last P V.
  static constexpr bool kFetchesLast = !Base::kSchedule.general_finish || Base::kSchedule.ragged;
  template <class Chunk>
  __device__ __forceinline__ void fetch_last(Fragments& f, int warpgroup, const Chunk& index) const {
    if constexpr (!kFetchesLast) {
      return;  // no registers
    }
    const float4* const far = chain_global(warpgroup);
    const bool any = continues(index) && !in_memory(index);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float4 x = load_if(any, far + (kNear + i) * kWarpgroupThreads);
      f.s[4 * i] = x.x;
      f.s[4 * i + 1] = x.y;
      f.s[4 * i + 2] = x.z;
      f.s[4 * i + 3] = x.w;
    }
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
    if (in_memory(last)) {
      finish_as<Left::kWhole>(f, {}, warpgroup, query);
      return;
    }
    if (const Before chunks = chunks_before(last, warpgroup, f.closed); chunks.any) {
      finish_as<Left::kPart>(f, chunks.w, warpgroup, query);
      return;
    }
    finish_as<Left::kNone>(f, {}, warpgroup, query);
  }

  // What memory has of a row's O: nothing, the chunks before the last one, or all of it.
  enum class Left { kNone, kPart, kWhole };

  // Hands the row's finished O to put(i, piece), which returns what it made of it, and says at_batch(n) before batch n
  // and after the last one. kFinishDepth batches are in flight at most, as in `chain_pieces`.
  template <Left kLeft, class AtBatch, class Put>
  __device__ __forceinline__ void for_finished(const Fragments& f, const ChainWeights& w, int warpgroup,
                                               const AtBatch& at_batch, const Put& put) const {
    constexpr int kBatches = kPieces / kBatch;
    const float4* source = chain_global(warpgroup);
    Batch batch[kFinishDepth];
    if constexpr (kLeft != Left::kNone) {
#pragma unroll
      for (int slot = kNearBatches; slot < kFinishDepth; ++slot) {
        if (kFetchesLast && kLeft == Left::kPart && slot == kNearBatches) {
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            const float* const x = &f.s[4 * i];
            batch[slot].x[i] = make_float4(x[0], x[1], x[2], x[3]);
          }
        } else {
          batch[slot] = fetch(source, slot * kBatch);
        }
      }
#pragma unroll
      for (int i = 0; i < kNear; ++i) {
        batch[i / kBatch].x[i % kBatch] = near_memory(warpgroup)[i * kWarpgroupThreads];
      }
    }
#pragma unroll
    for (int n = 0; n < kBatches; ++n) {
      const int slot = n % kFinishDepth;
      at_batch(n);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = n * kBatch + i;
        if constexpr (kLeft == Left::kNone) {
          put(at, output(f, at));
        } else if constexpr (kLeft == Left::kPart) {
          source += put(at, chain_piece(batch[slot].x[i], output(f, at), w)) & args.zero;
        } else {
          source += put(at, batch[slot].x[i]) & args.zero;
        }
      }
      if constexpr (kLeft != Left::kNone) {
        if (n + kFinishDepth < kBatches) {
          batch[slot] = fetch(source, (n + kFinishDepth) * kBatch);
        }
      }
    }
    at_batch(kBatches);
  }

  template <Left kLeft, class Rows>
  __device__ __forceinline__ void finish_as(Fragments& f, const ChainWeights& w, int warpgroup,
                                            const Rows& query) const {
    const int t = thread();
    const int row = own_row(t);
    if constexpr (Base::kSchedule.general_finish && !(Base::kSchedule.ragged && kLeft == Left::kPart)) {
      if (!goes_through_copy_engine(args, query)) {
        const GeneralFinish<Tag> rows(args, f.closed, query, t, row);
        const auto nothing = [](int) {};
        if (args.wide_output) {
          for_finished<kLeft>(f, w, warpgroup, nothing,
                              [&](int i, const float4& piece) { return rows.template put<true>(i, piece); });
        } else {
          for_finished<kLeft>(f, w, warpgroup, nothing,
                              [&](int i, const float4& piece) { return rows.template put<false>(i, piece); });
        }
        return;
      }
    }
    float inverse[kRowsPerThread];
    Base::invert_sums(f.closed, inverse);
    // Panels of 64 columns go through the staging memory in turn.
    constexpr int kPanelPieces = kPanelColumns / 8;
    constexpr int kPanelBatches = kPanelPieces / kBatch;
    constexpr int kSlots = Layout::kChainPanels;
    const uint32_t staging = Base::shared + Layout::kChain + warpgroup * Layout::kChainBytes;
    uint32_t first = staging + swizzled_offset(kWarpgroupRows, row, t % 4 * 2);
    for_finished<kLeft>(
        f, w, warpgroup,
        [&](int batch) {
          const int panel = batch / kPanelBatches;
          if (batch == 0) {
            wait_staging(warpgroup);
          } else if (batch % kPanelBatches == 0) {
            hand_over(panel - 1, staging + (panel - 1) % kSlots * panel_bytes(kWarpgroupRows), warpgroup, query);
            if (panel >= kSlots && batch < kPieces / kBatch) {
              if (thread() == 0) {
                store_wait_read<kSlots - 1>();
              }
              named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
            }
          }
        },
        [&](int i, const float4& piece) {
          const float o[2 * kRowsPerThread] = {piece.x, piece.y, piece.z, piece.w};
          // The piece's place in its row is all that the swizzle changes; eight rows further it is the same.
          const uint32_t to = (first ^ static_cast<uint32_t>(i % kPanelPieces << 4)) +
                              i / kPanelPieces % kSlots * panel_bytes(kWarpgroupRows);
          uint32_t pair = 0;
#pragma unroll
          for (int h = 0; h < kRowsPerThread; ++h) {
            pair = finish_pair<kElement>(__fmul_rn(o[2 * h], inverse[h]), __fmul_rn(o[2 * h + 1], inverse[h]));
            store_shared(to + h * kSwizzleBytes, static_cast<int>(pair));
          }
          if (i % kPanelPieces == kPanelPieces - 1) {
            first += pair & args.zero;  // else a panel's places are kept in registers for the next one
          }
          return pair;
        });
    const int late_t = thread();  // rather than kept
    Base::store_lse(f.closed, query, late_t, own_row(late_t));
  }

  // All threads of the warpgroup have staged columns 64 panel .. 64 panel + 63 of the tile.
  template <class Rows>
  __device__ __forceinline__ void hand_over(int panel, uint32_t staged, int warpgroup, const Rows& query) const {
    fence_async_proxy();
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
    if (thread() == 0) {
      Base::store_panel(staged, panel * kPanelColumns, query);
      store_commit();
    }
  }
};

}  // namespace tessera::sm90
