// Decode kernels for head dim 64, f16, for modified scores.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd64_f16_modified() {
  static constexpr DecodeEntry kEntries[] = {
      alone_entry<ModifiedDecodeKernel<64, false, 8>>("sm90_fmha_decode_hd64_f16_r8_modified"),
      alone_entry<ModifiedDecodeKernel<64, false, 16>>("sm90_fmha_decode_hd64_f16_r16_modified"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
