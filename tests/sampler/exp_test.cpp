#include "engine/sampler/exp.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera {
namespace {

// Distance in units of the last place of the long double result rounded to double.
double ulp_error(double x) {
  const long double exact = std::exp(static_cast<long double>(x));
  const double ulp = std::ldexp(1.0, std::ilogb(static_cast<double>(exact)) - 52);
  return static_cast<double>(std::abs(static_cast<long double>(exp_nonpositive(x)) - exact) / ulp);
}

TEST(ExpNonpositive, IsWithinOneUlp) {
  double worst = 0.0;
  for (int i = 0; i <= 2000000; ++i) {
    worst = std::max(worst, ulp_error(-708.0 * (i / 2000000.0) * (i / 2000000.0)));
  }
  EXPECT_LT(worst, 1.0);
}

TEST(ExpNonpositive, ExactValues) {
  EXPECT_EQ(exp_nonpositive(0.0), 1.0);
  EXPECT_EQ(exp_nonpositive(-0.0), 1.0);
  EXPECT_EQ(exp_nonpositive(-0x1p-60), 1.0);
  EXPECT_EQ(exp_nonpositive(-708.1), 0.0);
  EXPECT_EQ(exp_nonpositive(-1e300), 0.0);
  EXPECT_EQ(exp_nonpositive(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_GT(exp_nonpositive(-708.0), 0.0);
}

// Bits of a run on x86-64 (g++ 12, -O2): any machine and any compiler must give the same.
TEST(ExpNonpositive, BitsArePinned) {
  std::uint64_t hash = 14695981039346656037u;
  for (int i = 0; i < 100000; ++i) {
    hash = (hash ^ std::bit_cast<std::uint64_t>(exp_nonpositive(-i * 0.00701))) * 1099511628211u;
  }
  EXPECT_EQ(hash, 15938053938968954455u);
}

TEST(ExpNonpositive, NeverDecreases) {
  double previous = 0.0;
  for (int i = 1000000; i >= 0; --i) {
    const double value = exp_nonpositive(-i * 1e-5);
    ASSERT_GE(value, previous) << i;
    previous = value;
  }
}

}  // namespace
}  // namespace tessera
