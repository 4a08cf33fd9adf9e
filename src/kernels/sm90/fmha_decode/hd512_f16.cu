// Decode kernels for head dim 512, f16.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"
#include "kernels/sm90/fmha_decode/wide_team_launch.cuh"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd512_f16() {
  static constexpr DecodeEntry kEntries[] = {
      wide_team_entry<DecodeKernel<512, false, 8, 1>>("sm90_fmha_decode_hd512_f16_r8_team"),
      alone_entry<DecodeKernel<512, false, 8, 1>>("sm90_fmha_decode_hd512_f16_r8_single"),
      wide_team_entry<DecodeKernel<512, false, 16, 1>>("sm90_fmha_decode_hd512_f16_r16_team"),
      wide_team_entry<DecodeKernel<512, false, 32, 1>>("sm90_fmha_decode_hd512_f16_r32_team"),
      alone_entry<DecodeKernel<512, false, 16, 1>>("sm90_fmha_decode_hd512_f16_r16_single"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
