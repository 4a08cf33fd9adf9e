// Decode kernels for head dim 128, bf16, for several segments.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd128_bf16_segments() {
  static constexpr DecodeEntry kEntries[] = {
      segments_entry<DecodeKernel<128, true, 8, 1>>("sm90_fmha_decode_hd128_bf16_r8_segments_single"),
      segments_entry<DecodeKernel<128, true, 8, 2>>("sm90_fmha_decode_hd128_bf16_r8_segments_pair"),
      segments_entry<DecodeKernel<128, true, 16, 1>>("sm90_fmha_decode_hd128_bf16_r16_segments_single"),
      segments_entry<DecodeKernel<128, true, 16, 2>>("sm90_fmha_decode_hd128_bf16_r16_segments_pair"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
