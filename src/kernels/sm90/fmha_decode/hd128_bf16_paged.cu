// Decode kernels for head dim 128, bf16, paged K and V.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"
#include "kernels/sm90/fmha_decode/tags.h"

namespace tessera::sm90 {
namespace {

template <int kRows, int kCluster, int kOwn>
constexpr DecodeEntry entry(const char* name) {
  return decode_entry<DecodeKernel<128, true, kRows, kCluster, kOwn, true>>(name);
}

}  // namespace

std::span<const DecodeEntry> decode_hd128_bf16_paged() {
  static constexpr DecodeEntry kEntries[] = {
      entry<8, 1, 2>("sm90_fmha_decode_hd128_bf16_paged_r8_c1"),
      entry<8, 2, 2>("sm90_fmha_decode_hd128_bf16_paged_r8_c2"),
      entry<8, 4, 4>("sm90_fmha_decode_hd128_bf16_paged_r8_c4"),
      entry<8, 8, 2>("sm90_fmha_decode_hd128_bf16_paged_r8_c8"),
      entry<16, 1, 1>("sm90_fmha_decode_hd128_bf16_paged_r16_c1"),
      entry<16, 2, 1>("sm90_fmha_decode_hd128_bf16_paged_r16_c2"),
      entry<16, 4, 1>("sm90_fmha_decode_hd128_bf16_paged_r16_c4"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
