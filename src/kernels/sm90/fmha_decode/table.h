// The decode kernels of this build.
#pragma once

#include <vector>

#include "kernels/sm90/fmha_decode/decode.h"

namespace tessera::sm90 {

// One file per dtype, head dim and layout of K and V.
std::vector<DecodeEntry> decode_hd128_bf16();
std::vector<DecodeEntry> decode_hd128_f16();
std::vector<DecodeEntry> decode_hd128_bf16_paged();
std::vector<DecodeEntry> decode_hd128_f16_paged();
std::vector<DecodeEntry> decode_hd64_bf16();
std::vector<DecodeEntry> decode_hd64_f16();
std::vector<DecodeEntry> decode_hd64_bf16_paged();
std::vector<DecodeEntry> decode_hd64_f16_paged();
std::vector<DecodeEntry> decode_hd256_bf16();
std::vector<DecodeEntry> decode_hd256_f16();
std::vector<DecodeEntry> decode_hd256_bf16_paged();
std::vector<DecodeEntry> decode_hd256_f16_paged();

inline std::vector<DecodeEntry> decode_table() {
  std::vector<DecodeEntry> all;
  for (const auto& part :
       {decode_hd128_bf16(), decode_hd128_f16(), decode_hd128_bf16_paged(), decode_hd128_f16_paged(),
        decode_hd64_bf16(), decode_hd64_f16(), decode_hd64_bf16_paged(), decode_hd64_f16_paged(), decode_hd256_bf16(),
        decode_hd256_f16(), decode_hd256_bf16_paged(), decode_hd256_f16_paged()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace tessera::sm90
