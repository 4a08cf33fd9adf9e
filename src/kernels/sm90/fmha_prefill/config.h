// Compile-time description of the prefill kernels and the arguments they take. No device code: what a kernel needs in
// shared memory, and whether its schedule is possible at all, is checked by any C++ compiler.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <algorithm>
#include <cstdint>

#include "contract/plan.h"
#include "tessera/tessera.h"

namespace tessera::sm90 {

// What the bits depend on (R0).
struct PrefillNumbers {
  int head_dim;      // of the tiles of Q, K and V in shared memory
  bool bf16;         // else fp16
  int granule_keys;  // G; also the KV tile
  int chunk_keys;    // C, a multiple of G; 0: one chunk without end (not the contract: prices R8)
  // Dims of Q and K, and of V, that are multiplied, where a problem has fewer than the tiles hold; 0: head_dim.
  int qk_dims = 0;
  int v_dims = 0;

  constexpr int dims_qk() const { return qk_dims > 0 ? qk_dims : head_dim; }
  constexpr int dims_v() const { return v_dims > 0 ? v_dims : head_dim; }
};

// What the bits must not depend on.
struct PrefillSchedule {
  bool causal;              // compiled with the bottom-right causal mask
  int consumer_warpgroups;  // 64 query rows each
  int stages;               // of K and of V
  int producer_registers;   // per thread, after reallocation
  int consumer_registers;
  bool general_finish = false;  // sinks, O in fp32, un-normalised states (general_finish.cuh)
  bool ragged = false;          // lengths, masks and pages at run time (ragged.cuh); then `causal` is not looked at
  bool modifiers = false;       // softcap, ALiBi, custom bits: every score is looked at (ragged_mask.cuh)
  bool timeline = false;        // time stamps of what the consumers do (timeline.cuh), for debugging
};

inline constexpr int kWarpgroupRows = 64;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupWarps = kWarpgroupThreads / 32;
inline constexpr int kSharedLimitBytes = 232448;  // 227 KiB per block on sm_90
inline constexpr int kElementBytes = 2;
inline constexpr int kTileSlotBytes = 32;  // a QueryTile (common.cuh) on its way to the consumers
inline constexpr int kLeastBoxKeys = 8;    // rows of K or V that the copy engine fetches at a time: whole swizzle atoms
inline constexpr int kWideHeadDim = 256;   // a quarter of its chained O has a place on chip: consumer_wide.cuh

// Consumers of a block, and floats per thread of the chained O that they keep on chip at least: sizes of scratch.
constexpr int most_consumers(int64_t head_dim) {
  return head_dim < kWideHeadDim ? 3 : 2;
}
constexpr int least_chain_shared(int64_t head_dim) {
  return head_dim < kWideHeadDim ? 32 : 0;
}

// Of a tile's description in shared memory: 16 numbers of the tile and 4 of each consumer.
inline constexpr int kRaggedSlotBytes = 64 + 16 * 4;

// Shared memory in bytes from the 1024-byte aligned base.
template <class Tag>
struct PrefillLayout {
  static constexpr PrefillNumbers kNumbers = Tag::kNumbers;
  static constexpr PrefillSchedule kSchedule = Tag::kSchedule;

  static constexpr int kBlockM = kWarpgroupRows * kSchedule.consumer_warpgroups;
  static constexpr int kThreads = kWarpgroupThreads * (kSchedule.consumer_warpgroups + 1);
  static constexpr int kQBytes = kWarpgroupRows * kNumbers.head_dim * kElementBytes;          // per warpgroup
  static constexpr int kKvBytes = kNumbers.granule_keys * kNumbers.head_dim * kElementBytes;  // per stage of K or V
  static constexpr int kPanelBytes = kWarpgroupRows * 64 * kElementBytes;                     // (64, 64) of O

  static constexpr int kQ = 0;
  static constexpr int kK = kQ + kQBytes * kSchedule.consumer_warpgroups;
  static constexpr int kV = kK + kKvBytes * kSchedule.stages;
  static constexpr int kChain = kV + kKvBytes * kSchedule.stages;
  // fp32 O of the chunks before the current one (R8), per warpgroup: as many panels' worth of it as fit, the rest lies
  // in global scratch; of a wide O, all of it. The finished tile is staged here too, a wide one half at a time.
  static constexpr bool kWide = kNumbers.head_dim == kWideHeadDim;
  static constexpr int kRest = kSharedLimitBytes - 2048 - kChain;
  static constexpr int kChainPanels =
      std::min(2 * kNumbers.head_dim / 64, kRest / kSchedule.consumer_warpgroups / kPanelBytes);
  static constexpr int kChainBytes = kChainPanels * kPanelBytes;
  static constexpr int kChainShared = kWide ? 0 : kChainBytes / kWarpgroupThreads / 16;     // float4 per thread
  static constexpr int kChainGlobal = kNumbers.head_dim / 8 - kChainShared;                 // float4 per thread
  static constexpr int kStates = kChain + kChainBytes * kSchedule.consumer_warpgroups;      // (m, l) of each row
  static constexpr int kStateBytes = kWarpgroupRows * 2 * static_cast<int>(sizeof(float));  // per warpgroup
  static constexpr int kBarriers = kStates + kStateBytes * kSchedule.consumer_warpgroups;
  // Full and empty of each Q, of each stage of K and V, and of the slots of tiles.
  static constexpr int kTileSlots = 4;  // query tiles handed to the consumers ahead of time
  static constexpr int kBarrierCount = 2 * kSchedule.consumer_warpgroups + 4 * kSchedule.stages + 2 * kTileSlots;
  static constexpr int kTiles = (kBarriers + 8 * kBarrierCount + 15) / 16 * 16;
  // Ragged kernels: a slot is a RaggedSlot, and a word per stage has a bit for each absent box of keys.
  static constexpr int kSlotBytes = kSchedule.ragged ? kRaggedSlotBytes : kTileSlotBytes;
  static constexpr int kAbsent = kTiles + kSlotBytes * kTileSlots;
  static constexpr int kTaken =
      kAbsent + (kSchedule.ragged ? 4 * kSchedule.stages : 0);      // mbarrier: most of a tile is fetched
  static constexpr int kRaw = kTaken + (kSchedule.ragged ? 8 : 0);  // mbarriers: V of a stage is there, not clean yet
  static constexpr int kTimeline = kRaw + (kSchedule.ragged ? 8 * kSchedule.stages : 0);  // stamps of each consumer
  static constexpr int kBytes = kTimeline + (kSchedule.timeline ? 4 * kSchedule.consumer_warpgroups : 0);

  static_assert(kBytes <= kSharedLimitBytes, "shared memory: allowed 227 KiB per block on sm_90; use fewer stages");
  static_assert(4 * kChainShared >= std::min(least_chain_shared(kNumbers.head_dim), kNumbers.head_dim / 2),
                "chain: see chain_bytes()");
  static_assert(kChainPanels >= kNumbers.head_dim / 64 / (kWide ? 2 : 1),
                "shared memory: no room to stage the finished tile");
  static_assert(kNumbers.head_dim == 64 || kNumbers.head_dim == 128 || kWide, "head_dim: allowed 64, 128, 256");
  static_assert(kNumbers.granule_keys == (kWide ? 64 : 128), "granule_keys: allowed G of R0, the N of the score wgmma");
  static_assert(kNumbers.chunk_keys % kNumbers.granule_keys == 0, "chunk_keys: allowed multiples of the granule");
  static_assert(kSchedule.consumer_warpgroups <= most_consumers(kNumbers.head_dim),
                "consumer_warpgroups: see chain_bytes()");
  // What a block starts with is all that its roles can share: registers come in eights per thread.
  static constexpr int kStartRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kSchedule.producer_registers + kSchedule.consumer_warpgroups * kSchedule.consumer_registers <=
                    (kSchedule.consumer_warpgroups + 1) * kStartRegisters,
                "registers: the roles together exceed what the block starts with");
};

// Order of the query tiles: sections of `section_heads` (sequence, head) pairs, in each all heads of the last query
// tile first (the longest under a causal mask), so that the heads in flight fit the L2 cache.
struct TileOrder {
  int query_tiles;
  int first_row;        // of the first tile, <= 0: tiles end with the sequence, so that the partial one is the shortest
  int heads_and_batch;  // pairs cut into tiles of kBlockM rows
  int section_heads;
  int tall;  // query_tiles * heads_and_batch
  // Then the other pairs, cut into tiles one warpgroup lower, so that the last wave of blocks is a shorter one.
  int low_query_tiles;
  int total;
};

inline constexpr int kTimelineStamps = 2048;  // at most, of a consumer

// What ragged kernels take beyond the others: lengths, visibility (R2) and layouts that are only known on the device.
// Lengths, positions and pages in the caller's arrays may be anything: see token_range() of ragged_tiles.h. Offsets in
// cu_seqlens must lie in the packed tensors, whose sizes are not known here.
struct RaggedArguments {
  // Of K and V where a box begins before its first row, or has none: Clip::kBegin of tma_map.h. Those of
  // PrefillArguments are Clip::kEnd.
  CUtensorMap k_begin_map, v_begin_map;
  int32_t qk_panels, v_panels;  // of 64 dims that there are
  int32_t v_dims;
  // (batch + 1), (batch); null: seqlen_q or seqlen_k tokens each, at the same place of each sequence.
  const int32_t* cu_seqlens_q;
  const int32_t* seqlens_q;
  const int32_t* cu_seqlens_k;
  const int32_t* seqlens_k;
  const int32_t* q_positions;  // (batch) or null
  const int32_t* page_table;   // null: not paged
  int64_t page_table_stride;
  int32_t page_size, num_pages;
  int32_t box_shift;  // log2 of the keys of a box of K and V
  // Key j is visible to position p if p - left <= j < p + right_end; with compress_ratio > 0 if j < (p + 1) / ratio.
  int64_t left, right_end;
  int32_t compress_ratio;
  int32_t first_key, last_key;  // of the chunk range
  // (batch + 1): query tiles per head of the sequences before; null: query_tiles each, or up to kFewSequences lengths.
  const int32_t* tile_prefix;
  int32_t batch;
  int32_t query_tiles;
  int64_t section_keys;   // of as many K/V heads as stay in the L2 cache together,
  int64_t section_heads;  // but of this many at least
  bool fast_finish;       // R9 without sinks, fp32 or states: through the copy engine
  // Kernels with modifiers only.
  bool natural;                  // softcap or ALiBi make the scores natural; then c is log2 e
  float softmax_scale, softcap;  // softcap 0: off
  const float* alibi_slopes;     // per query head, or null
  tessera_bit_mask mask;
};

// Kernel arguments. Shapes: Q, O (batch, seqlen_q, heads_q, head_dim), K, V (batch, seqlen_k, heads_kv, head_dim).
struct PrefillArguments {
  CUtensorMap q_map;  // box (64 tokens, 64 dims)
  CUtensorMap k_map;  // box (granule_keys tokens, 64 dims)
  CUtensorMap v_map;
  CUtensorMap o_map;  // box (64 tokens, 64 dims)
  float* lse;         // natural log-sum-exp, or null
  int64_t lse_stride_batch, lse_stride_token, lse_stride_head;
  float4* chains;       // scratch: what of O of the chunks so far finds no room in shared memory
  float4* superchunks;  // scratch; only touched beyond 16 chunks of keys
  TileOrder order;
  int* tile_counter;  // 0 before the first launch; every launch leaves it at 0
  int seqlen_q, seqlen_k;
  int heads_q, group;  // group = heads_q / heads_kv
  float c;             // R0
  float bias;          // b of R4
  float move_limit;    // 2^(b + 7): sums of weights below it prove that no maximum moves
  uint32_t zero;       // 0, which the compiler does not know
  // General finish only.
  void* o;  // of the element type, or fp32 with wide_output
  int64_t o_stride_batch, o_stride_token, o_stride_head;
  tessera_row_scalars row_max, row_sum;  // m - b and l of R9
  const float* sinks;                    // per query head, or null
  bool wide_output, unnormalized;
  uint2* timeline;         // (block, consumer, kTimelineStamps) of (event, clock); kernels with a timeline only
  RaggedArguments ragged;  // ragged kernels only; their maps are those of make_clipped_map()
};

}  // namespace tessera::sm90
