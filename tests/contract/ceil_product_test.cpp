#include "contract/ceil_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace tessera {
namespace {

// x = significand * 2^exponent with an integer significand.
struct Parts {
  int64_t significand;
  int exponent;
};
Parts parts_of(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return {static_cast<int64_t>(std::ldexp(fraction, 24)), exponent - 24};
}

// Exact ceiling of the exact product, for products below 2^62.
int64_t exact_ceiling(float a, float b) {
  const Parts x = parts_of(a);
  const Parts y = parts_of(b);
  const __int128_t product = static_cast<__int128_t>(x.significand) * y.significand;
  const int exponent = x.exponent + y.exponent;
  if (exponent >= 0) {
    return static_cast<int64_t>(product << exponent);
  }
  if (exponent < -100) {
    return product > 0 ? 1 : 0;
  }
  const __int128_t unit = static_cast<__int128_t>(1) << -exponent;
  __int128_t quotient = product / unit;
  if (quotient * unit < product) {
    ++quotient;
  }
  return static_cast<int64_t>(quotient);
}

TEST(CeilProduct, IsTheExactCeilingBelowTwoToTheTwentyFour) {
  std::mt19937_64 random(2);
  int checked = 0;
  while (checked < 500000) {
    const uint64_t r = random();
    const float mu =
        float_of((static_cast<uint32_t>(r) & 0x807fffffU) | static_cast<uint32_t>(100 + (r >> 32) % 50) << 23);
    const float c =
        float_of((static_cast<uint32_t>(r >> 20) & 0x7fffffU) | static_cast<uint32_t>(110 + (r >> 50) % 25) << 23);
    if (std::fabs(static_cast<double>(mu) * static_cast<double>(c)) < 0x1p24) {
      ASSERT_EQ(ceil_product(mu, c), static_cast<float>(exact_ceiling(mu, c))) << mu << " " << c;
      ++checked;
    }
  }
}

TEST(CeilProduct, SeesBitsFarBelowTheRoundedProduct) {
  // The product is an integer plus or minus 2^-45: rounding it to fp32 first would lose the difference.
  const float c = 1.0F + 0x1p-23F;
  const float just_above = 3.0F * (1.0F - 0x1p-23F) + 0.0F;
  EXPECT_EQ(ceil_product(just_above, c), static_cast<float>(exact_ceiling(just_above, c)));
  EXPECT_EQ(ceil_product(1.0F - 0x1p-23F, c), 1.0F);     // 1 - 2^-46
  EXPECT_EQ(ceil_product(1.0F, c), 2.0F);                // 1 + 2^-23
  EXPECT_EQ(ceil_product(-1.0F, c), -1.0F);              // -1 - 2^-23
  EXPECT_EQ(ceil_product(-(1.0F - 0x1p-23F), c), 0.0F);  // -1 + 2^-46
  EXPECT_EQ(ceil_product(4097.0F, 1.0F), 4097.0F);
}

TEST(CeilProduct, TinyProductsRoundUpToOneOrZero) {
  EXPECT_EQ(ceil_product(1e-30F, 1e-10F), 1.0F);
  EXPECT_EQ(ceil_product(-1e-30F, 1e-10F), 0.0F);
  EXPECT_EQ(ceil_product(0.0F, 3.0F), 0.0F);
}

TEST(CeilProduct, ZeroIsPlusZero) {
  EXPECT_EQ(bits_of(ceil_product(-0.25F, 1.0F)), 0U);
  EXPECT_EQ(bits_of(ceil_product(-0.0F, 1.0F)), 0U);
  EXPECT_EQ(bits_of(ceil_product(-1e-40F, 1e-20F)), 0U);
}

TEST(CeilProduct, BeyondTwoToTheTwentyFourItIsTheSmallestFp32NumberNotBelowTheProduct) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t r = random();
    const float mu =
        float_of((static_cast<uint32_t>(r) & 0x807fffffU) | static_cast<uint32_t>(152 + (r >> 32) % 60) << 23);
    const float c =
        float_of((static_cast<uint32_t>(r >> 20) & 0x7fffffU) | static_cast<uint32_t>(126 + (r >> 50) % 3) << 23);
    const double product = static_cast<double>(mu) * static_cast<double>(c);  // exact
    const float u = ceil_product(mu, c);
    ASSERT_GE(u, product);
    ASSERT_LT(std::nextafter(u, -INFINITY), product);
    ASSERT_EQ(u, std::ceil(u));
  }
}

}  // namespace
}  // namespace tessera
