#include "base/numeric_types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace tessera {
namespace {

// A 16-bit format seen through its fields, independent of the bit tricks under test.
struct Format {
  int fraction_bits;
  int bias;
  int exponent_mask;
};
constexpr Format kF16{10, 15, 31};
constexpr Format kBf16{7, 127, 255};

double value_of(Format f, uint16_t h) {
  const int field = (h >> f.fraction_bits) & f.exponent_mask;
  const int fraction = h & ((1 << f.fraction_bits) - 1);
  const double sign = (h & 0x8000) != 0 ? -1.0 : 1.0;
  if (field == 0) {
    return sign * std::ldexp(fraction, 1 - f.bias - f.fraction_bits);
  }
  return sign * std::ldexp(fraction + (1 << f.fraction_bits), field - f.bias - f.fraction_bits);
}

bool is_nan(Format f, uint16_t h) {
  return (h & 0x7fff) > (f.exponent_mask << f.fraction_bits);
}
bool is_inf(Format f, uint16_t h) {
  return (h & 0x7fff) == (f.exponent_mask << f.fraction_bits);
}

// Nearest representable magnitude by search over the ordered encodings, ties to the even encoding.
uint16_t nearest(Format f, float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  const int infinity = f.exponent_mask << f.fraction_bits;
  int low = 0;
  int high = infinity;  // its value, read through the fields, is the next power of two: the right rounding boundary
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value_of(f, static_cast<uint16_t>(middle)) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(f, static_cast<uint16_t>(low));
  const double above = value_of(f, static_cast<uint16_t>(high)) - magnitude;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

TEST(F16ToF32, EveryValueIsExact) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float x = f16_to_f32(static_cast<uint16_t>(h));
    if (is_nan(kF16, static_cast<uint16_t>(h))) {
      ASSERT_TRUE(std::isnan(x)) << h;
    } else if (is_inf(kF16, static_cast<uint16_t>(h))) {
      ASSERT_TRUE(std::isinf(x)) << h;
      ASSERT_EQ(std::signbit(x), h >= 0x8000);
    } else {
      ASSERT_EQ(x, value_of(kF16, static_cast<uint16_t>(h))) << h;
      ASSERT_EQ(std::signbit(x), h >= 0x8000) << h;
    }
  }
}

TEST(Bf16ToF32, EveryValueIsExact) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float x = bf16_to_f32(static_cast<uint16_t>(h));
    if (is_nan(kBf16, static_cast<uint16_t>(h))) {
      ASSERT_TRUE(std::isnan(x)) << h;
    } else if (is_inf(kBf16, static_cast<uint16_t>(h))) {
      ASSERT_TRUE(std::isinf(x)) << h;
      ASSERT_EQ(std::signbit(x), h >= 0x8000);
    } else {
      ASSERT_EQ(x, value_of(kBf16, static_cast<uint16_t>(h))) << h;
    }
  }
}

TEST(F32ToF16, EveryValueRoundTripsAndNanStaysQuietNan) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const uint16_t back = f32_to_f16(f16_to_f32(static_cast<uint16_t>(h)));
    ASSERT_EQ(back, is_nan(kF16, static_cast<uint16_t>(h)) ? h | 0x0200 : h);
  }
}

TEST(F32ToBf16, EveryValueRoundTripsAndNanStaysQuietNan) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const uint16_t back = f32_to_bf16(bf16_to_f32(static_cast<uint16_t>(h)));
    ASSERT_EQ(back, is_nan(kBf16, static_cast<uint16_t>(h)) ? h | 0x0040 : h);
  }
}

// Midpoints between neighbours and the fp32 values next to them: every place where rounding can go wrong.
std::vector<float> rounding_edges(Format f) {
  std::vector<float> edges;
  const int infinity = f.exponent_mask << f.fraction_bits;
  for (int h = 0; h < infinity; ++h) {
    const double middle = (value_of(f, static_cast<uint16_t>(h)) + value_of(f, static_cast<uint16_t>(h + 1))) / 2;
    if (middle > std::numeric_limits<float>::max()) {
      continue;  // bf16: the last midpoint is not an fp32 number
    }
    const auto x = static_cast<float>(middle);
    for (const float y : {x, std::nextafter(x, 0.0F), std::nextafter(x, std::numeric_limits<float>::infinity())}) {
      edges.push_back(y);
      edges.push_back(-y);
    }
  }
  return edges;
}

TEST(F32ToF16, RoundsToNearestEvenAroundEveryMidpoint) {
  for (const float x : rounding_edges(kF16)) {
    ASSERT_EQ(f32_to_f16(x), nearest(kF16, x)) << x;
  }
}

TEST(F32ToBf16, RoundsToNearestEvenAroundEveryMidpoint) {
  for (const float x : rounding_edges(kBf16)) {
    ASSERT_EQ(f32_to_bf16(x), std::isinf(x) ? (x > 0 ? 0x7f80 : 0xff80) : nearest(kBf16, x)) << x;
  }
}

TEST(F32To16Bit, RandomBitPatternsRoundToNearest) {
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) {
    const float x = float_of(static_cast<uint32_t>(random()));
    if (std::isnan(x)) {
      ASSERT_TRUE(is_nan(kF16, f32_to_f16(x)));
      ASSERT_TRUE(is_nan(kBf16, f32_to_bf16(x)));
    } else if (!std::isinf(x)) {
      ASSERT_EQ(f32_to_f16(x), nearest(kF16, x)) << x;
      ASSERT_EQ(f32_to_bf16(x), nearest(kBf16, x)) << x;
    }
  }
}

TEST(F32To16Bit, InfinityAndOverflowGiveInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_f16(infinity), 0x7c00);
  EXPECT_EQ(f32_to_f16(-infinity), 0xfc00);
  EXPECT_EQ(f32_to_f16(65519.996F), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(f32_to_bf16(-infinity), 0xff80);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace tessera
