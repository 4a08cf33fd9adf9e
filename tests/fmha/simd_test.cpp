// The vector layer: every instruction set gives the bits of the portable one, and its soft functions those of the
// scalar functions in src/contract.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "contract/exp2.h"
#include "contract/tanh.h"
#include "fmha/simd_table.h"
#include "kernels/cpu/cpu_features.h"

namespace tessera::test {
namespace {

using Lanes = std::array<float, 16>;

struct NamedTable {
  const char* name;
  const SimdTable* table;
  bool available;
};

std::vector<NamedTable> tables() {
  std::vector<NamedTable> list = {{"portable", &kPortableTable, true}};
#if defined(__x86_64__)
  list.push_back({"avx2", &kAvx2Table, cpu_features().avx2});
  list.push_back({"avx512", &kAvx512Table, cpu_features().avx512});
#endif
  return list;
}

class Simd : public testing::TestWithParam<NamedTable> {
 protected:
  void SetUp() override {
    if (!GetParam().available) GTEST_SKIP() << "this machine lacks " << GetParam().name;
  }
  const SimdTable& table() const { return *GetParam().table; }

  // Normal numbers of widely different magnitudes.
  Lanes draw() {
    Lanes x;
    for (float& v : x) v = std::ldexp(normal_(random_), static_cast<int>(random_() % 41) - 20);
    return x;
  }
  std::mt19937 random_{5};
  std::normal_distribution<float> normal_;
};

bool same(const void* a, const void* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

TEST_P(Simd, TreesAddLaneWithLanePlus8Then4Then2Then1) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::array<Lanes, 16> rows;
    for (Lanes& row : rows) row = draw();
    Lanes expected;
    for (size_t i = 0; i < 16; ++i) {
      Lanes x = rows[i];
      for (size_t half = 8; half > 0; half /= 2) {
        for (size_t t = 0; t < half; ++t) x[t] = x[t] + x[t + half];
      }
      expected[i] = x[0];
      const float one = table().reduce_tree(rows[i].data());
      ASSERT_TRUE(same(&one, &expected[i], 4));
    }
    Lanes all;
    table().reduce_tree16(rows[0].data(), all.data());
    ASSERT_EQ(all, expected);
  }
}

TEST_P(Simd, FoldAddsTheHalvesAndClearsTheRest) {
  const Lanes x = draw();
  Lanes y;
  table().fold_halves(x.data(), y.data());
  for (size_t t = 0; t < 8; ++t) EXPECT_EQ(y[t], x[t] + x[t + 8]);
  for (size_t t = 8; t < 16; ++t) EXPECT_EQ(std::bit_cast<uint32_t>(y[t]), 0u);
}

TEST_P(Simd, TransposesAndFindsTheMaximum) {
  std::array<Lanes, 16> rows;
  for (Lanes& row : rows) row = draw();
  std::array<Lanes, 16> columns;
  table().transpose16(rows[0].data(), columns[0].data());
  for (size_t i = 0; i < 16; ++i) {
    for (size_t t = 0; t < 16; ++t) EXPECT_EQ(columns[i][t], rows[t][i]);
    EXPECT_EQ(table().reduce_max(rows[i].data()), *std::max_element(rows[i].begin(), rows[i].end()));
  }
}

TEST_P(Simd, MasksComparisonsAndSigns) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    const Lanes a = draw();
    Lanes b = draw();
    const Lanes c = draw();
    b[3] = a[3];
    b[5] = std::numeric_limits<float>::quiet_NaN();
    const uint32_t mask = random_() & 0xffffu;
    Lanes fused;
    Lanes chosen;
    Lanes sign;
    table().fma_where(mask, a.data(), b.data(), c.data(), fused.data());
    table().select(mask, a.data(), c.data(), chosen.data());
    table().copy_sign(a.data(), c.data(), sign.data());
    const uint32_t less = table().less(a.data(), b.data());
    const uint32_t not_equal = table().not_equal(a.data(), b.data());
    for (size_t t = 0; t < 16; ++t) {
      const bool on = (mask >> t & 1u) != 0;
      if (t != 5) {
        EXPECT_EQ(fused[t], on ? std::fma(a[t], b[t], c[t]) : c[t]);
      }
      EXPECT_EQ(chosen[t], on ? a[t] : c[t]);
      EXPECT_EQ(sign[t], std::copysign(a[t], c[t]));
      EXPECT_EQ((less >> t & 1u) != 0, a[t] < b[t]);
      EXPECT_EQ((not_equal >> t & 1u) != 0, a[t] != b[t]);
    }
  }
}

TEST_P(Simd, IntegersBecomeFloatsRoundedToNearestEven) {
  const std::array<int32_t, 16> x = {0,        1,        -1,        16777217,  16777219,  -16777217,
                                     33554434, 33554438, INT32_MAX, INT32_MIN, 123456789, -99999999,
                                     7,        8,        9,         -16777219};
  Lanes y;
  table().to_float(x.data(), y.data());
  for (size_t t = 0; t < 16; ++t) EXPECT_EQ(y[t], static_cast<float>(x[t]));
}

TEST_P(Simd, EveryHalfWidensLikeThePortableLayer) {
  for (uint32_t first = 0; first < 65536; first += 16) {
    std::array<uint16_t, 16> x;
    for (size_t t = 0; t < 16; ++t) x[t] = static_cast<uint16_t>(first + t);
    for (const int n : {16, static_cast<int>(first / 16 % 16)}) {
      Lanes expected;
      Lanes actual;
      kPortableTable.widen_f16(x.data(), n, expected.data());
      table().widen_f16(x.data(), n, actual.data());
      ASSERT_TRUE(same(&expected, &actual, 64)) << "f16 " << first;
      kPortableTable.widen_bf16(x.data(), n, expected.data());
      table().widen_bf16(x.data(), n, actual.data());
      ASSERT_TRUE(same(&expected, &actual, 64)) << "bf16 " << first;
    }
  }
}

TEST_P(Simd, FloatsNarrowLikeThePortableLayer) {
  for (uint64_t first = 0; first < uint64_t{1} << 32; first += 16 * 4001) {
    Lanes x;
    for (size_t t = 0; t < 16; ++t) x[t] = std::bit_cast<float>(static_cast<uint32_t>(first + t * 4001));
    for (const int n : {16, static_cast<int>(first / 16 % 16)}) {
      std::array<uint16_t, 17> expected{};
      std::array<uint16_t, 17> actual{};
      kPortableTable.narrow_f16(x.data(), n, expected.data());
      table().narrow_f16(x.data(), n, actual.data());
      ASSERT_EQ(expected, actual) << "f16 " << first;
      kPortableTable.narrow_bf16(x.data(), n, expected.data());
      table().narrow_bf16(x.data(), n, actual.data());
      ASSERT_EQ(expected, actual) << "bf16 " << first;
    }
  }
}

TEST_P(Simd, PartialCopiesTouchTheirElementsOnly) {
  for (int n = 0; n <= 16; ++n) {
    const Lanes x = draw();
    Lanes y;
    y.fill(7.0f);
    table().copy_f32(x.data(), n, y.data());
    for (int t = 0; t < 16; ++t) {
      EXPECT_EQ(y[static_cast<size_t>(t)], t < n ? x[static_cast<size_t>(t)] : 7.0f);
    }
  }
}

TEST_P(Simd, SoftExp2HasTheBitsOfTheContract) {
  for (uint64_t first = 0; first < uint64_t{1} << 32; first += 16 * 251) {
    Lanes x;
    for (size_t t = 0; t < 16; ++t) {
      x[t] = std::bit_cast<float>(static_cast<uint32_t>(first + t * 251));
      if (!(x[t] <= 127.0f)) x[t] = -1.5f;  // outside the domain
    }
    Lanes y;
    table().soft_exp2(x.data(), y.data());
    for (size_t t = 0; t < 16; ++t) {
      const float expected = soft_exp2(x[t]);
      ASSERT_TRUE(same(&y[t], &expected, 4)) << x[t];
    }
  }
}

TEST_P(Simd, SoftTanhHasTheBitsOfTheContract) {
  for (uint64_t first = 0; first < uint64_t{1} << 32; first += 16 * 509) {
    Lanes x;
    for (size_t t = 0; t < 16; ++t) {
      x[t] = std::bit_cast<float>(static_cast<uint32_t>(first + t * 509));
      if (std::isnan(x[t])) x[t] = 0.625f;
    }
    Lanes y;
    table().soft_tanh(x.data(), y.data());
    for (size_t t = 0; t < 16; ++t) {
      const float expected = soft_tanh(x[t]);
      ASSERT_TRUE(same(&y[t], &expected, 4)) << x[t];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, Simd, testing::ValuesIn(tables()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace tessera::test
