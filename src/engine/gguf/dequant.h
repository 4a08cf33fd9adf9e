// From stored weights to f32, by the formulas that define the engine's weight values.
//
// Block layouts, fields in storage order; d, m, dmin are IEEE f16, q is the stored code, sc and mn are sub-block
// scales:
//   F32, F16, BF16  the value
//   Q4_0   32 in  18 bytes: d, qs[16]                              d * (q - 8)            low nibbles first, then high
//   Q4_1   32 in  20 bytes: d, m, qs[16]                           d * q + m
//   Q5_0   32 in  22 bytes: d, qh[4], qs[16]                       d * (q - 16)           qh bit j = bit 4 of code j
//   Q5_1   32 in  24 bytes: d, m, qh[4], qs[16]                    d * q + m
//   Q8_0   32 in  34 bytes: d, i8 qs[32]                           d * q
//   Q4_K  256 in 144 bytes: d, dmin, scales[12], qs[128]           (d * sc) * q - dmin * mn
//   Q5_K  256 in 176 bytes: d, dmin, scales[12], qh[32], qs[128]   (d * sc) * q - dmin * mn
//   Q6_K  256 in 210 bytes: ql[128], qh[64], i8 sc[16], d          (d * sc) * (q - 32)
// Each operation is rounded to f32 on its own, in the written order; none is fused. The bits therefore depend on
// nothing but the stored block. (The products have at most 24 significant bits and are exact, so only the final sum
// rounds; code that fuses or reorders the products, on a GPU for example, arrives at the same bits.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/gguf/types.h"

namespace tessera {

// Writes n values to dst[0..n) from the n / block_elements(type) blocks at src. src needs no alignment; it and dst must
// not overlap. kInvalidArgument when n is negative or not a whole number of blocks, or `type` is no TensorType.
Status dequantize_row(TensorType type, const std::byte* src, float* dst, int64_t n);

// The same with both extents checked: src must hold exactly the blocks of dst.size() values.
Status dequantize_row(TensorType type, std::span<const std::byte> src, std::span<float> dst);

}  // namespace tessera
