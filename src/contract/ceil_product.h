// Rule R3: u = the integer above the exact product of the row's largest score and c.
//
// On the device: ceilf(__fsub_rn(__fmaf_ru(mu, c, M), M)) with M = 1.5 * 2^23. Rounding the fused sum upward once gives
// the exact ceiling of the exact product while |mu * c| < 2^22, and the outer ceilf changes nothing there. Beyond, the
// sum's unit is no longer 1: the value may lie above the ceiling, and the outer ceilf keeps m integer-valued.
#pragma once

#include "base/host_device.h"

#if !defined(__CUDA_ARCH__)
#include <cmath>
#endif

namespace tessera {

// fma(a, b, c) rounded toward +infinity. Finite arguments.
TESSERA_HD float fma_ru(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_ru(a, b, c);
#else
  // The product is exact in double; TwoSum gives the double sum and its exact error, whose sign decides a tie with a
  // float. (A double sum above the float range converts to infinity, as rounding upward does.)
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  const float nearest = static_cast<float>(sum);
  const double value = static_cast<double>(nearest);
  if (value < sum || (value == sum && error > 0.0)) {
    return std::nextafter(nearest, __builtin_inff());
  }
  return nearest;
#endif
}

TESSERA_HD float ceil_product(float mu, float c) {
  const float u = sub_rn(fma_ru(mu, c, kRoundMagic), kRoundMagic);
#if defined(__CUDA_ARCH__)
  return ceilf(u);
#else
  return __builtin_ceilf(u);
#endif
}

}  // namespace tessera
