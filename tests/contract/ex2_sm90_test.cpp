#include "contract/ex2_sm90.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <thread>
#include <vector>

#include "base/sha256.h"

namespace tessera {
namespace {

TEST(Ex2Sm90, TableIsTheMeasuredOne) {
  std::vector<uint32_t> table(1U << 23);
  for (uint32_t f = 0; f < table.size(); ++f) {
    table[f] = ex2_sm90().significand_of(f);
  }
  // Of the 2^23 little-endian uint32 that an H200 gave (tessera_probe_vectors --dump-ex2).
  EXPECT_EQ(sha256_hex(std::as_bytes(std::span(table))),
            "629a6b6f8ed8a91f6f5842e3c432d400cd663024471e11e7dbc1b27ca58d1a92");
}

TEST(Ex2Sm90, IntegersAreExactAndShiftsMoveTheExponent) {
  const Ex2Sm90& ex2 = ex2_sm90();
  for (int n = -126; n <= 127; ++n) {
    EXPECT_EQ(ex2(static_cast<float>(n)), std::ldexp(1.0F, n));
  }
  for (int i = 0; i < 1000; ++i) {
    const float f = static_cast<float>(i) * 0x1p-10F;
    EXPECT_EQ(ex2(f + 3.0F), 8.0F * ex2(f));
    EXPECT_EQ(ex2(-f - 60.0F), std::ldexp(ex2(-f), -60));
  }
}

TEST(Ex2Sm90, ErrorStaysBelowTwoUnits) {
  const Ex2Sm90& ex2 = ex2_sm90();
  double worst = 0.0;
  for (uint32_t i = 0; i < (1U << 20); ++i) {
    const float x = -20.0F * static_cast<float>(i) * 0x1p-20F;
    const auto exact = static_cast<double>(std::exp2(static_cast<long double>(x)));
    worst = std::max(worst, std::fabs(static_cast<double>(ex2(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 2.0 * 0x1p-24 * 2.0);
  EXPECT_GT(worst, 0x1p-25);  // not a correctly rounded exp2 in disguise
}

TEST(Ex2Sm90, EdgesFlushSaturateAndKeepOneNan) {
  const Ex2Sm90& ex2 = ex2_sm90();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ex2(0.0F), 1.0F);
  EXPECT_EQ(ex2(-0.0F), 1.0F);
  EXPECT_EQ(ex2(std::numeric_limits<float>::denorm_min()), 1.0F);
  EXPECT_EQ(ex2(-126.0F), 0x1p-126F);
  EXPECT_EQ(bits_of(ex2(std::nextafter(-126.0F, -infinity))), 0U);
  EXPECT_EQ(ex2(128.0F), infinity);
  EXPECT_LT(ex2(std::nextafter(128.0F, 0.0F)), infinity);
  EXPECT_EQ(ex2(infinity), infinity);
  EXPECT_EQ(ex2(1e30F), infinity);
  EXPECT_EQ(bits_of(ex2(-infinity)), 0U);
  EXPECT_EQ(bits_of(ex2(-1e30F)), 0U);
  EXPECT_EQ(bits_of(ex2(float_of(0xff800001U))), 0x7fffffffU);
}

TEST(Ex2Sm90, FirstUseFromManyThreadsGivesOneModel) {
  std::vector<const Ex2Sm90*> seen(8);
  {
    std::vector<std::jthread> threads;
    threads.reserve(seen.size());
    for (auto& slot : seen) {
      threads.emplace_back([&slot] { slot = &ex2_sm90(); });
    }
  }
  for (const Ex2Sm90* model : seen) {
    EXPECT_EQ(model, seen[0]);
  }
}

}  // namespace
}  // namespace tessera
