#include "engine/sampler/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tessera {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The three known answers that the authors of the paper publish with their library Random123 (kat_vectors,
// "philox4x32 10"): all zeros, all ones, digits of pi.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxUniform, TakesItsBitsFromTheFirstTwoWords) {
  const Words words = philox4x32({7, 8, 5, 6}, {3, 4});
  const std::uint64_t bits = ((std::uint64_t{words[0]} << 32) | words[1]) >> 11;
  EXPECT_EQ(philox_uniform((4ull << 32) | 3, (6ull << 32) | 5, (8ull << 32) | 7),
            std::ldexp(static_cast<double>(bits), -53));
}

TEST(PhiloxUniform, EveryArgumentMatters) {
  std::set<double> seen;
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    seen.insert(philox_uniform(value, 0, 0));
    seen.insert(philox_uniform(0, value, 0));
    seen.insert(philox_uniform(0, 0, value));
  }
  EXPECT_EQ(seen.size(), 10u);  // (0, 0, 0) came up three times
}

TEST(PhiloxUniform, IsUniformOverPositions) {
  constexpr int kBins = 64;
  constexpr int kDraws = 64000;
  int counts[kBins] = {};
  for (std::uint64_t position = 0; position < kDraws; ++position) {
    const double u = philox_uniform(42, 1, position);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++counts[static_cast<int>(u * kBins)];
  }
  double chi_square = 0.0;
  for (const int count : counts) {
    const double expected = static_cast<double>(kDraws) / kBins;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 103.4);  // 0.999 quantile of chi-square with 63 degrees of freedom
}

}  // namespace
}  // namespace tessera
