// soft_log2 of rule R9 (log-sum-exp), from IEEE operations only.
//
// l = 2^e (1 + r) with 1 + r in [sqrt(1/2), sqrt(2)), cut in the bits: the fields of l minus those of 0x3f3504f3. Then
// log2 l = fma(r, P(r), e), P of order 10 as a Horner chain of fma. A subnormal l is scaled by 2^24 first (exact).
// Error of the result: below 1.2e-7 relative for |log2 l| < 1/2, else half a unit in the last place plus 4e-8 absolute.
// l = +0 gives -Inf, +Inf gives +Inf, a negative l or NaN gives NaN. Coefficients: tools/fit_polynomials.py.
#pragma once

#include "base/host_device.h"

namespace tessera {

TESSERA_HD float soft_log2(float l) {
  if (!(l > 0.0F)) {
    return l == 0.0F ? float_of(0xff800000U) : float_of(0x7fc00000U);
  }
  if (bits_of(l) >= 0x7f800000U) {
    return l;
  }
  const bool subnormal = bits_of(l) < 0x00800000U;
  const uint32_t u = bits_of(subnormal ? mul_rn(l, 0x1p24F) : l);
  // Arithmetic shift: floor of the distance from sqrt(1/2), in octaves.
  const int32_t octaves = static_cast<int32_t>(u - 0x3f3504f3U) >> 23;
  const float r = sub_rn(float_of(u - (static_cast<uint32_t>(octaves) << 23)), 1.0F);
  const float e = static_cast<float>(octaves - (subnormal ? 24 : 0));
  float h = float_of(0x3dc6b8deU);
  h = fma_rn(h, r, float_of(0xbe2d1ea2U));
  h = fma_rn(h, r, float_of(0x3e302fb1U));
  h = fma_rn(h, r, float_of(0xbe3733e7U));
  h = fma_rn(h, r, float_of(0x3e51f6edU));
  h = fma_rn(h, r, float_of(0xbe763d08U));
  h = fma_rn(h, r, float_of(0x3e93c042U));
  h = fma_rn(h, r, float_of(0xbeb8aa48U));
  h = fma_rn(h, r, float_of(0x3ef63840U));
  h = fma_rn(h, r, float_of(0xbf38aa3bU));
  h = fma_rn(h, r, float_of(0x3fb8aa3bU));
  return fma_rn(r, h, e);
}

}  // namespace tessera
