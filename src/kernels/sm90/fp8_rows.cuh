// R11 on the device: e4m3 codes of a K/V row and their scale become the bf16 operands of R1 and R6.
//
// The conversions of the instruction set give every bit of the rule, at a quarter of the rate of other instructions.
// The short ways need fewer of them, or none, and have the same bits where the codes are no NaN and the scale is in
// their range; whoever calls them looks first. tests/sm90/fp8_rows_test.cpp has every code with scales of every kind
// for all of them. The rows' layout is that of contract/fp8_rows.h.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace tessera::sm90 {

// Four codes, the first in the lowest byte, as four bf16 in order. e4m3 to fp16 is exact, fp16 to fp32 too.
__device__ __forceinline__ uint2 fp8x4_to_bf16x4(uint32_t codes, float scale) {
  uint2 result;
  uint32_t* const to[2] = {&result.x, &result.y};
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    uint32_t halves = 0;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes >> (16 * pair))));
    const float low = __half2float(__ushort_as_half(static_cast<uint16_t>(halves)));
    const float high = __half2float(__ushort_as_half(static_cast<uint16_t>(halves >> 16)));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(*to[pair]) : "f"(__fmul_rn(high, scale)), "f"(__fmul_rn(low, scale)));
  }
  return result;
}

// Bit 7 of a byte is set where a code is NaN; other bits mean nothing.
__device__ __forceinline__ uint32_t fp8_nan_marks(uint32_t codes) {
  return (codes & 0x7f7f7f7fU) + 0x01010101U;
}

// Four codes times 2^(byte - 127), the factor of a UE8M0 byte up to kFp8LargestByte. A code's fields, read as bf16, are
// its value times 2^-120, and the factor makes up for it. Both products are exact in fp32, so one rounding to bf16 is
// what two are.
inline constexpr uint32_t kFp8LargestByte = 134;  // 2^127 in the factor
__device__ __forceinline__ uint32_t fp8_factor(uint32_t byte) {
  return (byte + 120) * 0x00800080U;
}
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ uint2 fp8x4_to_bf16x4_by_factor(uint32_t codes, uint32_t factor) {
  const uint32_t low = codes << 4 & 0xf0f0f0f0U;
  const uint32_t high = (codes >> 4 & 0x07070707U) | (codes & 0x80808080U);
  return make_uint2(multiply_bf16x2(__byte_perm(low, high, 0x5140), factor),
                    multiply_bf16x2(__byte_perm(low, high, 0x7362), factor));
}

// Four codes times a scale whose size is below kFp8LargestScale, given 2^8 times as large: a code's fields, read as
// fp16, are its value times 2^-8.
inline constexpr float kFp8LargestScale = 0x1p119F;
__device__ __forceinline__ uint2 fp8x4_to_bf16x4_by_scale(uint32_t codes, float scale_256) {
  const uint32_t low = codes << 7 & 0x80808080U;
  const uint32_t high = (codes >> 1 & 0x3f3f3f3fU) | (codes & 0x80808080U);
  const uint32_t halves[2] = {__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362)};
  uint32_t values[2];
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const float first = __half2float(__ushort_as_half(static_cast<uint16_t>(halves[pair])));
    const float second = __half2float(__ushort_as_half(static_cast<uint16_t>(halves[pair] >> 16)));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
        : "=r"(values[pair])
        : "f"(__fmul_rn(second, scale_256)), "f"(__fmul_rn(first, scale_256)));
  }
  return make_uint2(values[0], values[1]);
}

}  // namespace tessera::sm90
