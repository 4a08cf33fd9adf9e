// Steps of R3 that the kernels of one and of several blocks per unit share.
#pragma once

#include <cstdint>

#include "contract/ceil_product.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

template <bool kBf16>
inline constexpr Element kElementOf = kBf16 ? Element::kBf16 : Element::kF16;

// u of R3: the cheap form below 2^22 (contract/ceil_product.h). -Inf (no key) stays what it is.
__device__ __forceinline__ float integer_above(float mu, float c) {
  const float u = __fadd_rn(__fmaf_ru(mu, c, kRoundMagic), -kRoundMagic);
  return fabsf(u) < 0x1p22F || u == minus_infinity() ? u : ceil_product(mu, c);
}

}  // namespace tessera::sm90
