// K/V rows with FP8 elements: what an element is worth (R11) and how rows are rounded to the formats (E6). The formats
// are those of FlashMLA's caches; tessera_kv_format in the public header says where the bytes of a row lie.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/numeric_types.h"
#include "tessera/tessera.h"

namespace tessera {

// The numbers of a format. A row has `coded_dims` e4m3 codes, a scale for each `tile_dims` of them, then bf16 values.
struct Fp8Format {
  int32_t head_dim_qk;
  int32_t head_dim_v;  // V is the first head_dim_v dims of the same row
  int32_t coded_dims;
  int32_t tile_dims;
  int64_t row_bytes;     // codes and bf16 values, and the scales if they lie between
  int64_t footer_bytes;  // scales behind the rows of a page, per row; 0: fp32 scales between codes and bf16 values
};

inline constexpr int64_t kFp8PageBytes = 576;  // V4 pages start at multiples of this
inline constexpr int64_t kFp8Alignment = 16;   // of rows and pages
inline constexpr int32_t kFp8MaxHeadDim = 576;
inline constexpr float kE4m3Largest = 448.0F;

TESSERA_HD constexpr Fp8Format fp8_format(tessera_kv_format format) {
  return format == TESSERA_KV_FP8_V4_584 ? Fp8Format{512, 512, 448, 64, 576, 8} : Fp8Format{576, 512, 512, 128, 656, 0};
}

// e4m3: sign, 4 exponent bits with bias 7, 3 fraction bits; 0x7f and 0xff are NaN, there is no infinity. Exact.
TESSERA_HD float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const uint32_t body = code & 0x7fU;
  // The fields read as fp32 are the value times 2^-120, subnormals included.
  const uint32_t finite = bits_of(mul_rn(float_of(body << 20), 0x1p120F));
  return float_of(sign | (body == 0x7fU ? 0x7fc00000U : finite));
}

// 2^(code - 127); 0 is 2^-127 (an fp32 subnormal), 255 is NaN.
TESSERA_HD float ue8m0_to_f32(uint8_t code) {
  return float_of(code == 0U ? 0x00400000U : code == 255U ? 0x7fc00000U : static_cast<uint32_t>(code) << 23);
}

// R11: two roundings, to fp32 and to bf16. NaN is 0x7fff.
TESSERA_HD uint16_t fp8_to_bf16(uint8_t code, float scale) {
  const uint16_t rounded = f32_to_bf16(mul_rn(e4m3_to_f32(code), scale));
  return (rounded & 0x7fffU) > 0x7f80U ? uint16_t{0x7fffU} : rounded;
}

// Nearest e4m3 value, ties to even; beyond 448 and infinities: 448 with the sign; NaN: 0x7f.
TESSERA_HD uint8_t f32_to_e4m3(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t sign = (u >> 24) & 0x80U;
  const uint32_t body = u & 0x7fffffffU;
  if (body > 0x7f800000U) return 0x7fU;
  if (body >= bits_of(kE4m3Largest)) return static_cast<uint8_t>(sign | 0x7eU);
  if (body < 0x3c800000U) {
    // Below 2^-6: adding 2^14 aligns the value to the subnormal unit 2^-9, and the addition rounds to even.
    return static_cast<uint8_t>(sign | (bits_of(add_rn(float_of(body), 0x1p14F)) - bits_of(0x1p14F)));
  }
  const uint32_t odd = (body >> 20) & 1U;
  const uint32_t rounded = (body - (120U << 23) + 0x7ffffU + odd) >> 20;
  return static_cast<uint8_t>(sign | rounded);
}

// E6: the smallest e with amax <= 448 * 2^e, at least `smallest`. amax is finite and >= 0.
TESSERA_HD int32_t fp8_scale_exponent(float amax, int32_t smallest) {
  if (amax == 0.0F) return smallest;
  // 448 = 1.75 * 2^8. A subnormal amax is normal after the product, which is exact.
  const uint32_t u = bits_of(amax);
  const bool subnormal = u < 0x00800000U;
  const uint32_t n = subnormal ? bits_of(mul_rn(amax, 0x1p24F)) : u;
  const int32_t exponent = static_cast<int32_t>(n >> 23) - 127 - (subnormal ? 24 : 0);
  const int32_t e = exponent - 8 + ((n & 0x7fffffU) > 0x600000U ? 1 : 0);
  return e < smallest ? smallest : e;
}

}  // namespace tessera
