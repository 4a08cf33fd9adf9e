// The decode kernels of this build.
#pragma once

#include <vector>

#include "kernels/sm90/fmha_decode/decode.h"

namespace tessera::sm90 {

// One file per dtype and head dim.
std::vector<DecodeEntry> decode_hd128_bf16();
std::vector<DecodeEntry> decode_hd128_f16();

inline std::vector<DecodeEntry> decode_table() {
  std::vector<DecodeEntry> all = decode_hd128_bf16();
  for (const DecodeEntry& entry : decode_hd128_f16()) {
    all.push_back(entry);
  }
  return all;
}

}  // namespace tessera::sm90
