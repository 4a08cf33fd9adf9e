// Shared memory of the kernels for head dim 512 of V in which a cluster of eight blocks takes a unit at once. No device
// code.
//
// What a block has to read, 256 KiB of K and as much of V, has no room on chip: both stream through rings. K goes to
// the warps that score it, V to all.
#pragma once

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/smem_tile.cuh"

namespace tessera::sm90 {

template <class Tag>
struct WideTeamLayout {
  static constexpr int kRows = Tag::kRows;
  static constexpr int kEights = kRows / 8;
  static constexpr int kTeam = 8;  // blocks; each scores every eighth granule and sums an eighth of the columns
  static constexpr int kColumnGroups = Tag::kValueDim / kTeam / kDecodeColumnGroup;  // of a block
  static constexpr int kGranule = granule_keys(Tag::kHeadDim);
  static constexpr int kGranuleBlocks = kGranule / 16;
  static constexpr int kGranules = kChunkKeys / kGranule;  // of a unit: one per lane
  static constexpr int kOwn = kGranules / kTeam;           // of them that a block scores

  static constexpr int kScoreWarps = 8;
  static constexpr int kWarpsOfGranule = kScoreWarps / kOwn;
  static constexpr int kTiles = kGranuleBlocks / kWarpsOfGranule;  // k16 blocks of a warp
  static constexpr int kWarpKeys = 16 * kTiles;
  static constexpr int kOutputWarps = 4;       // of the same warps: a warpgroup sums outputs, 16 columns per warp
  static constexpr int kRowWarps = kRows / 4;  // of the same warps: they finish rows
  static constexpr int kCopyWarps = 4;         // which copy V
  static constexpr int kScoreThreads = 32 * kScoreWarps;
  static constexpr int kOutputThreads = 32 * kOutputWarps;
  static constexpr int kCopyThreads = 32 * kCopyWarps;
  static constexpr int kSender = kScoreWarps + kCopyWarps;  // the warp that sends weights and sums
  static constexpr int kThreads = kScoreThreads + kCopyThreads + 32;
  static constexpr int kResident = kRows == 8 ? 2 : 1;  // blocks of a multiprocessor

  // K in panels of 64 dims, V in one, swizzled as in smem_tile.cuh; rows of Q likewise.
  static constexpr int kPanels = Tag::kHeadDim / kPanelColumns;
  static constexpr int kQRow = 2 * Tag::kHeadDim;
  static constexpr int kKStages = kRows == 8 ? 2 : kRows == 16 ? 3 : 4;
  static constexpr int kKStageBytes = panel_bytes(kWarpKeys);
  static constexpr int kKRingBytes = kKStages * kKStageBytes;  // of a warp
  static constexpr int kVStageBytes = panel_bytes(kGranule);
  static constexpr int kPBlock = 32 * kRows;  // of one k16 block: per eight rows two 8 x 8 matrices
  static constexpr int kPBytes = kGranules * kGranuleBlocks * kPBlock;
  // Stages of V: those that are there from the start come behind those that take the place of K's rings that P leaves.
  static constexpr int kLateStages = (kScoreWarps * kKRingBytes - kPBytes) / kVStageBytes;
  static constexpr int kVStages = kLateStages + (kRows == 8 ? 4 : kRows == 16 ? 12 : 6);
  // Rows of tables are two numbers further apart than rows of the tile, for different banks.
  static constexpr int kPitch = 4 * (kRows + 2);
  static constexpr int kMaximaBytes = kWarpsOfGranule * kGranules * kPitch;  // part of a granule, granule, row
  static constexpr int kFactorsBytes = kGranules * kPitch;                   // a of R3: granule, row
  static constexpr int kOutputPitch = 4 * (kPanelColumns + 4);
  static constexpr int kSumsBlock = kDecodeClasses * kPitch;  // class, row
  static constexpr int kSumsBytes = kGranules * kSumsBlock;

  // Once every block has scored its keys, P of all of them comes into K's place and R7's sums into Q's.
  static constexpr int kK = 0;
  static constexpr int kP = kK;
  static constexpr int kV = kP + kPBytes;
  static constexpr int kQ = kV + kVStages * kVStageBytes;
  static constexpr int kSums = kQ;
  static constexpr int kMaxima = kQ + (kRows * kQRow > kSumsBytes ? kRows * kQRow : kSumsBytes);
  static constexpr int kFactors = kMaxima + kMaximaBytes;
  static constexpr int kOffsets = kFactors + kFactorsBytes;  // RN(b - m') of the own granules, per row
  static constexpr int kRowMaxima = kOffsets + kOwn * 4 * kRows;
  static constexpr int kRowSums = kRowMaxima + 4 * kRows;
  static constexpr int kMoves = kRowSums + 4 * kRows;     // bit g: a row moves its maximum in granule g; per score warp
  static constexpr int kLast = kMoves + 4 * kScoreWarps;  // whether all chunks are there
  static constexpr int kMaximaFull = kLast + 8;
  static constexpr int kSumsFull = kMaximaFull + 8;
  static constexpr int kWeighed = kSumsFull + 8;       // P of an own granule
  static constexpr int kSummed = kWeighed + 8 * kOwn;  // the own granules
  static constexpr int kEndFull = kSummed + 8;         // row sums, and the counter is claimed
  static constexpr int kPFull = kEndFull + 8;          // of the others' granules, eight at a time
  static constexpr int kVFull = kPFull + 8 * kOwn;
  static constexpr int kVEmpty = kVFull + 8 * kVStages;
  static constexpr int kBytes = kVEmpty + 8 * kVStages;

  static_assert(kGranules == 32 && kTiles == 2 && kWarpsOfGranule == 2 && kColumnGroups == 4,
                "head dim of V: allowed 512, in granules of 64 keys");
  static_assert(kRows == 8 || kRows == 16 || kRows == 32, "rows: allowed 8, 16, 32");
  static_assert(kPBytes + kLateStages * kVStageBytes == kScoreWarps * kKRingBytes &&
                kEights <= kScoreWarps - kOutputWarps && kRows * kOutputPitch <= kMaximaBytes);
  static_assert(kOutputWarps == kColumnGroups && kV % 1024 == 0 && kQ % 128 == 0 && kMaxima % 16 == 0 &&
                kLast % 8 == 0);
  static_assert(kBytes <= (228 / kResident - 1) * 1024, "shared memory: got too much");
};

}  // namespace tessera::sm90
