// Decode kernels in which one number is wrong: what the comparisons have to notice.
#pragma once

#include <span>

#include "kernels/sm90/fmha_decode/decode.h"

namespace tessera::test {

// Head dim 64, bf16, up to 8 rows. Chunks end one granule early.
std::span<const sm90::DecodeEntry> decode_with_short_chunks();
// Superchunks of 4 chunks: the last ones are chained in another order.
std::span<const sm90::DecodeEntry> decode_with_short_superchunks();

}  // namespace tessera::test
