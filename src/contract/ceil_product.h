// Rule R3: u, the smallest integer-valued fp32 number that is not below the exact product of the row's largest score
// and c; zero is +0. Below 2^24 that is the exact ceiling, beyond it fp32 has no other integers. As u is never below
// the product, no weight of R4 exceeds 2^b.
//
// On the device rounding the product upward first changes nothing, since the ceiling itself is an fp32 number not below
// the product. While |mu * c| < 2^22, fma rounded upward (mu, c, 1.5 * 2^23) - 1.5 * 2^23 is the same number in cheaper
// instructions; kernels may use it behind that test.
#pragma once

#include <cmath>

#include "base/host_device.h"

namespace tessera {

TESSERA_HD float ceil_product(float mu, float c) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(ceilf(__fmul_ru(mu, c)), 0.0F);
#else
  // Exact in double: 48 bits, and no underflow to zero.
  const double ceiling = std::ceil(static_cast<double>(mu) * static_cast<double>(c)) + 0.0;
  const auto nearest = static_cast<float>(ceiling);
  return static_cast<double>(nearest) < ceiling ? std::nextafter(nearest, __builtin_inff()) : nearest;
#endif
}

}  // namespace tessera
