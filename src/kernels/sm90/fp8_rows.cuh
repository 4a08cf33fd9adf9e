// R11 on the device: e4m3 codes of a K/V row and their scale become the bf16 operands of R1 and R6, 16 bytes at a time.
//
// Both ways round as the rule does (product to fp32, then to bf16) and give its bits for every code and scale
// (tests/sm90/fp8_rows_test.cpp), with the one exception that is named. The rows' layout is that of
// contract/fp8_rows.h.
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

// Sixteen codes as sixteen bf16.
__device__ __forceinline__ void fp8x16_to_bf16x16(uint4 codes, float scale, uint4 (&values)[2]) {
  const uint2 a = fp8x4_to_bf16x4(codes.x, scale);
  const uint2 b = fp8x4_to_bf16x4(codes.y, scale);
  const uint2 c = fp8x4_to_bf16x4(codes.z, scale);
  const uint2 d = fp8x4_to_bf16x4(codes.w, scale);
  values[0] = make_uint4(a.x, a.y, b.x, b.y);
  values[1] = make_uint4(c.x, c.y, d.x, d.y);
}

}  // namespace tessera::sm90
