// Compile-time description of the attention kernels for one K/V head whose V, of dim 512, is the first 512 dims of K's
// rows, and the arguments they take. No device code.
//
// A block has 64 query rows. Keys go in granules (R0: 64 keys), each of which lies in shared memory once, as K and as
// V. Two warpgroups fetch and score every other granule, two sum one half of the output columns each over all of them;
// a sum over keys is never split, so no bit depends on it.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm90/divisor.h"
#include "kernels/sm90/smem_tile.cuh"
#include "tessera/tessera.h"

namespace tessera::sm90 {

template <int kHeadDimValue, bool kBf16Value, bool kFp8Value = false>
struct Mqa512 {
  static_assert(kHeadDimValue == 512 || kHeadDimValue == 576);
  static constexpr int kHeadDim = kHeadDimValue;  // of Q and K
  static constexpr bool kBf16 = kBf16Value;       // else fp16
  static constexpr bool kFp8 = kFp8Value;         // segments may have FP8 rows (R11)
  static_assert(kBf16 || !kFp8);
};

// What a query tile is and sees, in words of shared memory, and which of the keys a block takes.
struct MqaTileWords {
  enum Field {
    kBatch,
    kToken,        // of the sequence, to which row 0 of the unit belongs,
    kTensorToken,  // and which one of Q and O that is
    kFirstRow,     // of the tile in the unit; row r of the unit is head r % heads of the token r / heads further
    kRows,         // of the unit
    kWork,         // a Work
    kAlone,        // 1: all rows belong to one token
    kState,        // where the state of the first chunk goes; -1: the rows are chained and finished by the block itself
    kFields
  };
  enum Work {
    kNothing,  // the rows see no key: they are finished as such
    kKeys,
    kOthers  // other blocks take the keys that there are
  };
  // Per segment, behind the header.
  enum SegmentField {
    kFirst,  // granules that any row sees keys of, as far as the block takes them
    kEnd,
    kOpenFirst,  // those that all rows see whole
    kOpenEnd,
    kFirstKey,  // keys that any row sees
    kStopKey,
    kLength,      // of the sequence
    kPosition,    // of its first query token
    kFirstToken,  // of the sequence in packed keys, else 0
    kSegmentFields
  };
  static constexpr int kHeader = kFields;
  static constexpr int kWords = kHeader + int{kSegmentFields} * TESSERA_MAX_SEGMENTS;
};

// What multipliers are told of a granule.
struct MqaGranuleFlags {
  static constexpr int kFresh = 1;     // a chunk (R8) begins with it
  static constexpr int kEndShift = 1;  // 1 + where the chunk goes that ends with it (MqaChain); 0: none does
};

// How the work is cut, whatever the head dim of Q and K.
struct MqaTiling {
  static constexpr int kValueDims = 512;
  static constexpr int kScorers = 2;                          // warpgroups, each with a buffer of its own
  static constexpr int kMultipliers = 2;                      // warpgroups
  static constexpr int kColumns = kValueDims / kMultipliers;  // of O, per multiplier
  // Columns go to multipliers in groups by turns, so that what is scored first is given back first.
  static constexpr int kGroups = 4;
  static constexpr int kOwnGroups = kGroups / kMultipliers;  // of a multiplier
  static constexpr int kGroupColumns = kValueDims / kGroups;
  // The group that is a multiplier's one of number `part`.
  static constexpr int group_of_part(int multiplier, int part) { return part * kMultipliers + multiplier; }
  // The first column of a multiplier's 8-column piece.
  static constexpr int column_of_piece(int multiplier, int piece) {
    constexpr int kGroupPieces = kGroupColumns / 8;
    return group_of_part(multiplier, piece / kGroupPieces) * kGroupColumns + piece % kGroupPieces * 8;
  }
  static constexpr int kRows = 64;
  static constexpr int kGranule = 64;
  static constexpr int kChunkGranules = kChunkKeys / kGranule;
  static constexpr int kBuffers = kScorers;  // granules in shared memory
  static constexpr int kTileSlots = 4;

  static constexpr int kThreads = 128 * (kScorers + kMultipliers);
  static constexpr int kScorerRegisters = 88;
  static constexpr int kMultiplierRegisters = 168;
  static_assert(kScorers * kScorerRegisters + kMultipliers * kMultiplierRegisters <= 65536 / 128,
                "registers: the roles together exceed what the block starts with");
};

// Shared memory of a block in bytes from its 1024-byte aligned base.
template <int kHeadDim>
struct MqaLayout : MqaTiling {
  static constexpr int kPanels = kHeadDim / kPanelColumns;
  static constexpr int kValuePanels = kValueDims / kPanelColumns;

  // A granule arrives and is given back in groups of panels; the last one has those that are not V too.
  static constexpr int kGroupPanels = kValuePanels / kGroups;
  static constexpr int kGroupBytes = kGroupPanels * panel_bytes(kGranule);
  static constexpr bool begins_group(int panel) { return panel < kValuePanels && panel % kGroupPanels == 0; }
  static constexpr bool ends_group(int panel) { return panel + 1 == kPanels || begins_group(panel + 1); }
  static constexpr int group_of(int panel) { return panel < kValuePanels ? panel / kGroupPanels : kGroups - 1; }

  static constexpr int kBufferBytes = kPanels * panel_bytes(kGranule);
  static constexpr int kKeys = 0;
  static constexpr int kQ = kKeys + kBuffers * kBufferBytes;
  static constexpr int kQBytes = kPanels * panel_bytes(kRows);
  // P of a granule, per buffer, as the following. A panel that is not V is read for scores only: P takes its place, and
  // the granule's last group is not fetched before the others have been given back.
  static constexpr bool kWeightsOverKeys = kPanels > kValuePanels;
  static constexpr int kWeightBytes = panel_bytes(kRows);
  static constexpr int kWeights = kWeightsOverKeys ? kKeys + kValuePanels * panel_bytes(kGranule) : kQ + kQBytes;
  static constexpr int kWeightStep = kWeightsOverKeys ? kBufferBytes : kWeightBytes;
  static_assert(!kWeightsOverKeys || kWeightBytes <= (kPanels - kValuePanels) * panel_bytes(kGranule));
  // What multipliers are told of a granule, per buffer: a of R3 for the two rows of four lanes each; m and l of a chunk
  // that ends (R8) for the same; MqaGranuleFlags.
  static constexpr int kFactors = kQ + kQBytes + (kWeightsOverKeys ? 0 : kBuffers * kWeightBytes);
  static constexpr int kFactorBytes = kRows * 4;
  static constexpr int kClosed = kFactors + kBuffers * kFactorBytes;
  static constexpr int kClosedBytes = kRows * 8;
  // What a scorer leaves to the other one: m of R3 for the two rows of four lanes, l of R7 per thread.
  static constexpr int kMaxima = kClosed + kBuffers * kClosedBytes;
  static constexpr int kMaximaBytes = kRows * 4;
  static constexpr int kSums = kMaxima + kBuffers * kMaximaBytes;
  static constexpr int kSumBytes = 128 * 16;
  // A byte per key, 1 if it has no page: of two granules per buffer, as one is masked when the next one is asked for.
  static constexpr int kAbsent = kSums + kBuffers * kSumBytes;
  static constexpr int kAbsentBytes = kGranule;
  // Where the rows of a granule lie, per buffer, 8 bytes each; behind them their FP8 footers.
  static constexpr int kRowTable = kAbsent + 2 * kBuffers * kAbsentBytes;
  static constexpr int kFooterStep = kGranule * 8;
  static constexpr int kRowTableBytes = (kHeadDim == 512 ? 2 : 1) * kFooterStep;
  static constexpr int kTiles = kRowTable + kBuffers * kRowTableBytes;
  static constexpr int kTileBytes = MqaTileWords::kWords * int{sizeof(int32_t)};
  static constexpr int kFlags = kTiles + kTileSlots * kTileBytes;  // per buffer, 16 bytes apart
  // Scales of FP8 rows on their way, where they are not in the rows: 8 bytes for each of a scorer thread's rows, per
  // buffer.
  static constexpr int kScales = kFlags + kBuffers * 16;
  static constexpr int kScaleStep = 128 * 8;
  static constexpr int kBarriers = kScales + (kHeadDim == 512 ? kBuffers * kGranule / 16 * kScaleStep : 0);
  // Barriers, 8 bytes each.
  static constexpr int kEmpty = kBarriers;  // per buffer and group
  static constexpr int kQFull = kEmpty + 8 * kBuffers * kGroups;
  static constexpr int kQEmpty = kQFull + 8;
  static constexpr int kMoved = kQEmpty + 8;                 // per buffer: m
  static constexpr int kSummed = kMoved + 8 * kBuffers;      // per buffer: l
  static constexpr int kWeighed = kSummed + 8 * kBuffers;    // per buffer: weights, and what multipliers are told
  static constexpr int kTileFull = kWeighed + 8 * kBuffers;  // per description of a tile
  static constexpr int kTileEmpty = kTileFull + 8 * kTileSlots;
  static constexpr int kBytes = kTileEmpty + 8 * kTileSlots;
  static_assert(kBytes <= 232448, "shared memory: allowed 227 KiB per block on sm_90");
};

// One segment (R10). Keys are rows of head dim elements.
struct MqaSegment {
  const uint16_t* k;
  int64_t stride_batch, stride_token;  // elements; of pages if there is a table
  const int32_t* page_table;           // or null
  int64_t page_table_stride;
  int32_t num_pages;
  Divisor page_size;
  bool fp8;           // rows in the FP8 format of the head dim (R11); strides still count 16-bit elements
  Divisor page_rows;  // of FP8 rows with footers: by how many the numbers of gathered rows grow from page to page
  int32_t seqlen_k;
  const int32_t* seqlens_k;     // [batch], or null: all seqlen_k or as cu_seqlens_k says
  const int32_t* cu_seqlens_k;  // [batch + 1] first tokens of packed keys, or null
  const int32_t* q_positions;   // [batch] positions of first tokens, or null: behind the keys
  bool causal;
  int32_t window_left, window_right;  // -1: none
  bool compressed;                    // instead of causal masks and windows
  Divisor compress_ratio;
  // Gathered keys: rows of K from `topk` * unit on by ascending key, and how many there are; or null.
  const int32_t* sorted;
  const int32_t* counts;
  int32_t topk;
};

// Shapes: Q (batch, seqlen_q, heads, head dim), O (.., 512).
struct MqaArguments {
  MqaSegment segments[TESSERA_MAX_SEGMENTS];
  int32_t count;
  const uint16_t* q;
  int64_t q_stride_batch, q_stride_token, q_stride_head;
  void* o;  // of the element type, or fp32 with wide_output
  int64_t o_stride_batch, o_stride_token, o_stride_head;
  bool boxed_output;  // 16-bit O whose tiles are 64 heads of a token: boxes of `o_map`, (dim, head, token, batch)
  CUtensorMap o_map;
  tessera_row_scalars lse, row_max, row_sum;  // natural log-sum-exp, m - b and l of R9; data null: not wanted
  const float* sinks;                         // per head, or null
  tessera_output_rope o_rope;                 // R12
  const int32_t* seqlens_q;                   // [batch], or null: all seqlen_q or as cu_seqlens_q says
  const int32_t* cu_seqlens_q;                // [batch + 1] first tokens of packed Q and O, or null
  bool wide_output, unnormalized;
  bool by_token;  // a unit of rows is a query token (gathered keys: each has its own), else a sequence
  int32_t seqlen_q;
  Divisor heads;
  Divisor unit_tiles;  // query tiles of a unit
  Divisor units_per_batch;
  // Tiles are cut at ends of chunks into this many items of nearly as many granules; blocks walk over items.
  Divisor parts;
  int32_t total_items;
  float c;     // R0
  float bias;  // b of R4
  // Scratch of R8, per level (chunks of a superchunk, superchunks of a segment, segments): (block, multiplier,
  // piece, thread), or null where a level is never used.
  float4* levels[3];
  // The chunks' states of tiles that are cut: (tile, chunk, multiplier, piece, thread), and the chunks that a tile has
  // room for. Chunks count from the first one with keys that the tile sees, through all segments.
  float4* states;
  int32_t tile_chunks;
};

}  // namespace tessera::sm90
