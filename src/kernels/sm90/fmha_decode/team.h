// Shared memory of the kernels in which a cluster of head_dim / 16 blocks takes a unit at once. No device code.
#pragma once

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/config.h"

namespace tessera::sm90 {

inline constexpr int kTeamWarps = 8;
inline constexpr int kTeamThreads = 32 * kTeamWarps;

template <class Tag>
struct TeamLayout {
  static constexpr int kRows = Tag::kRows;
  static constexpr int kEights = kRows / 8;
  static constexpr int kHeadDim = Tag::kHeadDim;
  static constexpr int kTeam = kHeadDim / kDecodeColumnGroup;  // blocks; each has 16 output columns
  static constexpr int kGranule = granule_keys(kHeadDim);
  static constexpr int kChunk = kChunkKeys;
  static constexpr int kGranules = kChunk / kGranule;            // of a unit
  static constexpr int kOwn = kGranules / kTeam;                 // of them that a block scores
  static constexpr int kGranuleBlocks = kGranule / 16;           // k16 blocks of a granule
  static constexpr int kBlocks = kChunk / 16;                    // of a unit
  static constexpr int kTiles = kBlocks / kTeam / kTeamWarps;    // of them that a warp scores
  static constexpr int kHalf = kChunk / 2;                       // V and P are waited for in two parts
  static constexpr int kResident = kRows == 8 ? 2 : 1;           // blocks of a multiprocessor
  static constexpr int kKRow = kHeadDim * 2;                     // bytes; 16-byte piece p of row r at p ^ (r mod 8)
  static constexpr int kVRow = 2 * kDecodeColumnGroup;           // piece p of row r at p ^ (r / 4 mod 2)
  static constexpr int kKBytes = kChunk / kTeam * kKRow;         // 64 KiB
  static constexpr int kHalfBytes = kHalf * kVRow;               // 32 KiB of V
  static constexpr int kPBlock = 32 * kRows;                     // of one k16 block: per eight rows two 8 x 8 matrices
  static constexpr int kPBytes = kBlocks * kPBlock;              // 32 KiB per eight rows
  static constexpr int kMaximaBytes = kBlocks * kRows * 4;       // per k16 block and row
  static constexpr int kSumsBlock = kDecodeClasses * kRows * 4;  // class, row
  static constexpr int kSumsBytes = kGranules * kSumsBlock;
  static constexpr int kBlockSumsBytes = kTeamWarps * kTiles * kSumsBlock;

  // Once every block has scored its keys, K's place holds P, and with eight rows the second half of V behind it.
  static constexpr bool kShared = kEights == 1;
  static constexpr int kK = 0;
  static constexpr int kP = kK;
  static constexpr int kV = kK + kKBytes;
  static constexpr int kV2 = kShared ? kP + kPBytes : kV + kHalfBytes;
  static constexpr int kMaxima = kV + (kShared ? 1 : 2) * kHalfBytes;
  static constexpr int kBlockSums = kMaxima;  // when all have read the maxima
  static constexpr int kSums = kMaxima + (kMaximaBytes > kBlockSumsBytes ? kMaximaBytes : kBlockSumsBytes);
  static constexpr int kStaging = kSums + kSumsBytes;  // a k16 block of P per warp, on its way out
  static constexpr int kRowSums = kStaging + kTeamWarps * kPBlock;
  static constexpr int kBarriers = kRowSums + 4 * kRows;
  static constexpr int kMaximaFull = kBarriers;
  static constexpr int kPFull = kMaximaFull + 8;  // of two parts
  static constexpr int kVFull = kPFull + 16;      // of two parts
  static constexpr int kSumsFull = kVFull + 16;
  static constexpr int kEndFull = kSumsFull + 8;
  static constexpr int kBytes = kEndFull + 8;

  static_assert(kP + kPBytes + (kShared ? kHalfBytes : 0) <= kV, "P and V: allowed in the place of K");
  static_assert(kBytes <= (228 / kResident - 1) * 1024, "shared memory: got too much");
  static_assert(kTiles >= 1 && kOwn >= 1 && kRows <= 16 && kTeam <= 16, "head_dim: allowed 64, 128, 256");
};

}  // namespace tessera::sm90
