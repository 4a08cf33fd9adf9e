// fdot: the k16 tensor-core step of hopper-k16-f25 (rules R1 and R6), in integers.
//
//   d = fdot(c; a[0..16), b[0..16)) for fp16 or bf16 a, b and fp32 c, d.
//
// Every exact product and c are aligned to the largest exponent E among the non-zero ones (product exponent = sum of
// the operands' exponents, not normalised; subnormal operands count with the minimum exponent of their type), truncated
// toward zero at the unit 2^(E - 25), summed exactly, and the sum is truncated toward zero to fp32 with gradual
// underflow. The model was measured on an H200; the vectors in tests/vectors/mma keep watching it.
//
// Two forms. fdot_k16() takes raw bits and covers NaN and Inf. fdot_decoded() takes operands that were split into
// significands and exponents once, for the many steps of the oracle.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace tessera {

// Formats of a and b. kAlign moves the integer product of two significands to 25 fraction bits.
struct F16Format {
  static constexpr int32_t kFractionBits = 10;
  static constexpr int32_t kExponentBias = 15;
  static constexpr int32_t kExponentMask = 0x1f;
  static constexpr int32_t kAlign = 25 - 2 * kFractionBits;
};
struct Bf16Format {
  static constexpr int32_t kFractionBits = 7;
  static constexpr int32_t kExponentBias = 127;
  static constexpr int32_t kExponentMask = 0xff;
  static constexpr int32_t kAlign = 25 - 2 * kFractionBits;
};

inline constexpr uint32_t kMmaNan = 0x7fffffffU;
inline constexpr int32_t kStepTerms = 16;

// E is never below this: products smaller than 2^-158 are lost even when nothing larger is present (measured).
inline constexpr int32_t kLowestAlignment = -133;

// Exponents that stand for a zero operand (below every real sum of two) and for Inf or NaN (above every real one, and
// still below when it meets a zero).
inline constexpr int16_t kZeroExponent = -16384;
inline constexpr int16_t kSpecialExponent = 8192;

// value = significand * 2^(exponent - kFractionBits).
struct DecodedOperand {
  int16_t significand;
  int16_t exponent;
};

template <class Format>
TESSERA_HD DecodedOperand decode_operand(uint16_t h) {
  const int32_t field = (h >> Format::kFractionBits) & Format::kExponentMask;
  const int32_t fraction = h & ((1 << Format::kFractionBits) - 1);
  const int32_t magnitude = field == 0 ? fraction : fraction | (1 << Format::kFractionBits);
  int32_t exponent = (field == 0 ? 1 : field) - Format::kExponentBias;
  exponent = magnitude == 0 ? kZeroExponent : exponent;
  exponent = field == Format::kExponentMask ? kSpecialExponent : exponent;
  const int32_t significand = (h & 0x8000) != 0 ? -magnitude : magnitude;
  return {static_cast<int16_t>(significand), static_cast<int16_t>(exponent)};
}

// sum * 2^(unit_exponent), truncated toward zero to fp32. |sum| < 2^40. A zero sum is +0.
TESSERA_HD float truncate_sum(int64_t sum, int32_t unit_exponent) {
  const uint32_t sign = sum < 0 ? 0x80000000U : 0U;
  const uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  if (magnitude == 0) {
    return 0.0F;
  }
#if defined(__CUDA_ARCH__)
  const int32_t top = 63 - __clzll(static_cast<long long>(magnitude));
#else
  const int32_t top = 63 - __builtin_clzll(magnitude);
#endif
  const int32_t exponent = unit_exponent + top;
  if (exponent > 127) {
    return float_of(sign | 0x7f800000U);
  }
  // Shift that leaves the significand of a normal result (24 bits), or the multiple of 2^-149 of a subnormal one.
  const int32_t shift = exponent >= -126 ? top - 23 : -149 - unit_exponent;
  const uint64_t kept = shift >= 64 ? 0 : shift >= 0 ? magnitude >> shift : magnitude << -shift;
  if (kept == 0) {
    return 0.0F;
  }
  const uint32_t field = exponent >= -126 ? static_cast<uint32_t>(exponent + 126) << 23 : 0U;
  return float_of(sign | (field + static_cast<uint32_t>(kept)));
}

// The step on decoded operands: 16 significands and exponents of a and of b. If an operand that meets a non-zero one is
// Inf or NaN the result is NaN: the contract promises nothing there, and fdot_k16 tells the cases apart.
template <class Format>
TESSERA_HD float fdot_decoded(float c, const int16_t* significand_a, const int16_t* exponent_a,
                              const int16_t* significand_b, const int16_t* exponent_b) {
  const uint32_t c_magnitude = bits_of(c) & 0x7fffffffU;
  if (c_magnitude >= 0x7f800000U) {
    return c_magnitude > 0x7f800000U ? float_of(kMmaNan) : c;
  }
  const int32_t c_field = static_cast<int32_t>(c_magnitude >> 23);
  const int32_t c_exponent = (c_field == 0 ? 1 : c_field) - 127;
  const int64_t c_significand = c_field == 0 ? c_magnitude : (c_magnitude & 0x7fffffU) | 0x800000U;

  int32_t largest = c_magnitude == 0 ? kLowestAlignment : c_exponent;
  for (int32_t i = 0; i < kStepTerms; ++i) {
    const int32_t exponent = exponent_a[i] + exponent_b[i];
    largest = exponent > largest ? exponent : largest;
  }
  if (largest > kSpecialExponent / 2) {
    return float_of(kMmaNan);
  }
  // 16 aligned products fit: 16 * 2047^2 * 2^5 and 16 * 255^2 * 2^11 are below 2^31.
  int32_t products = 0;
  for (int32_t i = 0; i < kStepTerms; ++i) {
    const int32_t product = significand_a[i] * significand_b[i];
    const int32_t distance = largest - (exponent_a[i] + exponent_b[i]);
    const uint32_t aligned = static_cast<uint32_t>(product < 0 ? -product : product) << Format::kAlign;
    const int32_t kept = static_cast<int32_t>(aligned >> (distance > 31 ? 31 : distance));
    products += product < 0 ? -kept : kept;
  }
  const int32_t c_distance = largest - c_exponent;
  const int64_t c_kept = c_magnitude == 0 || c_distance > 31 ? 0 : (c_significand << 2) >> c_distance;
  const int64_t sum = products + (bits_of(c) >> 31 != 0 ? -c_kept : c_kept);
  return truncate_sum(sum, largest - 25);
}

// `steps` fdot steps in ascending order.
template <class Format>
TESSERA_HD float fdot_chain_decoded(float c, const int16_t* significand_a, const int16_t* exponent_a,
                                    const int16_t* significand_b, const int16_t* exponent_b, int64_t steps) {
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t at = s * kStepTerms;
    c = fdot_decoded<Format>(c, significand_a + at, exponent_a + at, significand_b + at, exponent_b + at);
  }
  return c;
}

// The step on raw bits: a[16], b[16]. Any NaN, 0 * Inf, or infinities of both signs give 0x7fffffff; otherwise an
// infinite term gives that infinity.
template <class Format>
TESSERA_HD float fdot_k16(float c, const uint16_t* a, const uint16_t* b) {
  constexpr int32_t kMagnitudeInf = Format::kExponentMask << Format::kFractionBits;
  int16_t significands[2][kStepTerms];
  int16_t exponents[2][kStepTerms];
  const uint32_t c_magnitude = bits_of(c) & 0x7fffffffU;
  bool nan = c_magnitude > 0x7f800000U;
  bool positive = bits_of(c) == 0x7f800000U;
  bool negative = bits_of(c) == 0xff800000U;
  for (int32_t i = 0; i < kStepTerms; ++i) {
    const int32_t magnitude_a = a[i] & 0x7fff;
    const int32_t magnitude_b = b[i] & 0x7fff;
    nan |= magnitude_a > kMagnitudeInf || magnitude_b > kMagnitudeInf;
    if (magnitude_a == kMagnitudeInf || magnitude_b == kMagnitudeInf) {
      nan |= magnitude_a == 0 || magnitude_b == 0;
      const bool minus = ((a[i] ^ b[i]) & 0x8000) != 0;
      positive |= !minus;
      negative |= minus;
    }
    const DecodedOperand da = decode_operand<Format>(a[i]);
    const DecodedOperand db = decode_operand<Format>(b[i]);
    significands[0][i] = da.significand;
    exponents[0][i] = da.exponent;
    significands[1][i] = db.significand;
    exponents[1][i] = db.exponent;
  }
  if (nan || (positive && negative)) {
    return float_of(kMmaNan);
  }
  if (positive || negative) {
    return float_of(negative ? 0xff800000U : 0x7f800000U);
  }
  return fdot_decoded<Format>(c, significands[0], exponents[0], significands[1], exponents[1]);
}

}  // namespace tessera
