// Decode kernels for head dims 576 of Q and K and 512 of V, f16, several segments.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd576_f16_segments() {
  static constexpr DecodeEntry kEntries[] = {
      segments_entry<DecodeKernel<576, false, 8, 1, 512>>("sm90_fmha_decode_hd576_f16_r8_segments_single"),
      segments_entry<DecodeKernel<576, false, 16, 1, 512>>("sm90_fmha_decode_hd576_f16_r16_segments_single"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
