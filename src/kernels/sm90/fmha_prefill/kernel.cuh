// Prefill attention on sm_90 under docs/contract.md (hopper-k16-f25): O = softmax(Q K^T) V for 64 query rows per
// consumer warpgroup, keys in ascending granules of 128. README.md has the roles, the shared-memory map, the barriers,
// the timing and what was tried. Every rounding below is one of the rules R1..R9; the helpers that apply them are in
// softmax.cuh.
#pragma once

#include <cuda_runtime.h>

#include "kernels/sm90/fmha_prefill/config.h"
#include "kernels/sm90/pipeline.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/softmax.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace tessera::sm90 {

// One query tile: rows [first_row, first_row + kBlockM) of (batch, head).
struct QueryTile {
  int first_row;
  int head;
  int batch;
};

template <class Tag>
struct PrefillKernel {
  using Layout = PrefillLayout<Tag>;
  static constexpr PrefillNumbers kNumbers = Tag::kNumbers;
  static constexpr PrefillSchedule kSchedule = Tag::kSchedule;
  static constexpr Element kElement = kNumbers.bf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kDim = kNumbers.head_dim;
  static constexpr int kTileKeys = kNumbers.granule_keys;
  static constexpr int kConsumers = kSchedule.consumer_warpgroups;
  static constexpr int kScores = kTileKeys / 2;  // fp32 per thread of S (64, kTileKeys)
  static constexpr int kOutputs = kDim / 2;      // fp32 per thread of O (64, kDim)
  // A chunk without end is a chunk no sequence fills.
  static constexpr int kChunkTiles = kNumbers.chunk_keys > 0 ? kNumbers.chunk_keys / kTileKeys : 1 << 30;
  using Position = RingPosition<kSchedule.stages>;

  // Named barriers: 1 + w is "warpgroup w may issue", 1 + kConsumers + w is warpgroup w alone.
  static constexpr uint32_t kTurnBarrier = 1;
  static constexpr uint32_t kOwnBarrier = 1 + kConsumers;

  const PrefillArguments& args;
  uint32_t shared;  // address of the 1024-byte aligned base

  __device__ __forceinline__ Ring q_ring(int warpgroup) const {
    const uint32_t base = shared + Layout::kBarriers + 16 * warpgroup;
    return {base, base + 8};
  }
  __device__ __forceinline__ Ring k_ring() const {
    const uint32_t base = shared + Layout::kBarriers + 16 * kConsumers;
    return {base, base + 8 * kSchedule.stages};
  }
  __device__ __forceinline__ Ring v_ring() const {
    const uint32_t base = shared + Layout::kBarriers + 16 * kConsumers + 16 * kSchedule.stages;
    return {base, base + 8 * kSchedule.stages};
  }

  __device__ __forceinline__ void init_barriers() const {
    for (int w = 0; w < kConsumers; ++w) {
      q_ring(w).init(1, 1);
    }
    k_ring().init(kSchedule.stages, kConsumers);
    v_ring().init(kSchedule.stages, kConsumers);
    tile_ring().init(Layout::kTileSlots, kConsumers);
    barrier_init_fence();
  }

  // Tile `index` of the launch's order, index < args.order.total.
  __device__ __forceinline__ QueryTile tile(int index) const {
    const TileOrder& order = args.order;
    const int per_section = order.section_heads * order.query_tiles;
    const int section = index / per_section;
    const int within = index % per_section;
    const int first = section * order.section_heads;
    const int width = min(order.section_heads, order.heads_and_batch - first);
    const int pair = first + within % width;
    return {(order.query_tiles - 1 - within / width) * Layout::kBlockM, pair % args.heads_q, pair / args.heads_q};
  }

  // Producer: the tile after the ones handed out so far. Blocks start with tile blockIdx.x. Every tile and every
  // block's end take one number each; whoever draws the last one leaves the counter at 0 for the next launch.
  __device__ __forceinline__ int draw_tile() const {
    const int drawn = atomicAdd(args.tile_counter, 1);
    if (drawn == args.order.total - 1) {
      *args.tile_counter = 0;
    }
    return drawn + static_cast<int>(gridDim.x);
  }
  __device__ __forceinline__ Ring tile_ring() const {
    const uint32_t base = shared + Layout::kBarriers + 16 * kConsumers + 32 * kSchedule.stages;
    return {base, base + 8 * Layout::kTileSlots};
  }
  __device__ __forceinline__ uint32_t tile_slot(uint32_t stage) const { return shared + Layout::kTiles + 4 * stage; }
  // Producer: hands `index` to the consumers.
  __device__ __forceinline__ void post_tile(RingPosition<Layout::kTileSlots>& at, int index) const {
    barrier_wait(tile_ring().empty + 8 * at.stage, at.parity ^ 1U);
    store_shared(tile_slot(at.stage), index);
    barrier_arrive(tile_ring().full + 8 * at.stage);
    at.advance();
  }
  // Consumer, all threads of a warpgroup.
  __device__ __forceinline__ int take_tile(int warpgroup, RingPosition<Layout::kTileSlots>& at) const {
    tile_ring().wait_full(at);
    const int index = load_shared(tile_slot(at.stage));
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);  // all have read it
    if (thread() == 0) {
      tile_ring().release(at);
    }
    at.advance();
    return uniform(index);
  }

  // R2: keys [0, key_limit) are visible to the query row.
  __device__ __forceinline__ int key_limit(int row) const {
    if constexpr (!kSchedule.causal) {
      return args.seqlen_k;
    } else {
      return max(0, min(args.seqlen_k, row + 1 + args.seqlen_k - args.seqlen_q));
    }
  }
  // Granules that rows [first_row, first_row + rows) see any key of.
  __device__ __forceinline__ int key_tiles(int first_row, int rows) const {
    if (first_row >= args.seqlen_q) {
      return 0;
    }
    return (key_limit(min(first_row + rows, args.seqlen_q) - 1) + kTileKeys - 1) / kTileKeys;
  }

  // ---------------------------------------------------------------- producer: one thread feeds the copy engine

  __device__ __forceinline__ void produce() const {
    RingPosition<1> q_at;
    RingPosition<Layout::kTileSlots> tile_at;
    Position at;  // K and V advance together
    int index = static_cast<int>(blockIdx.x);
    post_tile(tile_at, index);
    while (index < args.order.total) {
      const int next = draw_tile();
      post_tile(tile_at, next);
      const QueryTile query = tile(index);
      const int tiles = key_tiles(query.first_row, Layout::kBlockM);
      const int head_kv = query.head / args.group;
#pragma unroll 1
      for (int j = 0; j < tiles; ++j, at.advance()) {
        load_kv(k_ring().begin_fill(at, Layout::kKvBytes), &args.k_map, Layout::kK, at.stage, j, head_kv, query.batch);
        if (j == 0) {
          load_q(query, q_at);
        }
        load_kv(v_ring().begin_fill(at, Layout::kKvBytes), &args.v_map, Layout::kV, at.stage, j, head_kv, query.batch);
      }
      if (tiles > 0) {
        q_at.advance();
      }
      index = next;
    }
  }

  __device__ __forceinline__ void load_q(const QueryTile& query, const RingPosition<1>& at) const {
    for (int w = 0; w < kConsumers; ++w) {
      const uint32_t barrier = q_ring(w).begin_fill(at, Layout::kQBytes);
      for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
        load_box(shared + Layout::kQ + w * Layout::kQBytes + panel * panel_bytes(kWarpgroupRows), &args.q_map, barrier,
                 panel * kPanelColumns, query.first_row + w * kWarpgroupRows, query.head, query.batch);
      }
    }
  }

  __device__ __forceinline__ void load_kv(uint32_t barrier, const CUtensorMap* map, int ring_offset, uint32_t stage,
                                          int j, int head_kv, int batch) const {
    const uint32_t destination = shared + ring_offset + stage * Layout::kKvBytes;
    for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
      load_box(destination + panel * panel_bytes(kTileKeys), map, barrier, panel * kPanelColumns, j * kTileKeys,
               head_kv, batch);
    }
  }

  // ---------------------------------------------------------------- consumer: one warpgroup, 64 query rows

  // Everything a thread carries from granule to granule.
  struct Fragments {
    float s[kScores];            // S, then p of the newest granule
    uint32_t p[kScores / 8][4];  // P of the granule before it
    float o[kOutputs];           // O of the current chunk
    ChunkRows rows;              // of the current chunk
    StateRows closed;            // of the chunk that ended, until its O is chained
    StateRows chained;           // of the chunks of this superchunk before that
    float rescale[kRowsPerThread];
    bool moved;
  };

  __device__ __forceinline__ static int thread() {
    return static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  }

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

  // R2..R4, R7 for granule j. At the first granule of a chunk the state of the one before is put aside (R8).
  __device__ __forceinline__ void softmax(Fragments& f, int j, const int (&limit)[kRowsPerThread],
                                          int first_masked) const {
    // One branch for both rare cases: it stands between S and its weights in every granule.
    if (j >= first_masked || j % kChunkTiles == 0) {
      if (j >= first_masked) {
        const int first_key = j * kTileKeys + thread() % 4 * 2;
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
          f.s[i] = first_key + i / 4 * 8 + i % 2 < limit[i / 2 % 2] ? f.s[i] : minus_infinity();
        }
      }
      if (j % kChunkTiles == 0) {
#pragma unroll
        for (int h = 0; h < kRowsPerThread; ++h) {
          f.closed.m[h] = f.rows.m[h];
          f.closed.l[h] = sum_classes(f.rows.l[h]);
        }
        f.rows.clear();
      }
    }
    f.moved = softmax_granule<kNumbers.lazy_max>(f.s, f.rows, f.rescale, args.c, args.bias, kLazyThreshold);
  }

  __device__ __forceinline__ float4* chain_memory(int warpgroup) const {
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    return reinterpret_cast<float4*>(shared_bytes + Layout::kChain + warpgroup * Layout::kChainBytes) + thread();
  }
  __device__ __forceinline__ float4* superchunk_memory(int warpgroup) const {
    return args.superchunks +
           static_cast<int64_t>(blockIdx.x * kConsumers + warpgroup) * (kOutputs / 4 + 1) * kWarpgroupThreads +
           thread();
  }

  // R8: f.o and f.closed, the state of the finished chunk `index`, go to the end of the chain; with `last` they become
  // the state of the whole row. Thread-private memory, element 4i.. of o at float4 i * 128.
  __device__ __forceinline__ void close_chunk(Fragments& f, int warpgroup, int index, bool last) const {
    const bool superchunk_ends = index % kSuperchunkChunks == kSuperchunkChunks - 1;
    if (index % kSuperchunkChunks != 0) {
      const ChainWeights w = chain_scalars(f.chained, f.closed);
      chain_with(f, chain_memory(warpgroup), w);
      f.closed = f.chained;
    }
    if ((last || superchunk_ends) && index >= kSuperchunkChunks) {
      float4* const memory = superchunk_memory(warpgroup);
      const float4 scalars = memory[kOutputs / 4 * kWarpgroupThreads];
      StateRows before{{scalars.x, scalars.y}, {scalars.z, scalars.w}};
      const ChainWeights w = chain_scalars(before, f.closed);
      chain_with(f, memory, w);
      f.closed = before;
    }
    if (last) {
      return;
    }
    if (superchunk_ends) {
      float4* const memory = superchunk_memory(warpgroup);
      store_output(f, memory);
      memory[kOutputs / 4 * kWarpgroupThreads] =
          make_float4(f.closed.m[0], f.closed.m[1], f.closed.l[0], f.closed.l[1]);
    } else {
      if (index == 0) {
        wait_staging(warpgroup);
      }
      store_output(f, chain_memory(warpgroup));
      f.chained = f.closed;
    }
  }

  __device__ __forceinline__ static void chain_with(Fragments& f, const float4* memory, const ChainWeights& w) {
#pragma unroll
    for (int i = 0; i < kOutputs / 4; ++i) {
      const float4 x = memory[i * kWarpgroupThreads];
      f.o[4 * i] = chain_output(x.x, f.o[4 * i], w, 4 * i);
      f.o[4 * i + 1] = chain_output(x.y, f.o[4 * i + 1], w, 4 * i + 1);
      f.o[4 * i + 2] = chain_output(x.z, f.o[4 * i + 2], w, 4 * i + 2);
      f.o[4 * i + 3] = chain_output(x.w, f.o[4 * i + 3], w, 4 * i + 3);
      if (i % 4 == 3) {
        asm volatile("" ::: "memory");  // bounds the loads in flight: S and P are live, registers are short
      }
    }
  }
  __device__ __forceinline__ static void store_output(const Fragments& f, float4* memory) {
#pragma unroll
    for (int i = 0; i < kOutputs / 4; ++i) {
      memory[i * kWarpgroupThreads] = make_float4(f.o[4 * i], f.o[4 * i + 1], f.o[4 * i + 2], f.o[4 * i + 3]);
    }
  }

  // The copy engine has read the finished tile that was staged in this warpgroup's chain memory.
  __device__ __forceinline__ void wait_staging(int warpgroup) const {
    if (thread() == 0) {
      store_wait_read();
    }
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
  }

  // Turns: warpgroup w issues its matrix work of one granule after warpgroup w - 1 did, so that one computes weights
  // while the other multiplies.
  __device__ __forceinline__ void wait_turn(int warpgroup) const {
    if constexpr (kSchedule.ordered) {
      named_barrier_sync(kTurnBarrier + warpgroup, 2 * kWarpgroupThreads);
    }
  }
  __device__ __forceinline__ void pass_turn(int warpgroup) const {
    if constexpr (kSchedule.ordered) {
      named_barrier_arrive(kTurnBarrier + (warpgroup + 1) % kConsumers, 2 * kWarpgroupThreads);
    }
  }

  __device__ __forceinline__ void release(const Ring& ring, const Position& at) const {
    if (thread() == 0) {
      ring.release(at);
    }
  }

  __device__ __forceinline__ void consume(int warpgroup) const {
    RingPosition<1> q_at;
    Position k_at;
    Position v_at;
    if (warpgroup == kConsumers - 1) {
      pass_turn(warpgroup);  // the first turn is warpgroup 0's
    }
    RingPosition<Layout::kTileSlots> tile_at;
    for (int index = take_tile(warpgroup, tile_at); index < args.order.total; index = take_tile(warpgroup, tile_at)) {
      QueryTile query = tile(index);
      const int block_tiles = key_tiles(query.first_row, Layout::kBlockM);
      query.first_row += warpgroup * kWarpgroupRows;
      const int tiles = key_tiles(query.first_row, kWarpgroupRows);
      Fragments f;
      f.rows.clear();
      f.closed.clear();
      if (block_tiles > 0) {
        q_ring(warpgroup).wait_full(q_at);  // producer: Q of this warpgroup
      }
      if (tiles > 0) {
        attend(f, warpgroup, query, tiles, k_at, v_at, q_at);
      } else {
#pragma unroll
        for (float& o : f.o) {
          o = 0.0F;
        }
        if (block_tiles > 0 && thread() == 0) {
          q_ring(warpgroup).release(q_at);
        }
      }
      skip(warpgroup, tiles, block_tiles, k_at, v_at);
      if (block_tiles > 0) {
        q_at.advance();
      }
      finish(f, warpgroup, query);
    }
    if (thread() == 0) {
      store_wait_read();
    }
  }

  // The loop over granules: while P_j V_j runs, S_{j+1} turns into weights.
  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, const QueryTile& query, int tiles, Position& k_at,
                                         Position& v_at, const RingPosition<1>& q_at) const {
    const int row = query.first_row + thread() / 32 * 16 + thread() % 32 / 4;
    const int limit[kRowsPerThread] = {key_limit(row), key_limit(row + 8)};
    const int first_masked = key_limit(query.first_row) / kTileKeys;

    k_ring().wait_full(k_at);  // producer: K_0
    start_scores(f, warpgroup, uniform(k_at.stage));
    wgmma_wait<0>();
    pin_registers(f.s);
    release(k_ring(), k_at);
    k_at.advance();
    softmax(f, 0, limit, first_masked);
    round_weights<kElement>(f.s, f.p);

#pragma unroll 1
    for (int j = 0; j + 1 < tiles; ++j) {
      k_ring().wait_full(k_at);  // producer: K_{j+1}
      wait_turn(warpgroup);
      start_scores(f, warpgroup, uniform(k_at.stage));
      v_ring().wait_full(v_at);  // producer: V_j
      start_output(f, uniform(v_at.stage), j % kChunkTiles == 0);
      pass_turn(warpgroup);
      wgmma_wait<1>();  // S_{j+1}
      pin_registers(f.s);
      release(k_ring(), k_at);
      k_at.advance();
      softmax(f, j + 1, limit, first_masked);
      wgmma_wait<0>();  // O
      pin_registers(f.o);
      release(v_ring(), v_at);
      v_at.advance();
      round_weights<kElement>(f.s, f.p);
      if ((j + 1) % kChunkTiles == 0) {
        close_chunk(f, warpgroup, j / kChunkTiles, false);
      } else if (f.moved) {
        rescale_output(f.o, f.rescale);
      }
    }
    if (thread() == 0) {
      q_ring(warpgroup).release(q_at);  // the producer may load the next tile's Q
    }
    const int j = tiles - 1;
    v_ring().wait_full(v_at);  // producer: the last V
    start_output(f, uniform(v_at.stage), j % kChunkTiles == 0);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      f.closed.m[h] = f.rows.m[h];
      f.closed.l[h] = sum_classes(f.rows.l[h]);
    }
    wgmma_wait<0>();
    pin_registers(f.o);
    release(v_ring(), v_at);
    v_at.advance();
    close_chunk(f, warpgroup, j / kChunkTiles, true);
  }

  // Granules that only the other warpgroup's rows see: take part in turns and barriers, compute nothing.
  __device__ __forceinline__ void skip(int warpgroup, int tiles, int block_tiles, Position& k_at,
                                       Position& v_at) const {
    for (int j = tiles; j < block_tiles; ++j) {
      k_ring().wait_full(k_at);
      release(k_ring(), k_at);
      k_at.advance();
      v_ring().wait_full(v_at);
      release(v_ring(), v_at);
      v_at.advance();
      if (tiles > 0 || j + 1 < block_tiles) {  // attend() takes a turn per granule but the first
        wait_turn(warpgroup);
        pass_turn(warpgroup);
      }
    }
  }

  // R9: f.o and f.closed -> O and LSE.
  __device__ __forceinline__ void finish(Fragments& f, int warpgroup, const QueryTile& query) const {
    if (query.first_row >= args.seqlen_q) {
      return;
    }
    const int row = thread() / 32 * 16 + thread() % 32 / 4;  // of this warpgroup
    float inverse[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const bool none = f.closed.m[h] == minus_infinity();
      inverse[h] = none ? 0.0F : __frcp_rn(f.closed.l[h]);
      const int i = query.first_row + row + 8 * h;
      if (args.lse != nullptr && thread() % 4 == 0 && i < args.seqlen_q) {
        args.lse[query.batch * args.lse_stride_batch + i * args.lse_stride_token + query.head * args.lse_stride_head] =
            none ? minus_infinity()
                 : __fmul_rn(__fadd_rn(soft_log2(f.closed.l[h]), __fsub_rn(f.closed.m[h], args.bias)), kLn2);
      }
    }
    wait_staging(warpgroup);  // also: every thread has read its part of the chain memory
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    uint8_t* const staging = shared_bytes + Layout::kChain + warpgroup * Layout::kChainBytes;
#pragma unroll
    for (int i = 0; i < kOutputs; i += 2) {
      const int h = i / 2 % 2;
      const uint32_t pair = finish_pair<kElement>(__fmul_rn(f.o[i], inverse[h]), __fmul_rn(f.o[i + 1], inverse[h]));
      const int column = i / 4 * 8 + thread() % 4 * 2;
      *reinterpret_cast<uint32_t*>(staging + swizzled_offset(kWarpgroupRows, row + 8 * h, column)) = pair;
    }
    fence_async_proxy();
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
    if (thread() == 0) {
      for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
        store_box(&args.o_map, shared_address(staging) + panel * panel_bytes(kWarpgroupRows), panel * kPanelColumns,
                  query.first_row, query.head, query.batch);
      }
      store_commit();
    }
  }
};

// Grid: at most one block per multiprocessor, each walking over query tiles.
template <class Tag>
__global__ void __launch_bounds__(PrefillLayout<Tag>::kThreads, 1)
    fmha_prefill_sm90(const __grid_constant__ PrefillArguments args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const PrefillKernel<Tag> kernel{args, shared_address(shared_bytes)};
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads);
  if (threadIdx.x == 0) {
    prefetch_map(&args.q_map);
    prefetch_map(&args.k_map);
    prefetch_map(&args.v_map);
    prefetch_map(&args.o_map);
    kernel.init_barriers();
  }
  __syncthreads();
  if (warpgroup == 0) {
    give_registers<Tag::kSchedule.producer_registers>();
    if (threadIdx.x == 0) {
      kernel.produce();
    }
  } else {
    take_registers<Tag::kSchedule.consumer_registers>();
    kernel.consume(warpgroup - 1);
  }
}

}  // namespace tessera::sm90
