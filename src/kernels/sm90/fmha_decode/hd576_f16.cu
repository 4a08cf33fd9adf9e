// Decode kernels for head dims 576 of Q and K and 512 of V, f16.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"
#include "kernels/sm90/fmha_decode/wide_team_launch.cuh"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd576_f16() {
  static constexpr DecodeEntry kEntries[] = {
      wide_team_entry<DecodeKernel<576, false, 8, 1, 512>>("sm90_fmha_decode_hd576_f16_r8_team"),
      alone_entry<DecodeKernel<576, false, 8, 1, 512>>("sm90_fmha_decode_hd576_f16_r8_single"),
      wide_team_entry<DecodeKernel<576, false, 16, 1, 512>>("sm90_fmha_decode_hd576_f16_r16_team"),
      wide_team_entry<DecodeKernel<576, false, 32, 1, 512>>("sm90_fmha_decode_hd576_f16_r32_team"),
      alone_entry<DecodeKernel<576, false, 16, 1, 512>>("sm90_fmha_decode_hd576_f16_r16_single"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
