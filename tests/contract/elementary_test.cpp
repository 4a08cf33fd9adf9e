// soft_exp2, soft_log2, soft_tanh and drop_weight against long double, with the bounds that their headers
// state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/tanh.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Largest relative error over fractions in steps of 2^-16 and over fp32 neighbours of the range's ends.
template <class F>
double worst_exp2_error(F function, float low, float high) {
  double worst = 0.0;
  for (double y = low; y <= high; y += 0x1p-16) {
    const auto x = static_cast<float>(y);
    const long double exact = std::exp2(static_cast<long double>(x));
    worst = std::max(worst, static_cast<double>(std::fabs((function(x) - exact) / exact)));
  }
  return worst;
}

TEST(SoftExp2, RelativeErrorIsBelowItsBound) {
  const auto function = [](float x) { return soft_exp2(x); };
  EXPECT_LT(worst_exp2_error(function, -8.0F, 8.0F), 8.0e-8);
  EXPECT_LT(worst_exp2_error(function, -126.0F, -122.0F), 8.0e-8);
  EXPECT_LT(worst_exp2_error(function, 123.0F, 127.0F), 8.0e-8);
}

TEST(SoftExp2, IntegersAreExact) {
  for (int n = -126; n <= 127; ++n) {
    const auto y = static_cast<float>(n);
    EXPECT_EQ(soft_exp2(y), std::ldexp(1.0F, n));
  }
}

TEST(SoftExp2, BelowTheFloorIsPlusZeroAndNeverSubnormal) {
  for (const float y : {std::nextafter(-126.0F, -kInfinity), -127.0F, -150.0F, -1e6F, -3e38F, -kInfinity}) {
    EXPECT_EQ(bits_of(soft_exp2(y)), 0U) << y;
  }
  for (float y = -126.0F; y < -125.0F; y += 0x1p-10F) {
    EXPECT_GE(soft_exp2(y), std::numeric_limits<float>::min()) << y;
  }
}

TEST(SoftExp2, ShiftingTheArgumentByAnIntegerShiftsTheExponent) {
  // Halves are left out: the tie goes to the even integer, whose fraction has the other sign.
  for (int i = 1; i < 4096; ++i) {
    const float f = static_cast<float>(i - 2048) * 0x1p-12F;
    const float base = soft_exp2(f);
    EXPECT_EQ(soft_exp2(f + 5.0F), base * 32.0F);
    EXPECT_EQ(soft_exp2(f - 7.0F), base * 0x1p-7F);
  }
}

TEST(DropWeight, IsAPowerOfTwoUpToSixtyFourAndZeroBeyond) {
  for (int n = 0; n <= 64; ++n) {
    EXPECT_EQ(drop_weight(static_cast<float>(n)), std::ldexp(1.0F, -n));
  }
  EXPECT_EQ(bits_of(drop_weight(65.0F)), 0U);
  EXPECT_EQ(bits_of(drop_weight(1e30F)), 0U);
  EXPECT_EQ(bits_of(drop_weight(std::numeric_limits<float>::quiet_NaN())), 0U);
}

TEST(SoftLog2, ErrorIsBelowItsBoundsOverAllExponents) {
  double worst_relative = 0.0;
  double worst_beyond_rounding = 0.0;
  for (uint32_t bits = 1; bits < 0x7f800000U; bits += 1013) {
    const float l = float_of(bits);
    const long double exact = std::log2(static_cast<long double>(l));
    const double error = static_cast<double>(std::fabs(soft_log2(l) - exact));
    const double magnitude = static_cast<double>(std::fabs(exact));
    if (magnitude < 0.5) {
      worst_relative = std::max(worst_relative, magnitude == 0.0 ? error : error / magnitude);
    } else {
      const double half_unit = std::ldexp(0.5, std::ilogb(magnitude) - 23);
      worst_beyond_rounding = std::max(worst_beyond_rounding, error - half_unit);
    }
  }
  EXPECT_LT(worst_relative, 1.2e-7);
  EXPECT_LT(worst_beyond_rounding, 4e-8);
}

TEST(SoftLog2, NearOneKeepsRelativeAccuracy) {
  for (int i = -2000; i <= 2000; ++i) {
    const float l = float_of(0x3f800000U + static_cast<uint32_t>(i));
    const auto exact = static_cast<double>(std::log2(static_cast<long double>(l)));
    EXPECT_NEAR(soft_log2(l), exact, std::fabs(exact) * 1.6e-7);
  }
}

TEST(SoftLog2, PowersOfTwoAreExactSubnormalsIncluded) {
  for (int n = -149; n <= 127; ++n) {
    EXPECT_EQ(soft_log2(std::ldexp(1.0F, n)), static_cast<float>(n));
  }
}

TEST(SoftLog2, EdgesOfTheDomain) {
  EXPECT_EQ(soft_log2(0.0F), -kInfinity);
  EXPECT_EQ(soft_log2(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(soft_log2(-1.0F)));
  EXPECT_TRUE(std::isnan(soft_log2(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SoftTanh, RelativeErrorIsBelowItsBound) {
  double worst = 0.0;
  for (uint32_t bits = 0x30000000U; bits < 0x42000000U; bits += 97) {
    const float x = float_of(bits);
    const long double exact = std::tanh(static_cast<long double>(x));
    worst = std::max(worst, static_cast<double>(std::fabs((soft_tanh(x) - exact) / exact)));
  }
  EXPECT_LT(worst, 2.0e-7);
}

TEST(SoftTanh, IsOddAndSaturatesAndKeepsSmallArguments) {
  for (uint32_t bits = 0; bits < 0x7f800000U; bits += 9973) {
    const float x = float_of(bits);
    ASSERT_EQ(bits_of(soft_tanh(-x)), bits_of(soft_tanh(x)) | 0x80000000U);
    ASSERT_LE(soft_tanh(x), 1.0F);
  }
  EXPECT_EQ(soft_tanh(1e-20F), 1e-20F);
  EXPECT_EQ(soft_tanh(std::numeric_limits<float>::denorm_min()), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(soft_tanh(10.0F), 1.0F);
  EXPECT_EQ(soft_tanh(kInfinity), 1.0F);
  EXPECT_EQ(bits_of(soft_tanh(-0.0F)), 0x80000000U);
  EXPECT_TRUE(std::isnan(soft_tanh(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace tessera
