// Compile-time description of the prefill kernels and the arguments they take. No device code: what a kernel needs in
// shared memory, and whether its schedule is possible at all, is checked by any C++ compiler.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "contract/plan.h"

namespace tessera::sm90 {

// What the bits depend on (R0).
struct PrefillNumbers {
  int head_dim;      // of Q, K and V
  bool bf16;         // else fp16
  int granule_keys;  // G; also the KV tile
  int chunk_keys;    // C, a multiple of G; 0: one chunk without end (not the contract: prices R8)
  bool lazy_max;     // T = 8; false: T = 0 (not the contract: prices T)
};

// What the bits must not depend on.
struct PrefillSchedule {
  bool causal;              // compiled with the bottom-right causal mask
  int consumer_warpgroups;  // 64 query rows each
  int stages;               // of K and of V
  int producer_registers;   // per thread, after reallocation
  int consumer_registers;
  bool ordered;  // warpgroups issue their matrix work in turns
};

inline constexpr int kWarpgroupRows = 64;
inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kSharedLimitBytes = 232448;  // 227 KiB per block on sm_90
inline constexpr int kElementBytes = 2;

// Shared memory in bytes from the 1024-byte aligned base.
template <class Tag>
struct PrefillLayout {
  static constexpr PrefillNumbers kNumbers = Tag::kNumbers;
  static constexpr PrefillSchedule kSchedule = Tag::kSchedule;

  static constexpr int kBlockM = kWarpgroupRows * kSchedule.consumer_warpgroups;
  static constexpr int kThreads = kWarpgroupThreads * (kSchedule.consumer_warpgroups + 1);
  static constexpr int kQBytes = kWarpgroupRows * kNumbers.head_dim * kElementBytes;          // per warpgroup
  static constexpr int kKvBytes = kNumbers.granule_keys * kNumbers.head_dim * kElementBytes;  // per stage of K or V
  // fp32 O of the chunks before the current one (R8), per warpgroup; the finished tile is staged there too.
  static constexpr int kChainBytes = kWarpgroupRows * kNumbers.head_dim * static_cast<int>(sizeof(float));

  static constexpr int kQ = 0;
  static constexpr int kK = kQ + kQBytes * kSchedule.consumer_warpgroups;
  static constexpr int kV = kK + kKvBytes * kSchedule.stages;
  static constexpr int kChain = kV + kKvBytes * kSchedule.stages;
  static constexpr int kBarriers = kChain + kChainBytes * kSchedule.consumer_warpgroups;
  // Full and empty of each Q, of each stage of K and V, and of the slots of tile indices.
  static constexpr int kTileSlots = 2;  // query tiles handed to the consumers ahead of time
  static constexpr int kBarrierCount = 2 * kSchedule.consumer_warpgroups + 4 * kSchedule.stages + 2 * kTileSlots;
  static constexpr int kTiles = kBarriers + 8 * kBarrierCount;
  static constexpr int kBytes = kTiles + 4 * kTileSlots;

  static_assert(kBytes <= kSharedLimitBytes, "shared memory: allowed 227 KiB per block on sm_90; use fewer stages");
  static_assert(kNumbers.head_dim == 64 || kNumbers.head_dim == 128, "head_dim: allowed 64, 128 (one wgmma wide)");
  static_assert(kNumbers.granule_keys == 128, "granule_keys: allowed 128, the N of the score wgmma");
  static_assert(kNumbers.chunk_keys % kNumbers.granule_keys == 0, "chunk_keys: allowed multiples of the granule");
  static_assert((kSchedule.producer_registers + kSchedule.consumer_warpgroups * kSchedule.consumer_registers) *
                        kWarpgroupThreads <=
                    65536,
                "registers: the roles together exceed the register file");
};

// Order of the query tiles: sections of `section_heads` (sequence, head) pairs, in each all heads of the last query
// tile first (the longest under a causal mask), so that the heads in flight fit the L2 cache.
struct TileOrder {
  int query_tiles;
  int heads_and_batch;  // heads_q * batch
  int section_heads;
  int total;  // query_tiles * heads_and_batch
};

// Kernel arguments. Shapes: Q, O (batch, seqlen_q, heads_q, head_dim), K, V (batch, seqlen_k, heads_kv, head_dim).
struct PrefillArguments {
  CUtensorMap q_map;  // box (64 tokens, 64 dims)
  CUtensorMap k_map;  // box (granule_keys tokens, 64 dims)
  CUtensorMap v_map;
  CUtensorMap o_map;  // box (64 tokens, 64 dims)
  float* lse;         // natural log-sum-exp, or null
  int64_t lse_stride_batch, lse_stride_token, lse_stride_head;
  float4* superchunks;  // scratch, superchunk_bytes(); only touched beyond 16 chunks of keys
  TileOrder order;
  int* tile_counter;  // 0 before the first launch; every launch leaves it at 0
  int seqlen_q, seqlen_k;
  int heads_q, group;  // group = heads_q / heads_kv
  float c;             // R0
  float bias;          // b of R4
};

}  // namespace tessera::sm90
