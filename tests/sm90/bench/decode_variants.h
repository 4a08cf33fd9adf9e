// Decode kernels for decode_bench.py.
#pragma once

#include <vector>

#include "kernels/sm90/fmha_decode/decode.h"

namespace tessera::sm90 {

std::vector<DecodeEntry> decode_variants();

}  // namespace tessera::sm90
