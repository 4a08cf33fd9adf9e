// The kernels of the library. Head dims up to 128 have granules of 128 keys (R0).
#pragma once

#include "kernels/sm80/fmha/config.h"

namespace tessera::sm80 {

template <bool kBf16>
struct Hd64 {
  static constexpr Numbers kNumbers = {.head_dim_qk = 64, .head_dim_v = 64, .bf16 = kBf16, .granule_keys = 128};
  static constexpr Schedule kSchedule = {.warps = 4,
                                         .stages = 2,
                                         .tile_keys = 128,
                                         .blocks_per_sm = 3,
                                         .query_in_registers = false,
                                         .refill = Refill::kAtNextOfTensor};
};

template <bool kBf16>
struct Hd128 {
  static constexpr Numbers kNumbers = {.head_dim_qk = 128, .head_dim_v = 128, .bf16 = kBf16, .granule_keys = 128};
  static constexpr Schedule kSchedule = {.warps = 4,
                                         .stages = 1,
                                         .tile_keys = 128,
                                         .blocks_per_sm = 2,
                                         .query_in_registers = false,
                                         .refill = Refill::kAtNextTile,
                                         .staging_warps = 4};
};

// Query and key dims in 129..192, value dims up to 128.
template <bool kBf16>
struct Hd192 {
  static constexpr Numbers kNumbers = {.head_dim_qk = 192, .head_dim_v = 128, .bf16 = kBf16, .granule_keys = 64};
  static constexpr Schedule kSchedule = {.warps = 4,
                                         .stages = 2,
                                         .tile_keys = 64,
                                         .blocks_per_sm = 2,
                                         .query_in_registers = false,
                                         .refill = Refill::kAtNextOfTensor};
};

template <bool kBf16>
struct Hd256 {
  static constexpr Numbers kNumbers = {.head_dim_qk = 256, .head_dim_v = 256, .bf16 = kBf16, .granule_keys = 64};
  static constexpr Schedule kSchedule = {.warps = 4,
                                         .stages = 1,
                                         .tile_keys = 64,
                                         .blocks_per_sm = 2,
                                         .query_in_registers = false,
                                         .refill = Refill::kBehindProducts};
};

}  // namespace tessera::sm80
