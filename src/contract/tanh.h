// soft_tanh of rule R1's softcap, from IEEE operations only; odd by construction (-0 gives -0).
//
// With a = |x|:
//   a <= 0.625: z = RN(a a), t = fma(RN(a z), Q(z), a), Q of order 4 as a Horner chain of fma;
//   else:       t = RN(1 - RN(2 / RN(1 + soft_exp2(RN(a * 2 log2 e))))), and 1 from a = 10 on.
// Relative error below 2e-7 everywhere (tests/contract). NaN gives NaN. Coefficients: tools/fit_polynomials.py.
#pragma once

#include "base/host_device.h"
#include "contract/exp2.h"

namespace tessera {

inline constexpr float kNearTanh = 0.625F;

// 0 <= a <= kNearTanh.
TESSERA_HD float soft_tanh_near(float a) {
  const float z = mul_rn(a, a);
  float h = float_of(0xbbbaf0e3U);
  h = fma_rn(h, z, float_of(0x3ca9134dU));
  h = fma_rn(h, z, float_of(0xbd5c1e2dU));
  h = fma_rn(h, z, float_of(0x3e088393U));
  h = fma_rn(h, z, float_of(0xbeaaaa99U));
  return fma_rn(mul_rn(a, z), h, a);
}

TESSERA_HD float soft_tanh(float x) {
  const uint32_t sign = bits_of(x) & 0x80000000U;
  const float a = float_of(bits_of(x) & 0x7fffffffU);
  float t;
  if (a <= kNearTanh) {
    t = soft_tanh_near(a);
  } else if (a < 10.0F) {
    t = sub_rn(1.0F, div_rn(2.0F, add_rn(1.0F, soft_exp2(mul_rn(a, 2.0F * kLog2E)))));
  } else {
    t = a >= 10.0F ? 1.0F : a;  // NaN fails every comparison and stays
  }
  return float_of(bits_of(t) | sign);
}

}  // namespace tessera
