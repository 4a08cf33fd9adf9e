// A warp of the cluster that takes a unit of head dim 512 at once: what it knows, and where things stand.
#pragma once

#include <cstdint>

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/fmha_decode/wide_team.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

template <class Tag>
class WideTeamMember {
 public:
  __device__ __forceinline__ WideTeamMember(const DecodeArguments& args, uint32_t smem, const Unit& unit)
      : args_(args),
        smem_(smem),
        unit_(unit),
        keys_(unit),
        warp_(uniform(static_cast<int>(threadIdx.x) / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        e_(lane_ / 4),
        q_(lane_ % 4),
        rank_(static_cast<int>(cluster_rank())) {
    granules_ = uniform(keys_.granules());
  }

 protected:
  using Layout = WideTeamLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kEights = Layout::kEights;
  static constexpr int kTeam = Layout::kTeam;
  static constexpr bool kBf16 = Tag::kBf16;

  // Where a number for a row of the tile stands in a table.
  __device__ __forceinline__ uint32_t in_table(int table, int line, int row) const {
    return smem_ + static_cast<uint32_t>(table + line * Layout::kPitch + 4 * row);
  }

  // The granules in which the row, or one whose maxima the same warp has replayed, moves its maximum: in the others its
  // factor is 1, and not in the table.
  __device__ __forceinline__ uint32_t moves_of(int row) const {
    return static_cast<uint32_t>(
        load_shared(smem_ + Layout::kMoves + static_cast<uint32_t>(4 * (row / (kRows / Layout::kScoreWarps)))));
  }
  __device__ __forceinline__ float factor(int g, int row, uint32_t moves) const {
    return (moves >> g & 1U) != 0 ? load_float(in_table(Layout::kFactors, g, row)) : 1.0F;
  }

  // Matrix descriptors have no room for a block's rank, which shared addresses carry above bit 17 in a cluster.
  static constexpr uint32_t kAddressMask = 0x3ffff;

  // Named barriers.
  static constexpr uint32_t kQueries = 1;     // Q is there
  static constexpr uint32_t kAllScored = 2;   // R3 is replayed
  static constexpr uint32_t kFirstParts = 3;  // of granules: weights and sums
  static constexpr uint32_t kSummedUp = 4;    // outputs, and handed over
  static constexpr uint32_t kStored = 5;      // the state
  static constexpr uint32_t kCounted = 6;
  static constexpr uint32_t kReady = 7;  // mbarriers

  const DecodeArguments& args_;
  uint32_t smem_;
  Unit unit_;
  UnitKeys<Tag> keys_;
  int warp_, lane_;
  int e_, q_;
  int rank_;
  int granules_;  // of the unit
};

}  // namespace tessera::sm90
