// Decode kernels for head dim 128, f16.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd128_f16() {
  static constexpr DecodeEntry kEntries[] = {
      team_entry<DecodeKernel<128, false, 8>>("sm90_fmha_decode_hd128_f16_r8_team"),
      duo_entry<DecodeKernel<128, false, 8, 1>>("sm90_fmha_decode_hd128_f16_r8_duo"),
      alone_entry<DecodeKernel<128, false, 8, 1>>("sm90_fmha_decode_hd128_f16_r8_single"),
      alone_entry<DecodeKernel<128, false, 8, 2>>("sm90_fmha_decode_hd128_f16_r8_pair"),
      team_entry<DecodeKernel<128, false, 16>>("sm90_fmha_decode_hd128_f16_r16_team"),
      alone_entry<DecodeKernel<128, false, 16, 1>>("sm90_fmha_decode_hd128_f16_r16_single"),
      alone_entry<DecodeKernel<128, false, 16, 2>>("sm90_fmha_decode_hd128_f16_r16_pair"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
