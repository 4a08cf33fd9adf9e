// Decode kernels for head dim 128, f16, for modified scores.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd128_f16_modified() {
  static constexpr DecodeEntry kEntries[] = {
      alone_entry<ModifiedDecodeKernel<128, false, 8, 1>>("sm90_fmha_decode_hd128_f16_r8_modified_single"),
      alone_entry<ModifiedDecodeKernel<128, false, 8, 2>>("sm90_fmha_decode_hd128_f16_r8_modified_pair"),
      alone_entry<ModifiedDecodeKernel<128, false, 16, 1>>("sm90_fmha_decode_hd128_f16_r16_modified_single"),
      alone_entry<ModifiedDecodeKernel<128, false, 16, 2>>("sm90_fmha_decode_hd128_f16_r16_modified_pair"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
