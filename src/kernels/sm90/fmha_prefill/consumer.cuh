// A consumer of head dims 64 and 128: O of the chunks so far is chained in registers (R8), its place between chunks is
// shared memory and, as far as that has no room, global scratch.
#pragma once

#include "kernels/sm90/fmha_prefill/granule.cuh"

namespace tessera::sm90 {

template <class Tag>
struct PrefillConsumer : PrefillGranules<Tag> {
  using Base = PrefillGranules<Tag>;
  using Base::args, Base::kElement, Base::kOutputs, Base::kScores, Base::kChunkTiles, Base::kOwnBarrier;
  using Base::chain_global, Base::superchunk_memory, Base::chain_states, Base::wait_staging;
  using Base::thread, Base::own_row, Base::key_limit, Base::kTileKeys, Base::k_ring;
  using Base::weigh, Base::weigh_plain, Base::multiply, Base::close_rows, Base::continues, Base::output;
  using typename Base::Fragments, typename Base::Layout, typename Base::Position;

  __device__ __forceinline__ void consume(int warpgroup) const { Base::consume_with(*this, warpgroup); }

  // Thread-private float4 i of the chain memory.
  __device__ __forceinline__ float4* chain_shared(int warpgroup) const {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    return reinterpret_cast<float4*>(shared_bytes + Layout::kChain + warpgroup * Layout::kChainBytes) + thread();
  }
  // The part of the chained O that lies in global scratch. It is fetched while the chunk's last P V runs, into the half
  // of S's registers that P leaves free.
  static_assert(Layout::kChainGlobal <= kScores / 8, "chain: its global part finds no free registers");
  struct FarChain {
    float4 x[Layout::kChainGlobal + 1];  // not empty
  };
  __device__ __forceinline__ FarChain fetch_far(int warpgroup) const {
    FarChain far;
    const float4* const memory = chain_global(warpgroup);
#pragma unroll
    for (int i = 0; i < Layout::kChainGlobal; ++i) {
      far.x[i] = __ldcg(memory + i * kWarpgroupThreads);
    }
    return far;
  }
  // (f.o, f.closed) := chain(the chunks of this superchunk so far, (f.o, f.closed)).
  __device__ __forceinline__ void chain_chunk(Fragments& f, const FarChain& far, int warpgroup) const {
    const float4 state = *chain_states(warpgroup);
    StateRows before{{state.x, state.y}, {state.z, state.w}};
    const ChainWeights w = chain_scalars(before, f.closed);
    f.closed = before;
    const float4* const near = chain_shared(warpgroup);
#pragma unroll
    for (int i = 0; i < Layout::kChainGlobal; ++i) {
      chain_with(f, Layout::kChainShared + i, far.x[i], w);
    }
#pragma unroll
    for (int i = 0; i < Layout::kChainShared; ++i) {
      chain_with(f, i, near[i * kWarpgroupThreads], w);
    }
  }

  // f.o and f.closed, the state of this superchunk up to the finished chunk `index`, are put away; with `last` they
  // become the state of the whole row.
  template <class Chunk>
  __device__ __forceinline__ void store_chunk(Fragments& f, int warpgroup, const Chunk& index, bool last) const {
    const bool superchunk_ends = Base::index_of(index) % kSuperchunkChunks == kSuperchunkChunks - 1;
    if ((last || superchunk_ends) && Base::joins(index)) {
      const float4* const memory = superchunk_memory(warpgroup);
      const float4 state = memory[kOutputs / 4 * kWarpgroupThreads];
      StateRows before{{state.x, state.y}, {state.z, state.w}};
      const ChainWeights w = chain_scalars(before, f.closed);
      f.closed = before;
#pragma unroll
      for (int i = 0; i < kOutputs / 4; ++i) {
        chain_with(f, i, memory[i * kWarpgroupThreads], w);
      }
    }
    if (last) {
      return;
    }
    if (Base::starts(index)) {
      wait_staging(warpgroup);
    }
    const float4 state = make_float4(f.closed.m[0], f.closed.m[1], f.closed.l[0], f.closed.l[1]);
    if (superchunk_ends) {
      float4* const memory = superchunk_memory(warpgroup);
#pragma unroll
      for (int i = 0; i < kOutputs / 4; ++i) {
        memory[i * kWarpgroupThreads] = output(f, i);
      }
      memory[kOutputs / 4 * kWarpgroupThreads] = state;
      return;
    }
    float4* const near = chain_shared(warpgroup);
    float4* const memory = chain_global(warpgroup);
#pragma unroll
    for (int i = 0; i < Layout::kChainGlobal; ++i) {
      __stcg(memory + i * kWarpgroupThreads, output(f, Layout::kChainShared + i));
    }
#pragma unroll
    for (int i = 0; i < Layout::kChainShared; ++i) {
      near[i * kWarpgroupThreads] = output(f, i);
    }
    __syncwarp();  // all four threads of a row have read its state
    if (thread() % 4 == 0) {
      *chain_states(warpgroup) = state;
    }
    __syncwarp();
  }

  __device__ __forceinline__ static void chain_with(Fragments& f, int i, const float4& x, const ChainWeights& w) {
    f.o[4 * i] = chain_output(x.x, f.o[4 * i], w, 4 * i);
    f.o[4 * i + 1] = chain_output(x.y, f.o[4 * i + 1], w, 4 * i + 1);
    f.o[4 * i + 2] = chain_output(x.z, f.o[4 * i + 2], w, 4 * i + 2);
    f.o[4 * i + 3] = chain_output(x.w, f.o[4 * i + 3], w, 4 * i + 3);
  }

  // S of a chunk's first granule runs beside the chain before it where the chained O takes no registers of S.
  static constexpr bool kEarlyScores = Layout::kChainGlobal == 0;

  // One granule after the other; the other warpgroups multiply while this one computes weights. The inner loop has
  // nothing in it that only some granules need: every instruction there costs the tensor cores time.
  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, const QueryTile& query, Position& at) const {
    const int first_masked = uniform(key_limit(query.first_row) / kTileKeys);
    const bool leader = thread() == 0;  // speaks for the warpgroup
    int j = 0;
    int end = 0;  // of the chunk's plain granules that follow granule j
    bool exact = true;
    k_ring().wait_full(at);  // producer: K_0
#pragma unroll 1
    while (true) {
      if (j == end) {
        end = run_end(warpgroup, j, first_masked, at);
      }
      if constexpr (Base::kSchedule.causal) {
        // The tile's last granule, of which the rows see the first half only.
        if (uniform(key_limit(query.first_row + kWarpgroupRows - 1)) <= j * kTileKeys + kTileKeys / 2) {
          Base::template weigh<typename Base::Half>(f, warpgroup, j, exact, query.first_row, first_masked, at);
          multiply_last<typename Base::Half>(f, warpgroup, j, true, at, leader);
          at.advance();
          break;
        }
      }
      weigh(f, warpgroup, j, exact, query.first_row, first_masked, at);
      bool weighed = true;
#pragma unroll 1
      while (true) {
        uint32_t descriptor = Base::descriptor_of(at);
#pragma unroll 1
        while (j + 1 < end) {
          multiply(f, warpgroup, j % kChunkTiles == 0, false, at, leader, descriptor);
          at.advance();
          ++j;
          if (!weigh_plain(f, warpgroup, at, descriptor)) {
            weighed = false;
            break;
          }
        }
        if (!kEarlyScores || !weighed || (j + 1) % kChunkTiles != 0 ||
            end == Base::own_granules(warpgroup, Base::round_of(at))) {
          break;
        }
        multiply(f, warpgroup, j % kChunkTiles == 0, false, at, leader, descriptor);
        at.advance();
        ++j;
        end = run_end(warpgroup, j, first_masked, at);
        begin_chunk(f, warpgroup, j, query.first_row, first_masked, at, descriptor);
      }
      if (!weighed) {
        exact = true;
        continue;
      }
      const bool last = end == Base::own_granules(warpgroup, Base::round_of(at));
      multiply_last(f, warpgroup, j, last, at, leader);
      at.advance();
      if (last) {
        break;
      }
      ++j;
      exact = j % kChunkTiles == 0;
    }
  }
  // Of the plain granules that follow granule j in its chunk.
  __device__ __forceinline__ int run_end(int warpgroup, int j, int first_masked, const Position& at) const {
    const int tiles = Base::own_granules(warpgroup, Base::round_of(at));
    return uniform(min(min((j / kChunkTiles + 1) * kChunkTiles, tiles), max(first_masked, j + 1)));
  }
  // Granule j begins a chunk, and O of the one before is complete: S on its way, R8 beside it, weights.
  __device__ __forceinline__ void begin_chunk(Fragments& f, int warpgroup, int j, int first_row, int first_masked,
                                              const Position& at, uint32_t descriptor) const {
    const int chunk = j / kChunkTiles - 1;
    Base::issue_scores(f, warpgroup, descriptor);
    close_rows(f);
    if (continues(chunk)) {
      chain_chunk(f, {}, warpgroup);
    }
    store_chunk(f, warpgroup, chunk, false);
    Base::wait_scores(f, warpgroup, at);
    Base::mask(f, j, first_row, first_masked);
    float rescale[kRowsPerThread];
    f.rows.clear();
    move_maximum(f.s, f.rows, rescale, args.c, kLazyThreshold);
    const GranuleSums sums = weigh_and_round<kElement>(f.s, f.p, f.rows, args.c, args.bias, args.zero);
    add_sums(f.rows, rescale, sums);
    stamp<Tag>(*this, warpgroup, Event::kWeightsDone);
  }
  // P V of granule j, which may be the last one of its chunk, and R8.
  template <class Keys = typename Base::Whole>
  __device__ __forceinline__ void multiply_last(Fragments& f, int warpgroup, int j, bool last, const Position& at,
                                                bool leader) const {
    const int chunk = j / kChunkTiles;
    const bool fresh = j % kChunkTiles == 0;
    const bool chunk_ends = last || (j + 1) % kChunkTiles == 0;
    if (chunk_ends && continues(chunk)) {
      const FarChain far = fetch_far(warpgroup);
      Base::template multiply<Keys>(f, warpgroup, fresh, last, at, leader);
      close_rows(f);
      chain_chunk(f, far, warpgroup);
    } else {
      Base::template multiply<Keys>(f, warpgroup, fresh, last, at, leader);
      if (chunk_ends) {
        close_rows(f);
      }
    }
    if (chunk_ends) {
      store_chunk(f, warpgroup, chunk, last);
      stamp<Tag>(*this, warpgroup, Event::kChunkDone);
    }
  }

  // R9: f.o and f.closed -> O and LSE.
  template <class Rows>
  __device__ __forceinline__ void finish(Fragments& f, int warpgroup, const Rows& query) const {
    if (query.first_row >= tokens_of(args, query)) {
      return;
    }
    const int t = thread();
    const int row = own_row(t);
    if constexpr (Base::kSchedule.general_finish) {
      if (!goes_through_copy_engine(args, query)) {
        const GeneralFinish<Tag> rows(args, f.closed, query, t, row);
#pragma unroll
        for (int i = 0; i < kOutputs / 4; ++i) {
          if (args.wide_output) {
            rows.template put<true>(i, output(f, i));
          } else {
            rows.template put<false>(i, output(f, i));
          }
        }
        return;
      }
    }
    float inverse[kRowsPerThread];
    Base::invert_sums(f.closed, inverse);
    const uint32_t staging = Base::shared + Layout::kChain + warpgroup * Layout::kChainBytes;
    const uint32_t first = staging + swizzled_offset(kWarpgroupRows, row, t % 4 * 2);
    wait_staging(warpgroup);
#pragma unroll
    for (int i = 0; i < kOutputs; i += 2) {
      const int h = i / 2 % 2;
      const uint32_t pair = finish_pair<kElement>(__fmul_rn(f.o[i], inverse[h]), __fmul_rn(f.o[i + 1], inverse[h]));
      // The piece's place in its row is all that the swizzle changes; eight rows further it is the same.
      const int piece = i / 4 % (kPanelColumns / 8);
      store_shared((first ^ static_cast<uint32_t>(piece << 4)) +
                       i / 4 / (kPanelColumns / 8) * panel_bytes(kWarpgroupRows) + h * kSwizzleBytes,
                   static_cast<int>(pair));
    }
    fence_async_proxy();
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
    if (t == 0) {
      for (int panel = 0; panel < 2 * kOutputs / kPanelColumns; ++panel) {
        Base::store_panel(staging + panel * panel_bytes(kWarpgroupRows), panel * kPanelColumns, query);
      }
      store_commit();
    }
    Base::store_lse(f.closed, query, t, row);
  }
};

}  // namespace tessera::sm90
