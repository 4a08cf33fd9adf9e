// Shared memory of the kernels in which one block takes a unit alone, several of them per multiprocessor. No device
// code.
#pragma once

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/config.h"

namespace tessera::sm90 {

inline constexpr int kAloneWarps = 4;  // that score a granule, and as many that sum outputs

// Two blocks of a cluster share a unit: granules are scored in turns, and each sums half of the columns.
template <class Tag>
struct DuoKernel : Tag {
  static constexpr int kShare = 2;
};
template <class Tag>
constexpr int share_of() {
  if constexpr (requires { Tag::kShare; }) {
    return Tag::kShare;
  } else {
    return 1;
  }
}

template <class Tag>
struct AloneLayout {
  static constexpr int kShare = share_of<Tag>();  // blocks of a unit
  static constexpr int kRows = Tag::kRows;
  static constexpr int kHeadDim = Tag::kHeadDim;
  static constexpr int kValueDim = Tag::kValueDim;
  static constexpr int kResident = kRows == 16 && kHeadDim == 256 ? 1 : Tag::kResident;
  // A block by itself on a multiprocessor has two groups of warps that score, which take turns, if its ring has places
  // for that.
  static constexpr int kGroups = kResident == 1 && kHeadDim <= 256 ? 2 : 1;
  // Modified scores need registers; and 16 rows of two lengths are a stage for four warps.
  static constexpr bool kFewCopyWarps = Tag::kModified || (kHeadDim > 256 && kHeadDim != kValueDim);
  static constexpr int kCopyWarps = kResident == 1 && !kFewCopyWarps ? 8 : 4;
  static constexpr int kThreads = 32 * (kCopyWarps + (kGroups + 1) * kAloneWarps);
  static constexpr int kGranule = granule_keys(kHeadDim);
  static constexpr int kEights = kRows / 8;
  static constexpr int kBlocks = kGranule / 16;                               // k16 blocks of a granule
  static constexpr int kTiles = kBlocks / kAloneWarps;                        // of them per warp
  static constexpr int kColumnTiles = kValueDim / 16 / kAloneWarps / kShare;  // 16 output columns each, per warp

  // Of a row of K, V or Q, 16-byte piece p of row r stands at p ^ (r mod 8), so that eight rows of a column of matrices
  // lie in different banks.
  static constexpr int kRowBytes = kHeadDim * 2;  // of Q and K
  static constexpr int kStageKeys = kHeadDim <= 64 ? 128 : kHeadDim <= 128 ? 64 : kHeadDim <= 256 ? 32 : 16;
  static constexpr int kStageBytes = kStageKeys * kRowBytes;
  static constexpr int kGranuleStages = kGranule / kStageKeys;  // of K, and of V
  // A block has only its columns of V; of granules of both blocks it takes as many stages as of K of one.
  static constexpr int kRound = kShare * kGranule;
  static constexpr int kValueRowBytes = kValueDim * 2 / kShare;
  static constexpr int kValueStageKeys = kStageKeys * kShare;
  static constexpr int kValueStages = kGranuleStages / kShare;  // of a granule

  static constexpr int kQBytes = kRows * kRowBytes;
  static constexpr int kPBytes = kGranule * kRows * 2;          // per k16 block and eight rows: two 8 x 8 matrices
  static constexpr int kMaximaBytes = kAloneWarps * kRows * 4;  // per group twice
  static constexpr int kSumsBytes = kBlocks * kDecodeClasses * kRows * 4;
  // A multiprocessor has 228 KiB, of which every block takes 1 KiB more than it asks for.
  static constexpr int kLimit = (228 / kResident - 1) * 1024;
  // What the score warps tell the output warps of a granule.
  static constexpr int kP = 0;
  static constexpr int kSums = kP + kPBytes;             // t of R7: k16 block, class, row
  static constexpr int kFactors = kSums + kSumsBytes;    // a of R3, per row
  static constexpr int kMaximum = kFactors + 4 * kRows;  // m
  // Of modified scores 16 bits per key: all of them if any row of the tile sees the key, else none.
  static constexpr int kSeen = kMaximum + 4 * kRows;
  static constexpr int kSlotBytes = kSeen + (Tag::kModified ? 2 * kGranule : 0);
  // A block alone has two slots, one per group if it has two. Where two blocks share a unit, each has all of its
  // granules' slots and largest scores, so that nobody waits for a place.
  static constexpr int kSlotCount = kShare == 1 ? 2 : kChunkKeys / kGranule;
  static constexpr int kFixed = kQBytes + 2 * kGroups * kMaximaBytes + kSlotCount * (kSlotBytes + 4 * kRows + 24);
  static constexpr int kStages = (kLimit - kFixed) / (kStageBytes + 16);

  static constexpr int kRing = 0;
  static constexpr int kQ = kRing + kStages * kStageBytes;
  static constexpr int kMaxima = kQ + kQBytes;
  static constexpr int kSlots = kMaxima + 2 * kGroups * kMaximaBytes;
  // m as a group leaves it to the other; or u of R3 of every granule.
  static constexpr int kRunning = kSlots + kSlotCount * kSlotBytes;
  static constexpr int kFull = kRunning + kSlotCount * 4 * kRows;
  static constexpr int kEmpty = kFull + 8 * kStages;
  static constexpr int kSlotFull = kEmpty + 8 * kStages;
  static constexpr int kSlotEmpty = kSlotFull + 8 * kSlotCount;
  static constexpr int kRunningFull = kSlotEmpty + 8 * kSlotCount;
  static constexpr int kBytes = kRunningFull + 8 * kSlotCount;

  // Score warps wait for K whose stage had V before, by parity: with two granules' stages per group they could take the
  // phase before for the one they wait for (K, V of the granule before, V, next K).
  static_assert(kStages > 2 * kGroups * kGranuleStages && kBytes <= kLimit,
                "shared memory: allowed more than two granules per group");
  static_assert(kValueDim <= kHeadDim, "head dim of V: allowed up to that of K");
  static_assert(kRows == 8 || kRows == 16, "rows: allowed 8, 16");
  static_assert(kShare == 1 || (kGroups == 2 && kValueStages == 1 && kValueRowBytes % 128 == 0),
                "two blocks of a unit: allowed head_dim 128");
};

}  // namespace tessera::sm90
