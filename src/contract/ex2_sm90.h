// The exact model of ex2.approx.ftz.f32 on sm_90 (rule R4 of hopper-k16-f25), over all 2^32 inputs.
//
//   q = floor(|x| 2^23) (a subnormal x counts as 0), i = q >> 23, f = q mod 2^23, T[f] the measured significand:
//   x >= 0: T[f] 2^(i-23).   x < 0: 2^-i if f = 0, else T[2^23 - 1 - f] 2^(-i-24).
//   Results below 2^-126 are +0, from 2^128 on +Inf; NaN gives 0x7fffffff.
//
// T is a quadratic per segment of 2^17 entries in integers, plus a correction of -1, 0 or 1 per entry from
// data/ex2_sm90.bin (tools/encode_ex2.py describes the file; tests/contract checks T and GPU samples).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/host_device.h"

namespace tessera {

class Ex2Sm90 {
 public:
  // Decodes the table that is linked in. Callers share the one of ex2_sm90().
  Ex2Sm90();

  float operator()(float x) const {
    const uint32_t magnitude = bits_of(x) & 0x7fffffffU;
    if (magnitude > 0x7f800000U) {
      return float_of(0x7fffffffU);
    }
    const bool negative = bits_of(x) >> 31 != 0;
    if (magnitude >= 0x43800000U) {  // 256
      return float_of(negative ? 0U : 0x7f800000U);
    }
    const auto exponent = static_cast<int32_t>(magnitude >> 23) - 127;
    const uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
    // Below 2^-23 the argument counts as 0; a zero or subnormal x is below it too.
    const uint32_t q = exponent >= 0 ? significand << exponent : exponent > -24 ? significand >> -exponent : 0U;
    const auto i = static_cast<int32_t>(q >> 23);
    const uint32_t f = q & 0x7fffffU;
    if (!negative) {
      return i >= 128 ? float_of(0x7f800000U) : scaled(significand_of(f), i);
    }
    const int32_t down = f == 0 ? -i : -i - 1;
    return down < -126 ? 0.0F : scaled(f == 0 ? 0x800000U : significand_of(0x7fffffU - f), down);
  }

  // T[f] for f < 2^23.
  uint32_t significand_of(uint32_t f) const {
    const Segment& s = segments_[f >> kSegmentBits];
    const int64_t x = f & ((1U << kSegmentBits) - 1);
    const auto predicted = s.base + static_cast<uint32_t>((s.c0 + (s.c1 + s.c2 * x) * x) >> kShift);
    // Two bits per entry: 0, 1, or 3 for -1.
    const uint32_t code = (static_cast<uint32_t>(corrections_[f >> 2]) >> (2 * (f & 3))) & 3U;
    return predicted + (code == 3 ? 0xffffffffU : code);
  }

 private:
  static constexpr int kSegmentBits = 17;
  static constexpr int kShift = 44;
  struct Segment {
    uint32_t base;
    int64_t c0, c1, c2;
  };

  static float scaled(uint32_t significand, int32_t exponent) {
    return float_of(significand + (static_cast<uint32_t>(exponent + 126) << 23));
  }

  std::array<Segment, 64> segments_{};
  std::vector<uint8_t> corrections_;  // 2 MiB
};

// The model, built on first use (about a millisecond) and immutable from then on. Thread-safe: the first caller builds
// it while others wait, as the language guarantees for a function's static; it is the only such object of this layer.
const Ex2Sm90& ex2_sm90();

}  // namespace tessera
