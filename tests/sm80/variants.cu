#include "sm80/variants.h"

#include "kernels/sm80/fmha/launch.cuh"

namespace tessera::test {
namespace {

template <int kDim, int kWarps, int kStages, int kBlocks, bool kQueryInRegisters>
struct Hd {
  static constexpr sm80::Numbers kNumbers = {
      .head_dim_qk = kDim, .head_dim_v = kDim, .bf16 = true, .granule_keys = kDim <= 128 ? 128 : 64};
  static constexpr sm80::Schedule kSchedule = {
      .warps = kWarps, .stages = kStages, .blocks_per_sm = kBlocks, .query_in_registers = kQueryInRegisters};
};

const Variant kVariants[] = {
    {"d64_w4_s2", sm80::entry<Hd<64, 4, 2, 2, true>>()},    {"d64_w4_s1", sm80::entry<Hd<64, 4, 1, 2, true>>()},
    {"d64_w4_s3", sm80::entry<Hd<64, 4, 3, 2, false>>()},   {"d64_w8_s2", sm80::entry<Hd<64, 8, 2, 1, true>>()},
    {"d128_w8_s1", sm80::entry<Hd<128, 8, 1, 1, false>>()}, {"d128_w8_s2", sm80::entry<Hd<128, 8, 2, 1, false>>()},
    {"d128_w4_s2", sm80::entry<Hd<128, 4, 2, 1, false>>()}, {"d256_w8_s1", sm80::entry<Hd<256, 8, 1, 1, false>>()},
};

}  // namespace

std::span<const Variant> variants() {
  return kVariants;
}

}  // namespace tessera::test
