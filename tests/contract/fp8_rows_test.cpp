// R11 and E6 against formulas that share nothing with the code: fields read with ldexp, products exact in double, and
// roundings by comparing distances.
#include "contract/fp8_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace tessera {
namespace {

double e4m3_value(int code) {
  const int field = (code >> 3) & 15;
  const int fraction = code & 7;
  const double magnitude = field == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, field - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

double bf16_magnitude(int bits) {
  const int field = bits >> 7;
  const int fraction = bits & 127;
  return field == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, field - 134);
}

// Nearest bf16 of a finite value, ties to the even encoding; what is read for 0x7f80 is the next power of two, where
// rounding to infinity starts.
uint16_t nearest_bf16(double x) {
  const double magnitude = std::fabs(x);
  int low = 0;
  int high = 0x7f80;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (bf16_magnitude(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - bf16_magnitude(low);
  const double above = bf16_magnitude(high) - magnitude;
  const int chosen = below < above ? low : above < below ? high : (low % 2 == 0 ? low : high);
  return static_cast<uint16_t>(chosen | (std::signbit(x) ? 0x8000 : 0));
}

bool is_code_nan(int code) {
  return (code & 0x7f) == 0x7f;
}

TEST(Fp8Rows, EveryCodeHasTheValueOfItsFields) {
  for (int code = 0; code < 256; ++code) {
    const float x = e4m3_to_f32(static_cast<uint8_t>(code));
    if (is_code_nan(code)) {
      EXPECT_TRUE(std::isnan(x)) << code;
      continue;
    }
    EXPECT_EQ(x, e4m3_value(code)) << code;
    EXPECT_EQ(std::signbit(x), code >= 128) << code;  // -0 stays -0
  }
}

TEST(Fp8Rows, EveryScaleByteIsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(ue8m0_to_f32(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_f32(255)));
}

std::vector<float> scales() {
  std::vector<float> list = {1.0F, -1.0F, 0.0F, 0x1.fffffep127F, 0x1p-149F, 0x1.8p-149F, 0x1p-126F, 0x1.8p-130F};
  for (int code = 0; code < 255; ++code) list.push_back(ue8m0_to_f32(static_cast<uint8_t>(code)));
  std::mt19937 random(11);
  for (int i = 0; i < 4000; ++i) {
    const float x = float_of(static_cast<uint32_t>(random()));
    if (std::isfinite(x)) list.push_back(x);
  }
  return list;
}

TEST(Fp8Rows, R11RoundsTheProductToFp32AndThenToBf16) {
  for (const float scale : scales()) {
    for (int code = 0; code < 256; ++code) {
      const uint16_t got = fp8_to_bf16(static_cast<uint8_t>(code), scale);
      if (is_code_nan(code)) {
        EXPECT_EQ(got, 0x7fff);
        continue;
      }
      const double exact = e4m3_value(code) * static_cast<double>(scale);  // 4 + 24 bits
      const float product = static_cast<float>(exact);
      const uint16_t want = std::isinf(product) ? uint16_t(exact < 0 ? 0xff80 : 0x7f80) : nearest_bf16(product);
      ASSERT_EQ(got, want) << "code " << code << " scale " << scale;
    }
  }
}

TEST(Fp8Rows, PowersOfTwoAreExactInsideTheRangeOfBf16) {
  for (int byte = 3; byte <= 246; ++byte) {  // 2^-9 * 2^-124 is the smallest bf16, 448 * 2^119 is below 2^128
    for (int code = 0; code < 256; ++code) {
      if (is_code_nan(code)) continue;
      const uint16_t got = fp8_to_bf16(static_cast<uint8_t>(code), ue8m0_to_f32(static_cast<uint8_t>(byte)));
      ASSERT_EQ(bf16_to_f32(got), std::ldexp(e4m3_value(code), byte - 127)) << code << " " << byte;
    }
  }
}

TEST(Fp8Rows, AtTheEndsOfTheRangeR11RoundsOverflowsAndGivesNan) {
  EXPECT_EQ(fp8_to_bf16(0x01, ue8m0_to_f32(0)), 0x0000);  // 2^-136: less than half of the smallest bf16
  EXPECT_EQ(fp8_to_bf16(0x81, ue8m0_to_f32(0)), 0x8000);
  EXPECT_EQ(fp8_to_bf16(0x05, ue8m0_to_f32(0)), 0x0001);  // 5/8 of it
  EXPECT_EQ(fp8_to_bf16(0x38, ue8m0_to_f32(0)), 0x0040);  // 1.0 * 2^-127
  EXPECT_EQ(fp8_to_bf16(0x7e, ue8m0_to_f32(254)), 0x7f80);
  EXPECT_EQ(fp8_to_bf16(0xfe, ue8m0_to_f32(254)), 0xff80);
  EXPECT_EQ(fp8_to_bf16(0x38, ue8m0_to_f32(254)), 0x7f00);
  EXPECT_EQ(fp8_to_bf16(0x00, ue8m0_to_f32(255)), 0x7fff);
  EXPECT_EQ(fp8_to_bf16(0x80, 1.0F), 0x8000);
  EXPECT_EQ(fp8_to_bf16(0x00, std::numeric_limits<float>::infinity()), 0x7fff);
}

// Nearest code by distance; ties to the even code.
uint8_t nearest_e4m3(float x) {
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double d = std::fabs(std::fabs(x) - e4m3_value(code)) - std::fabs(std::fabs(x) - e4m3_value(best));
    if (d < 0 || (d == 0 && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

TEST(Fp8Rows, E6RoundsToTheNearestCodeWithTiesToEven) {
  std::vector<float> values = {0.0F, -0.0F, 448.0F, -448.0F, 0x1p-9F, 0x1p-10F, 0x1.8p-9F, 0x1p-6F, 447.0F, 432.0F};
  for (int code = 0; code < 0x7e; ++code) {  // every value, and the middle to the next
    values.push_back(static_cast<float>(e4m3_value(code)));
    values.push_back(static_cast<float>((e4m3_value(code) + e4m3_value(code + 1)) / 2));
  }
  std::mt19937 random(5);
  std::uniform_real_distribution<float> exponents(-14.0F, 8.8F);
  for (int i = 0; i < 20000; ++i) values.push_back(std::exp2(exponents(random)) * (i % 2 == 0 ? 1.0F : -1.0F));
  for (const float x : values) {
    ASSERT_EQ(f32_to_e4m3(x), nearest_e4m3(x)) << x;
  }
  EXPECT_EQ(f32_to_e4m3(1e9F), 0x7e);
  EXPECT_EQ(f32_to_e4m3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7f);
}

TEST(Fp8Rows, E6TakesTheSmallestPowerOfTwoThatHoldsTheLargestValue) {
  std::mt19937 random(9);
  std::vector<float> values = {448.0F, 449.0F, 1.75F, 0x1.c00002p0F, 0x1p-149F, 0x1p-126F, 0x1.fffffep127F, 1e-4F};
  for (int i = 0; i < 20000; ++i) {
    const float x = std::fabs(float_of(static_cast<uint32_t>(random())));
    if (std::isfinite(x) && x > 0) values.push_back(x);
  }
  for (const float x : values) {
    const int e = fp8_scale_exponent(x, -1000);
    ASSERT_LE(x, std::ldexp(448.0, e)) << x;
    ASSERT_GT(x, std::ldexp(448.0, e - 1)) << x;
    ASSERT_EQ(fp8_scale_exponent(x, -22), std::max(e, -22)) << x;
  }
  EXPECT_EQ(fp8_scale_exponent(0.0F, -22), -22);
}

}  // namespace
}  // namespace tessera
