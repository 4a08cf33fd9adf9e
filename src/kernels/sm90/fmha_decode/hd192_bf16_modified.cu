// Decode kernels for head dim 192 of Q and K, 128 of V, bf16, for modified scores.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {

std::span<const DecodeEntry> decode_hd192_bf16_modified() {
  static constexpr DecodeEntry kEntries[] = {
      alone_entry<ModifiedDecodeKernel<192, true, 8, 1, 128>>("sm90_fmha_decode_hd192_bf16_r8_modified_single"),
      alone_entry<ModifiedDecodeKernel<192, true, 8, 2, 128>>("sm90_fmha_decode_hd192_bf16_r8_modified_pair"),
      alone_entry<ModifiedDecodeKernel<192, true, 16, 1, 128>>("sm90_fmha_decode_hd192_bf16_r16_modified_single"),
      alone_entry<ModifiedDecodeKernel<192, true, 16, 2, 128>>("sm90_fmha_decode_hd192_bf16_r16_modified_pair"),
  };
  return kEntries;
}

}  // namespace tessera::sm90
