// Decode kernels for head dim 256, bf16.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"
#include "kernels/sm90/fmha_decode/tags.h"

namespace tessera::sm90 {
namespace {

template <int kRows, int kCluster, int kOwn>
constexpr DecodeEntry entry(const char* name) {
  return decode_entry<DecodeKernel<256, true, kRows, kCluster, kOwn, false>>(name);
}

}  // namespace

std::span<const DecodeEntry> decode_hd256_bf16() {
  static constexpr DecodeEntry kEntries[] = {
      entry<8, 1, 2>("sm90_fmha_decode_hd256_bf16_r8_c1"),   entry<8, 2, 2>("sm90_fmha_decode_hd256_bf16_r8_c2"),
      entry<8, 4, 2>("sm90_fmha_decode_hd256_bf16_r8_c4"),   entry<8, 8, 2>("sm90_fmha_decode_hd256_bf16_r8_c8"),
      entry<16, 1, 1>("sm90_fmha_decode_hd256_bf16_r16_c1"), entry<16, 2, 1>("sm90_fmha_decode_hd256_bf16_r16_c2"),
      entry<16, 4, 1>("sm90_fmha_decode_hd256_bf16_r16_c4"), entry<16, 8, 1>("sm90_fmha_decode_hd256_bf16_r16_c8"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
