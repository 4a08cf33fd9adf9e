// Decode kernels for decode_bench.py.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sm90/fmha_decode/decode.h"

namespace tessera::sm90 {

std::vector<DecodeEntry> decode_variants();

// Reads K and V once and does nothing with them: what no decode kernel can be faster than.
cudaError_t launch_read_only(const void* k, const void* v, int64_t bytes, int* sink, cudaStream_t stream);

}  // namespace tessera::sm90
