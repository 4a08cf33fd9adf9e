// Compile-time description of the prefill kernel of head dim 512 and the arguments it takes. No device code.
//
// Two blocks share 128 query rows. Both hold all of Q; keys go in pairs of granules (R0: 64 keys each), of which each
// block scores one and tells the other its maxima, weights and sums; each block sums one half of the output columns
// over all keys. A sum over keys is never split, so no bit depends on it.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm90/fmha_prefill/config.h"
#include "kernels/sm90/smem_tile.cuh"
#include "tessera/tessera.h"

namespace tessera::sm90 {

template <bool kBf16Value>
struct Prefill512 {
  static constexpr bool kBf16 = kBf16Value;  // else fp16
  static constexpr bool kChunks = true;      // R8; a benchmark's variant has one chunk without end
};

// Shared memory of a block in bytes from its 1024-byte aligned base.
struct Layout512 {
  static constexpr int kDims = 512;           // of Q and K
  static constexpr int kColumns = kDims / 2;  // of V and O, per block
  static constexpr int kConsumers = 2;        // warpgroups of 64 rows
  static constexpr int kRows = 64;            // per consumer
  static constexpr int kBlockM = kConsumers * kRows;
  static constexpr int kGranule = 64;
  static constexpr int kPairKeys = 2 * kGranule;
  static constexpr int kChunkPairs = kChunkKeys / kPairKeys;

  // Slices on their way through the ring: 64 dims of the own granule's K, or 16 keys of the own columns of V.
  static constexpr int kSlices = 8;  // of the K, and of the V, of a pair; stages of the ring
  static constexpr int kSliceBytes = panel_bytes(kGranule);
  static constexpr int kSliceKeys = kPairKeys / kSlices;
  static constexpr int kSlicePanels = kColumns / kPanelColumns;
  static_assert(kSliceBytes * kSlices == kGranule * kDims * 2 && kSlicePanels * panel_bytes(kSliceKeys) == kSliceBytes);

  static constexpr int kQ = 0;
  static constexpr int kQBytes = kRows * kDims * 2;  // per consumer
  static constexpr int kRing = kQ + kConsumers * kQBytes;
  static constexpr int kWeights = kRing + kSlices * kSliceBytes;  // P of the other block's granule, per consumer
  static constexpr int kWeightBytes = panel_bytes(kRows);
  static constexpr int kSums = kWeights + kConsumers * kWeightBytes;  // R7's sums of it, 16 bytes per thread
  static constexpr int kSumBytes = 128 * 16;
  static constexpr int kMaxima = kSums + kConsumers * kSumBytes;  // its largest scores, a float per row
  static constexpr int kMaximaBytes = kRows * 4;
  // What registers have no room for, per consumer: l of R7 and the maxima of the chunk that has just ended.
  static constexpr int kRowSums = kMaxima + kConsumers * kMaximaBytes;  // 16 bytes per thread
  static constexpr int kClosed = kRowSums + kConsumers * kSumBytes;     // as kMaxima
  static constexpr int kOwnSums = kClosed + kConsumers * kMaximaBytes;  // R7's sums of the own granule, as kSums
  static constexpr int kFactors = kOwnSums + kConsumers * kSumBytes;    // a of R3 of a pair's granules, 8 bytes per row
  static constexpr int kFactorBytes = kRows * 8;
  static constexpr int kTileSlots = 2;  // query tiles that are known ahead
  static constexpr int kTileBytes = 64;
  static constexpr int kTiles = kFactors + kConsumers * kFactorBytes;
  // Of a pair whose K is on its way: bits for each eight keys of the own granule that have no page.
  static constexpr int kAbsent = kTiles + kTileSlots * kTileBytes;
  static constexpr int kAbsentWords = 4;
  static constexpr int kDraft = kAbsent + 4 * kAbsentWords;  // of a tile, by the thread that draws it
  static constexpr int kBarriers = kDraft + kTileBytes;
  // Barriers, 8 bytes each.
  static constexpr int kFull = kBarriers;  // of the ring's stages
  static constexpr int kEmpty = kFull + 8 * kSlices;
  static constexpr int kQFull = kEmpty + 8 * kSlices;  // per consumer, as the following
  static constexpr int kQEmpty = kQFull + 8 * kConsumers;
  static constexpr int kMaximaFull = kQEmpty + 8 * kConsumers;
  static constexpr int kWeightsFull = kMaximaFull + 8 * kConsumers;
  static constexpr int kPeerFree = kWeightsFull + 8 * kConsumers;  // the other block has room for weights
  static constexpr int kTileFull = kPeerFree + 8 * kConsumers;     // per slot
  static constexpr int kTileEmpty = kTileFull + 8 * kTileSlots;    // per slot, of the first block
  static constexpr int kBytes = kTileEmpty + 8 * kTileSlots;
  static_assert(kBytes <= 232448, "shared memory: allowed 227 KiB per block on sm_90");

  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 3 * (65536 / kThreads / 8 * 8),
                "registers: the roles together exceed what the block starts with");
};

// Kernel arguments. Shapes: Q, O (batch, seqlen_q, heads_q, head_dim), K, V (batch, seqlen_k, heads_kv, head_dim).
struct Arguments512 {
  CUtensorMap q_map;        // box (64 rows, 64 dims)
  CUtensorMap q_begin_map;  // with `clipped`: Clip::kBegin
  CUtensorMap k_map;        // box (64 keys, 64 dims)
  CUtensorMap v_map;        // box (16 keys, 64 dims), or four panels of that: a slice
  bool whole_slices;        // the latter
  void* o;                  // of the element type, or fp32 with wide_output
  int64_t o_stride_batch, o_stride_token, o_stride_head;
  tessera_row_scalars lse, row_max, row_sum;  // natural log-sum-exp, m - b and l of R9; data null: not wanted
  const float* sinks;                         // per query head, or null
  bool wide_output, unnormalized;
  bool clipped;  // maps are those of make_clipped_map()
  int dims_qk, dims_v;
  int seqlen_q, seqlen_k;
  int group;  // query heads of a K/V head
  // So many heads have their rows in one tile: all of a group where queries are few, or 1. Then consumers fetch Q.
  int packed;
  int tile_heads;  // heads_q / packed
  const void* q;
  int64_t q_stride_batch, q_stride_token, q_stride_head;
  int batch;
  int query_tiles;    // per head
  int section_heads;  // (sequence, head) pairs whose tiles go together, the longest first
  int total_tiles;
  float c;                 // R0
  float bias;              // b of R4
  uint32_t zero;           // 0, which the compiler does not know
  int* tile_counter;       // 0 before a launch, and after it
  float4* chains;          // scratch of chunks: (cluster, block, consumer, piece, thread); null up to one chunk
  float4* superchunks;     // the same of superchunks
  RaggedArguments ragged;  // all of them see by it; what else it has needs `clipped`
};

}  // namespace tessera::sm90
