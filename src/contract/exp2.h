// Software exp2 of rules R4 (cpu-fma32) and R9 (sinks).
//
// n = round to nearest even integer of y, f = y - n in [-1/2, 1/2] (exact), a Horner chain of fma
// in f from the highest order down to the constant term 1, and n added to the exponent field as an integer. Results for
// integer y are exact. Domain: y <= 127; below -126 the result is +0 (never a subnormal). Any other bit pattern gives
// some value without undefined behaviour. Coefficients: tools/fit_polynomials.py.
//
// Order 6: error of the polynomial 1.6e-8, largest relative error of the fp32 result 8.0e-8 (tests/contract).
#pragma once

#include "base/host_device.h"

namespace tessera {

// Smallest y whose power is not flushed to +0.
inline constexpr float kExp2Floor = -126.0F;

// y = n + f.
struct Exp2Split {
  uint32_t exponent;  // n << 23, modulo 2^32
  float fraction;
};

TESSERA_HD Exp2Split split_exp2_argument(float y) {
  const float t = add_rn(y, kRoundMagic);
  return {bits_of(t) << 23, sub_rn(y, sub_rn(t, kRoundMagic))};
}

// mantissa * 2^n, or +0 below the floor.
TESSERA_HD float join_exp2(float y, float mantissa, uint32_t exponent) {
  return y < kExp2Floor ? 0.0F : float_of(bits_of(mantissa) + exponent);
}

TESSERA_HD float soft_exp2(float y) {
  const Exp2Split s = split_exp2_argument(y);
  const float f = s.fraction;
  float h = float_of(0x3920fde2U);
  h = fma_rn(h, f, float_of(0x3aaf9f29U));
  h = fma_rn(h, f, float_of(0x3c1d96a6U));
  h = fma_rn(h, f, float_of(0x3d635774U));
  h = fma_rn(h, f, float_of(0x3e75fdeeU));
  h = fma_rn(h, f, float_of(0x3f317218U));
  h = fma_rn(h, f, 1.0F);
  return join_exp2(y, h, s.exponent);
}

// 2^(-drop) for a non-negative integer-valued drop; the contract's weights a and w: exactly +0 once the drop exceeds 64
// (R3, R8, R9), so no weight is ever near the subnormals.
inline constexpr float kLargestDrop = 64.0F;

TESSERA_HD float drop_weight(float drop) {
  return !(drop <= kLargestDrop) ? 0.0F : float_of((127U - static_cast<uint32_t>(static_cast<int32_t>(drop))) << 23);
}

}  // namespace tessera
