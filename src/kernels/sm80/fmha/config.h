// Compile-time description of the attention kernels and the arguments they take. No device code: what a kernel needs in
// shared memory, and whether its schedule is possible at all, is checked by any C++ compiler.
#pragma once

#include <cstdint>

#include "contract/plan.h"
#include "tessera/tessera.h"

namespace tessera::sm80 {

// What the bits depend on (R0), and the head dims that fit: smaller ones are zero-filled, which adds zero products
// only.
struct Numbers {
  int head_dim_qk;
  int head_dim_v;
  bool bf16;         // else fp16
  int granule_keys;  // G
};

// When a stage of K or V is filled again.
enum class Refill {
  kBehindProducts,   // at once, which takes a barrier behind the products
  kAtNextTile,       // behind the barrier that opens the tile after it, K or V
  kAtNextOfTensor,   // behind the barrier that opens the next tile of the same tensor; two stages or more of whole
                     // granules
  kHalfAPhaseLater,  // K behind the weights, V in the middle of the next scores: each warp says when it has read
                     // (mbarriers) and goes on, so that none waits for the slowest
};

// What tests do to the stages of a kernel.
enum class StageFault {
  kNone,
  kPoison,         // what has been read becomes NaN before it is filled again
  kPoisonAndLose,  // and the second tile of V is never filled: the poison has to show
};

// What the bits must not depend on.
struct Schedule {
  int warps;          // 16 query rows each
  int stages;         // of K and of V
  int tile_keys;      // keys of a stage: a divisor of G
  int blocks_per_sm;  // that the register budget leaves room for
  bool query_in_registers;
  Refill refill;
  int staging_warps = 0;  // warps more, which copy K and V for the others; `refill` is without meaning then. One, or
                          // four (a warpgroup), which give registers to the others
  StageFault fault = StageFault::kNone;
};

inline constexpr int kWarpRows = 16;
inline constexpr int kWarpThreads = 32;
inline constexpr int kRowsPerThread = 2;   // rows r and r + 8 of a warp, r = lane / 4
inline constexpr int kPanelElements = 64;  // 128 bytes: the unit of the swizzle
inline constexpr int kElementBytes = 2;
inline constexpr int kSharedPerBlock = 232448;  // 227 KiB on sm_90
inline constexpr int kSharedPerSm = 233472;     // 228 KiB, of which every block takes 1 KiB more than it asks for

// Accumulators of R8 that wait in the workspace, by what ends when they grow.
enum ChainLevel : int { kChunkLevel = 0, kSuperchunkLevel = 1, kSegmentLevel = 2, kChainLevels = 3 };

// Shared memory in bytes from the start, and sizes that follow from a tag.
template <class Tag>
struct Layout {
  static constexpr Numbers kNumbers = Tag::kNumbers;
  static constexpr Schedule kSchedule = Tag::kSchedule;

  static constexpr int kWorkers = kSchedule.warps * kWarpThreads;  // threads that own rows
  static constexpr int kThreads = kWorkers + kSchedule.staging_warps * kWarpThreads;
  static constexpr int kBlockM = kSchedule.warps * kWarpRows;
  static constexpr int kGranule = kNumbers.granule_keys;
  static constexpr int kQRowBytes = kNumbers.head_dim_qk * kElementBytes;  // of Q and K
  static constexpr int kVRowBytes = kNumbers.head_dim_v * kElementBytes;
  static constexpr int kTileKeys = kSchedule.tile_keys;
  static constexpr int kTiles = kGranule / kTileKeys;     // of a granule
  static constexpr int kKBytes = kTileKeys * kQRowBytes;  // a stage of K
  static constexpr int kVBytes = kTileKeys * kVRowBytes;
  // Granules whose page bytes are there: K is filled again while those of the granule that it held are still read.
  static constexpr int kPresentSlots = (kTiles - 1 + kSchedule.stages) / kTiles + 1;

  static constexpr int kQ = 0;
  static constexpr int kK = kQ + kBlockM * kQRowBytes;
  static constexpr int kV = kK + kKBytes * kSchedule.stages;
  static constexpr int kPresent = kV + kVBytes * kSchedule.stages;   // bytes: does the page of this key exist
  static constexpr int kSeen = kPresent + kGranule * kPresentSlots;  // bits: does any row see this key (custom masks)
  static constexpr int kBarriers = kSeen + 4 * static_cast<int>(sizeof(uint32_t));  // mbarriers
  static constexpr int kBarrierBytes = 8;
  static constexpr bool kHasBarriers = kSchedule.staging_warps > 0 || kSchedule.refill == Refill::kHalfAPhaseLater;
  static constexpr int kBytes = kBarriers + (kHasBarriers ? 4 * kSchedule.stages * kBarrierBytes : 0);

  static constexpr int kOutputs = kNumbers.head_dim_v / 2;  // fp32 per thread of a warp's O (16, head_dim_v)
  static constexpr int kStateVectors = kOutputs / 4 + 1;    // float4 per thread of a state in the workspace
  static constexpr int64_t kStateBytes = int64_t{kStateVectors} * 16 * kWorkers;

  static_assert(kBytes <= kSharedPerBlock, "shared memory: allowed 227 KiB per block on sm_90; use fewer stages");
  static_assert((kBytes + 1024) * kSchedule.blocks_per_sm <= kSharedPerSm, "blocks_per_sm: shared memory is short");
  static_assert(kSchedule.stages >= 1 && kSchedule.stages <= 3, "stages: allowed 1, 2, 3");
  static_assert(kSchedule.warps == 3 || kSchedule.warps == 4 || kSchedule.warps == 8, "warps: allowed 3, 4, 8");
  static_assert(kGranule % kTileKeys == 0 && kTileKeys % 32 == 0, "tile_keys: allowed divisors of G from 32");
  static_assert(kSchedule.staging_warps == 0 || !kSchedule.query_in_registers,
                "query_in_registers: allowed without staging warps, which have no rows");
  static_assert(kSchedule.staging_warps < 2 || (kSchedule.staging_warps == 4 && kSchedule.warps % 4 == 0),
                "staging_warps: allowed 0, 1, or 4 beside whole warpgroups");
  // Of a multiprocessor there are 512 for each of its 128 lanes. Both numbers are multiples of 8.
  static constexpr int kStagerRegisters = 40;
  static constexpr int kWorkerRegisters =
      (512 / kSchedule.blocks_per_sm - kStagerRegisters) / (kSchedule.warps < 4 ? 1 : kSchedule.warps / 4) / 8 * 8;
  static_assert(kNumbers.head_dim_qk % kPanelElements == 0 && kNumbers.head_dim_v % kPanelElements == 0,
                "head dims: allowed multiples of 64; smaller ones are filled up");
  static_assert(kGranule == 64 || kGranule == 128, "granule_keys: allowed 64, 128");
  static_assert(kChunkKeys % kGranule == 0, "granule_keys: allowed divisors of a chunk");
};

// Kernel arguments. `params` is the caller's, its pointers device memory.
struct Arguments {
  tessera_fmha_params params;
  float c;         // R0, R1
  float bias;      // b of R4
  bool modifiers;  // softcap or ALiBi
  bool q_vectors;  // Q rows are made of aligned 16-byte pieces
  bool k_vectors[TESSERA_MAX_SEGMENTS];
  bool v_vectors[TESSERA_MAX_SEGMENTS];
  bool o_pairs;            // pairs of O elements are aligned to their size
  bool paired_tiles;       // an item is a query tile from the end and its mirror from the start
  int group;               // query heads per K/V head
  int query_tiles;         // of kBlockM rows, per (sequence, K/V head), for the largest sequence
  int64_t items_per_head;  // query_tiles, or half of them (rounded up) with paired_tiles
  int64_t items;
  int64_t chunk_begin, chunk_end;  // of every segment; the API allows a range for a single one only
  void* states;                    // (block, level, float4, thread); levels below state_levels exist
  int state_levels;
};

}  // namespace tessera::sm80
