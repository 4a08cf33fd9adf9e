// Steps of R3 and R5 that the kernels of one and of several blocks per unit share.
#pragma once

#include <cstdint>

#include "contract/ceil_product.h"

namespace tessera::sm90 {

inline constexpr uint32_t kAllLanes = 0xffffffffU;

__device__ __forceinline__ float no_maximum() {
  return __uint_as_float(0xff800000U);
}

// u of R3: the cheap form below 2^22 (contract/ceil_product.h). -Inf (no key) stays what it is.
__device__ __forceinline__ float integer_above(float mu, float c) {
  const float u = __fadd_rn(__fmaf_ru(mu, c, kRoundMagic), -kRoundMagic);
  return fabsf(u) < 0x1p22F || u == no_maximum() ? u : ceil_product(mu, c);
}

template <bool kBf16>
__device__ __forceinline__ uint32_t round_two(float low, float high) {
  uint32_t pair;
  if constexpr (kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

}  // namespace tessera::sm90
