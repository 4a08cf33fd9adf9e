// A schedule as a type, for the files that instantiate variants.
#pragma once

#include "kernels/sm80/fmha/launch.cuh"

namespace tessera::test {

struct Dims {
  int head_dim_qk;
  int head_dim_v;
  bool bf16;
};

template <Dims kDims, sm80::Schedule kGiven>
struct VariantTag {
  static constexpr sm80::Numbers kNumbers = {.head_dim_qk = kDims.head_dim_qk,
                                             .head_dim_v = kDims.head_dim_v,
                                             .bf16 = kDims.bf16,
                                             .granule_keys = kDims.head_dim_qk <= 128 ? 128 : 64};
  static constexpr sm80::Schedule kSchedule = kGiven;
};

template <Dims kDims, sm80::Schedule kGiven>
constexpr sm80::Entry variant_entry() {
  return sm80::entry<VariantTag<kDims, kGiven>>();
}

// Tiles of whole granules.
constexpr sm80::Schedule granules(int warps, int stages, int blocks, int keys, bool query_in_registers = false) {
  return {.warps = warps,
          .stages = stages,
          .tile_keys = keys,
          .blocks_per_sm = blocks,
          .query_in_registers = query_in_registers,
          .refill = stages > 1 ? sm80::Refill::kAtNextOfTensor : sm80::Refill::kBehindProducts};
}

// Parts of granules, and everything else that a schedule has.
constexpr sm80::Schedule made(int warps, int stages, int tile_keys, int blocks, sm80::Refill refill,
                              int staging_warps = 0, sm80::StageFault fault = sm80::StageFault::kNone) {
  return {.warps = warps,
          .stages = stages,
          .tile_keys = tile_keys,
          .blocks_per_sm = blocks,
          .query_in_registers = false,
          .refill = refill,
          .staging_warps = staging_warps,
          .fault = fault};
}

}  // namespace tessera::test
