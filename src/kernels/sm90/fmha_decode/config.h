// Compile-time description of the decode kernels and the arguments they take. No device code.
//
// A *unit* is one chunk of keys (R0's C) of one (sequence, K/V head) and one tile of its query rows: rows are (query
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
  int own;             // granules that a block scores per round, of which R3 is replayed together
  bool paged = false;  // K and V row by row through a page table
};

// Warps of a block: copying, finishing, scores, outputs; the last two are whole warpgroups.
inline constexpr int kDecodeCopyWarps = 4;
inline constexpr int kDecodeFinishWarps = 4;  // one per output warp
inline constexpr int kDecodeOutputWarps = 4;
inline constexpr int kDecodeColumnGroup = 16;  // output columns of one warp; states are stored by them
inline constexpr int kDecodeSharedLimit = 232448;
inline constexpr int kDecodeClasses = 8;  // R7
// An output warp's state of 8 rows and 16 columns: outputs by lane, then (m, l) of the rows.
inline constexpr int kPartOutputBytes = 512;
inline constexpr int kPartBytes = kPartOutputBytes + 64;
inline constexpr int kUnitSlots = 4;  // units that roles of a block may be apart
inline constexpr int kUnitBytes = 48;
inline constexpr int kSlots = 2;  // of everything that blocks send one another, and of Q
// A counter of finished chunks is a count with this above it; anything else is memory that no launch has used yet. As
// the upper word is a NaN with a payload, neither finite numbers nor what arithmetic makes of NaN look like it.
inline constexpr int kCountBits = 24;
inline constexpr unsigned long long kCounterTag = 0x7fd1e5a7b3ULL;
inline constexpr int kDecodeStatePieces = 64;  // of 16 bytes: a warp's 8 rows and 16 columns of a chunk's state

template <class Tag>
struct DecodeLayout {
  static constexpr DecodeNumbers kNumbers = Tag::kNumbers;
  static constexpr DecodeSchedule kSchedule = Tag::kSchedule;
  static constexpr int kRows = kSchedule.rows;
  static constexpr int kCluster = kSchedule.cluster;
  static constexpr int kOwn = kSchedule.own;
  static constexpr int kRound = kOwn * kCluster;  // granules of a round
  static constexpr int kHeadDim = kNumbers.head_dim;
  static constexpr int kGranule = kHeadDim <= 128 ? 128 : 64;  // G of R0
  static constexpr int kScoreWarps = kGranule / 16;            // one k16 block each
  static constexpr int kThreads = 32 * (kDecodeCopyWarps + kDecodeFinishWarps + kScoreWarps + kDecodeOutputWarps);

  static constexpr int kSlice = kHeadDim / kCluster;  // output columns of a block
  static constexpr int kPanel = kSlice < 64 ? kSlice : 64;
  static constexpr int kPanels = kSlice / kPanel;
  static constexpr int kUsefulWarps = kPanel / kDecodeColumnGroup;  // output warps whose columns are no copies
  static constexpr int kPanelRow = kPanel * 2;                      // bytes, also the width of the swizzle
  static constexpr int kPanelGranule = kGranule * kPanelRow;

  // Bytes of one stage or slot.
  static constexpr int kQBytes = kRows * kHeadDim * 2;
  static constexpr int kKBytes = kGranule * kHeadDim * 2;           // one granule
  static constexpr int kVBytes = kCluster * kGranule * kSlice * 2;  // a pass's granules, own columns
  static constexpr int kPGranule = kGranule * kRows * 2;
  static constexpr int kPBytes = kCluster * kPGranule;
  static constexpr int kMaximaGranule = kScoreWarps * kRows * 4;
  static constexpr int kSumsGranule = kDecodeClasses * kRows * 4;
  static constexpr int kRescaleBytes = kCluster * kRows * 4;
  static constexpr int kInfoBytes = (kRescaleBytes + kRows * 4 + 4 + 15) / 16 * 16;  // a per granule, m, moved
  static constexpr int kBlockSumBytes = kScoreWarps * kSumsGranule;
  static constexpr int kBlockSumSlots = kOwn > 1 ? kSlots : 1;  // a round begins with a barrier of its own

  static constexpr int kPartsBytes = kSlice / kDecodeColumnGroup * kRows / 8 * kPartBytes;

  static constexpr int kSmall =
      kSlots * (kQBytes + kPBytes + kRound * kMaximaGranule + kCluster * kSumsGranule + kInfoBytes) +
      kBlockSumSlots * kBlockSumBytes + kPGranule + kPartsBytes + 640 + (kSchedule.paged ? 4 * kGranule : 0);
  static constexpr int kStages6 = (kDecodeSharedLimit - kSmall) / kKBytes;  // of K and V together
  static constexpr int kVStages = kStages6 / 2 < 4 ? kStages6 / 2 : 4;
  static constexpr int kKStages = kStages6 - kVStages < 4 ? kStages6 - kVStages : 4;

  static constexpr int kK = 0;
  static constexpr int kV = kK + kKStages * kKBytes;
  static constexpr int kQ = kV + kVStages * kVBytes;
  static constexpr int kP = kQ + kSlots * kQBytes;
  static constexpr int kStaging = kP + kSlots * kPBytes;  // a granule of P on its way to the blocks
  static constexpr int kMaxima = kStaging + kPGranule;
  static constexpr int kSums = kMaxima + kSlots * kRound * kMaximaGranule;
  static constexpr int kInfo = kSums + kSlots * kCluster * kSumsGranule;
  static constexpr int kBlockSums = kInfo + kSlots * kInfoBytes;
  static constexpr int kParts = kBlockSums + kBlockSumSlots * kBlockSumBytes;
  static constexpr int kPresent = kParts + kPartsBytes;  // paged: a byte per key of a stage of K
  static constexpr int kBarriers = kPresent + (kSchedule.paged ? kKStages * kGranule : 0);

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
  static constexpr int kUnitFull = kPartEmpty + 8 * kDecodeOutputWarps;
  static constexpr int kUnitEmpty = kUnitFull + 8 * kUnitSlots;
  static constexpr int kUnits = (kUnitEmpty + 8 * kUnitSlots + 15) / 16 * 16;
  static constexpr int kBytes = kUnits + kUnitBytes * kUnitSlots;

  static_assert(kKStages >= 2 && kVStages >= 2 && kBytes <= kDecodeSharedLimit,
                "shared memory: allowed 227 KiB per block with two stages of K and V");
  static_assert(kRows % 8 == 0 && kRows >= 8 && kRows <= 16, "rows: allowed 8, 16");
  static_assert(kSlice >= kDecodeColumnGroup, "cluster: allowed head_dim / 16 blocks at most");
  static_assert(kRound <= 16, "own: allowed up to 16 granules per round");
  static_assert(kCluster >= 1 && kCluster <= 8 && (kCluster & (kCluster - 1)) == 0, "cluster: allowed 1, 2, 4, 8");
};

// Division of numbers below 2^31 by a number that the host knows: (n * multiplier) >> shift, exact because the
// multiplier is 2^shift / divisor rounded up and shift is 31 + ceil(log2 divisor).
struct Divisor {
  uint32_t value = 1;
  uint32_t multiplier = 1U << 31;
  uint32_t shift = 31;

  static constexpr Divisor of(uint32_t value) {
    uint32_t bits = 0;
    while (uint64_t{1} << bits < value) {
      ++bits;
    }
    return {value, static_cast<uint32_t>(((uint64_t{1} << (31 + bits)) + value - 1) / value), 31 + bits};
  }
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
  Divisor page_size;
  const uint16_t* q;
  void* o;
  DecodeStrides q_strides, o_strides;
  tessera_row_scalars lse, row_max, row_sum;  // data null: not wanted
  const float* sinks;                         // [heads], or null
  const int32_t* seqlens_k;                   // [batch], or null: all seqlen_k
  int batch, seqlen_q, seqlen_k;
  Divisor group;  // heads of a K/V head
  int dims;       // head_dim of the problem, up to the kernel's: what is missing counts as zeros
  int window;     // keys to the left that a token sees besides its own, or -1: all
  int window_right;
  Divisor row_tiles;      // of a K/V head
  Divisor heads;          // K/V heads * row_tiles: as many units as there are of a chunk
  Divisor uniform_units;  // of a sequence of seqlen_k keys
  int causal;
  int wide_output;   // O in fp32
  int unnormalized;  // O as in the state
  float c;           // R0
  float bias;        // b of R4
  // Scratch: states of chunks, one counter per (sequence, head of `heads`, column group), and one of units given out.
  float4* states;
  unsigned long long* counters;
  unsigned long long* tickets;
};

}  // namespace tessera::sm90
