#include "engine/sampler/exp.h"

#include <bit>
#include <cstdint>

namespace tessera {

double exp_nonpositive(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  // ln 2 in two parts: the product of the high one (33 bits) with any |k| < 1024 is exact.
  constexpr double kLn2High = 0x1.62e42feep-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  if (x < -708.0) {
    return 0.0;
  }
  // x = k ln 2 + r with |r| <= ln 2 / 2; k = nearest integer (truncation of a non-positive value rounds up, hence
  // -0.5).
  const auto k = static_cast<std::int64_t>(x * kLog2E - 0.5);
  const double scaled = static_cast<double>(k);
  const double r_high = x - scaled * kLn2High;
  const double r_low = scaled * kLn2Low;
  const double r = r_high - r_low;
  // (e^r - 1 - r) / r^2 by its Taylor series, terms r^0..r^11; the next one is below 2^-50 of the sum. Paired by powers
  // (Estrin) instead of one long Horner chain, because every sampled token takes one e^x per token of the vocabulary.
  const double r2 = r * r;
  const double r4 = r2 * r2;
  const double low = (1.0 / 2.0 + r * (1.0 / 6.0)) + r2 * (1.0 / 24.0 + r * (1.0 / 120.0));
  const double middle = (1.0 / 720.0 + r * (1.0 / 5040.0)) + r2 * (1.0 / 40320.0 + r * (1.0 / 362880.0));
  const double high = (1.0 / 3628800.0 + r * (1.0 / 39916800.0)) + r2 * (1.0 / 479001600.0 + r * (1.0 / 6227020800.0));
  const double series = low + r4 * (middle + r4 * high);
  const double residue = (r_high - r) - r_low;  // what rounding r lost
  const double mantissa = 1.0 + (r + (series * r2 + residue));
  const auto bits = static_cast<std::uint64_t>(k + 1023) << 52;
  return mantissa * std::bit_cast<double>(bits);
}

}  // namespace tessera
