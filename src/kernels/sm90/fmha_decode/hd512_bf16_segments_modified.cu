// Decode kernels for head dim 512, bf16, several segments, modified scores.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd512_bf16_segments_modified() {
  static constexpr DecodeEntry kEntries[] = {
      segments_entry<ModifiedDecodeKernel<512, true, 8, 1>>("sm90_fmha_decode_hd512_bf16_r8_segments_modified_single"),
      segments_entry<ModifiedDecodeKernel<512, true, 16, 1>>(
          "sm90_fmha_decode_hd512_bf16_r16_segments_modified_single"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
