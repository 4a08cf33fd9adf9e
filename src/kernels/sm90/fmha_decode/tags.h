// The kernels that exist: the contract's numbers, and schedules.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/config.h"

namespace tessera::sm90 {

template <int kHeadDim, bool kBf16, int kRows, int kCluster, int kOwn, bool kPaged>
struct DecodeKernel {
  static constexpr DecodeNumbers kNumbers{kHeadDim, kBf16, kChunkKeys};
  static constexpr DecodeSchedule kSchedule{kRows, kCluster, kOwn, kPaged};
};

}  // namespace tessera::sm90
