// Compile-time description of the decode kernels and the arguments they take. No device code.
//
// A *unit* is one chunk of keys (R0's C) of one (sequence, K/V head), with every query row of it: rows are (query
// token, head of the group) pairs. A cluster of n blocks shares a unit: scores are split by granules of keys, outputs
// by columns, which is free under the contract.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::sm90 {

// What the bits depend on (R0).
struct DecodeNumbers {
  int head_dim;    // of Q, K and V
  bool bf16;       // else fp16
  int chunk_keys;  // C; benchmarks price other values than the contract's
};

// What the bits must not depend on.
struct DecodeSchedule {
  int rows;            // (query token, head) rows of a unit, at most: N of the products
  int cluster;         // blocks that share a unit
  bool paged = false;  // K and V row by row through a page table
};

inline constexpr int kDecodeGranule = 128;  // G of head dims up to 128 (R0)
// Warps of a block: copying, finishing, scores (8), outputs (4); the last two are whole warpgroups.
inline constexpr int kDecodeCopyWarps = 4;
inline constexpr int kDecodeFinishWarps = 4;
inline constexpr int kDecodeScoreWarps = 8;  // one k16 block of the granule each
inline constexpr int kDecodeOutputWarps = 4;
inline constexpr int kDecodeThreads =
    32 * (kDecodeCopyWarps + kDecodeFinishWarps + kDecodeScoreWarps + kDecodeOutputWarps);
inline constexpr int kDecodeColumnGroup = 16;  // output columns of one warp; states are stored by them
inline constexpr int kDecodeSharedLimit = 232448;
inline constexpr int kDecodeClasses = 8;  // R7
// An output warp's state of 8 rows and 16 columns: outputs by lane, then (m, l) of the rows.
inline constexpr int kPartOutputBytes = 512;
inline constexpr int kPartBytes = kPartOutputBytes + 64;
inline constexpr int kSlots = 2;  // of everything that blocks send one another, and of Q

template <class Tag>
struct DecodeLayout {
  static constexpr DecodeNumbers kNumbers = Tag::kNumbers;
  static constexpr DecodeSchedule kSchedule = Tag::kSchedule;
  static constexpr int kRows = kSchedule.rows;
  static constexpr int kCluster = kSchedule.cluster;
  static constexpr int kHeadDim = kNumbers.head_dim;

  static constexpr int kSlice = kHeadDim / kCluster;  // output columns of a block
  static constexpr int kPanel = kSlice < 64 ? kSlice : 64;
  static constexpr int kPanels = kSlice / kPanel;
  static constexpr int kPanelRow = kPanel * 2;  // bytes, also the width of the swizzle
  static constexpr int kPanelGranule = kDecodeGranule * kPanelRow;

  // Bytes of one stage or slot.
  static constexpr int kQBytes = kRows * kHeadDim * 2;
  static constexpr int kKBytes = kDecodeGranule * kHeadDim * 2;           // one granule
  static constexpr int kVBytes = kCluster * kDecodeGranule * kSlice * 2;  // the round's granules, own columns
  static constexpr int kPGranule = kDecodeGranule * kRows * 2;
  static constexpr int kPBytes = kCluster * kPGranule;
  static constexpr int kMaximaGranule = kDecodeScoreWarps * kRows * 4;
  static constexpr int kSumsGranule = kDecodeClasses * kRows * 4;
  static constexpr int kRescaleBytes = kCluster * kRows * 4;
  static constexpr int kInfoBytes = (kRescaleBytes + kRows * 4 + 4 + 15) / 16 * 16;  // a per granule, m, moved
  static constexpr int kBlockSumBytes = kDecodeScoreWarps * kSumsGranule;

  static constexpr int kPartsBytes = kSlice / kDecodeColumnGroup * kRows / 8 * kPartBytes;

  static constexpr int kSmall = kSlots * (kQBytes + kPBytes + kCluster * (kMaximaGranule + kSumsGranule) + kInfoBytes) +
                                kBlockSumBytes + kPGranule + kPartsBytes + 512 +
                                (kSchedule.paged ? 4 * kDecodeGranule : 0);
  static constexpr int kStages6 = (kDecodeSharedLimit - kSmall) / kKBytes;  // of K and V together
  static constexpr int kVStages = kStages6 / 2 < 4 ? kStages6 / 2 : 4;
  static constexpr int kKStages = kStages6 - kVStages < 4 ? kStages6 - kVStages : 4;

  static constexpr int kK = 0;
  static constexpr int kV = kK + kKStages * kKBytes;
  static constexpr int kQ = kV + kVStages * kVBytes;
  static constexpr int kP = kQ + kSlots * kQBytes;
  static constexpr int kStaging = kP + kSlots * kPBytes;  // a granule of P on its way to the blocks
  static constexpr int kMaxima = kStaging + kPGranule;
  static constexpr int kSums = kMaxima + kSlots * kCluster * kMaximaGranule;
  static constexpr int kInfo = kSums + kSlots * kCluster * kSumsGranule;
  static constexpr int kBlockSums = kInfo + kSlots * kInfoBytes;
  static constexpr int kParts = kBlockSums + kBlockSumBytes;
  static constexpr int kPresent = kParts + kPartsBytes;  // paged: a byte per key of a stage of K
  static constexpr int kBarriers = kPresent + (kSchedule.paged ? kKStages * kDecodeGranule : 0);

  // Barriers, 8 bytes each.
  static constexpr int kKFull = kBarriers;
  static constexpr int kKEmpty = kKFull + 8 * kKStages;
  static constexpr int kVFull = kKEmpty + 8 * kKStages;
  static constexpr int kVEmpty = kVFull + 8 * kVStages;
  static constexpr int kQFull = kVEmpty + 8 * kVStages;
  static constexpr int kQEmpty = kQFull + 8 * kSlots;
  static constexpr int kMaximaFull = kQEmpty + 8 * kSlots;
  static constexpr int kPFull = kMaximaFull + 8 * kSlots;
  static constexpr int kSumsFull = kPFull + 8 * kSlots;
  static constexpr int kPEmpty = kSumsFull + 8 * kSlots;
  static constexpr int kPartFull = kPEmpty + 8 * kSlots;
  static constexpr int kPartEmpty = kPartFull + 8 * kDecodeOutputWarps;
  static constexpr int kBytes = kPartEmpty + 8 * kDecodeOutputWarps;

  static_assert(kKStages >= 2 && kVStages >= 2 && kBytes <= kDecodeSharedLimit,
                "shared memory: allowed 227 KiB per block with two stages of K and V");
  static_assert(kRows % 8 == 0 && kRows >= 8 && kRows <= 16, "rows: allowed 8, 16");
  static_assert(kSlice >= kDecodeColumnGroup, "cluster: allowed head_dim / 16 blocks at most");
  static_assert(kCluster >= 1 && kCluster <= 8 && (kCluster & (kCluster - 1)) == 0, "cluster: allowed 1, 2, 4, 8");
};

struct DecodeStrides {
  int64_t batch, token, head;  // elements
};

// Shapes: Q, O (batch, seqlen_q, heads_kv * group, head_dim), K, V (batch, seqlen_k, heads_kv, head_dim).
struct DecodeArguments {
  CUtensorMap k_map;  // box (granule keys, 64 dims)
  CUtensorMap v_map;  // box (granule keys, panel dims)
  // Paged kernels have no maps: K and V are (page, slot, heads_kv, head_dim), `batch` of the strides is the page's.
  const uint16_t* k;
  const uint16_t* v;
  DecodeStrides k_strides, v_strides;
  const int32_t* page_table;
  int64_t page_table_stride;
  int64_t num_pages;
  int page_size;
  const uint16_t* q;
  uint16_t* o;
  DecodeStrides q_strides, o_strides;
  tessera_row_scalars lse;   // data null: not wanted
  const int32_t* seqlens_k;  // [batch], or null: all seqlen_k
  int batch, heads_kv, group, seqlen_q, seqlen_k;
  int causal;
  float c;     // R0
  float bias;  // b of R4
  // Scratch: states of chunks, and one counter per (sequence, head, column group) that every launch leaves at 0.
  float4* state_rows;
  float4* state_outputs;
  int* counters;
};

}  // namespace tessera::sm90
