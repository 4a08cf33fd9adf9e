// R2: exactly the visible keys count. With zero queries every visible key weighs 1, so the row sum is their number.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "attention_fixture.h"

namespace tessera {
namespace {

constexpr int64_t kQueries = 9;
constexpr int64_t kKeys = 37;

class Counting : public Attention {
 public:
  explicit Counting(int64_t sq = kQueries, int64_t sk = kKeys, int32_t heads = 1)
      : Attention(kHopperF16, {.sq = sq, .sk = sk, .hq = heads, .hk = 1}) {
    zero_queries();
    params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  }
  // Runs and compares every row's count with the number of keys that `visible(p, j)` admits, p = sk - sq + i.
  void expect(const std::function<bool(int64_t, int64_t)>& visible) {
    run();
    for (int64_t i = 0; i < shape.sq; ++i) {
      int64_t count = 0;
      for (int64_t j = 0; j < shape.sk; ++j) {
        count += visible(shape.sk - shape.sq + i, j) ? 1 : 0;
      }
      EXPECT_EQ(visible_keys(0, i, 0), count) << "query token " << i;
      EXPECT_EQ(max_at(0, i, 0) == -kInf, count == 0);
    }
  }
};

TEST(Mask, NoMaskSeesTheWholeLength) {
  Counting a;
  a.expect([](int64_t, int64_t) { return true; });
}

TEST(Mask, CausalIsAlignedToTheLastKey) {
  Counting a;
  a.params.segments[0].causal = 1;
  a.expect([](int64_t p, int64_t j) { return j <= p; });
}

TEST(Mask, CausalWithMoreQueriesThanKeysLeavesTheFirstRowsEmpty) {
  Counting a(20, 8);
  a.params.segments[0].causal = 1;
  a.expect([](int64_t p, int64_t j) { return j <= p; });
  EXPECT_EQ(a.visible_keys(0, 11, 0), 0);
  EXPECT_EQ(a.visible_keys(0, 12, 0), 1);
}

TEST(Mask, LeftWindowCountsKeysFromPositionMinusWindow) {
  for (const int64_t left : {0, 1, 5, 100}) {
    Counting a;
    a.params.segments[0].causal = 1;
    a.params.segments[0].window_left = left;
    a.expect([left](int64_t p, int64_t j) { return j <= p && j >= p - left; });
  }
}

TEST(Mask, RightWindowEndsAtPositionPlusWindow) {
  for (const int64_t right : {0, 3, 100}) {
    Counting a;
    a.params.segments[0].window_right = right;
    a.expect([right](int64_t p, int64_t j) { return j <= p + right; });
  }
}

TEST(Mask, BothWindowsWithoutCausal) {
  Counting a;
  a.params.segments[0].window_left = 4;
  a.params.segments[0].window_right = 2;
  a.expect([](int64_t p, int64_t j) { return j >= p - 4 && j <= p + 2; });
}

TEST(Mask, LargestWindowsDoNotOverflow) {
  Counting a;
  a.params.segments[0].window_left = int64_t{1} << 62;
  a.params.segments[0].window_right = int64_t{1} << 62;
  a.expect([](int64_t, int64_t) { return true; });
}

TEST(Mask, CompressedKeysEndAtPositionPlusOneOverRatioAndIgnoreCausalAndWindows) {
  for (const int32_t ratio : {1, 4, 7}) {
    Counting a;
    a.params.segments[0].compress_ratio = ratio;
    a.params.segments[0].causal = 1;
    a.params.segments[0].window_left = 0;
    a.expect([ratio](int64_t p, int64_t j) { return j < (p + 1) / ratio; });
  }
}

TEST(Mask, CompressedKeysOfANegativePositionAreNone) {
  Counting a(12, 4);
  a.params.segments[0].compress_ratio = 2;
  a.expect([](int64_t p, int64_t j) { return p >= 0 && j < (p + 1) / 2; });
}

TEST(Mask, GivenPositionsReplaceTheAlignment) {
  const std::vector<int32_t> positions = {3};
  Counting a;
  a.params.segments[0].causal = 1;
  a.params.segments[0].q_positions = positions.data();
  a.run();
  for (int64_t i = 0; i < kQueries; ++i) {
    EXPECT_EQ(a.visible_keys(0, i, 0), 4 + i);
  }
}

TEST(Mask, PositionsMayBeNegative) {
  const std::vector<int32_t> positions = {-4};
  Counting a;
  a.params.segments[0].causal = 1;
  a.params.segments[0].q_positions = positions.data();
  a.run();
  EXPECT_EQ(a.visible_keys(0, 3, 0), 0);
  EXPECT_EQ(a.visible_keys(0, 4, 0), 1);
}

// Rows of bits, one row per query token.
struct Bits {
  Bits(int64_t rows, int64_t keys) : stride((keys + 7) / 8), bytes(static_cast<size_t>(rows * stride), 0) {}
  void set(int64_t row, int64_t bit) { bytes[static_cast<size_t>(row * stride + bit / 8)] |= uint8_t(1U << (bit % 8)); }
  int64_t stride;
  std::vector<uint8_t> bytes;
};

TEST(Mask, CustomBitsSelectKeysAndCombineWithCausal) {
  Bits bits(kQueries, kKeys);
  for (int64_t i = 0; i < kQueries; ++i) {
    for (int64_t j = i % 3; j < kKeys; j += 3) {
      bits.set(i, j);
    }
  }
  Counting a;
  a.params.segments[0].mask = {bits.bytes.data(), 0, 0, bits.stride, -1};
  a.params.segments[0].causal = 1;
  a.expect([](int64_t p, int64_t j) {
    const int64_t i = p - (kKeys - kQueries);
    return j <= p && j % 3 == i % 3;
  });
}

TEST(Mask, CustomBitsOverTheLastKeysLeaveEarlierOnesVisible) {
  Bits bits(kQueries, 10);
  for (int64_t i = 0; i < kQueries; ++i) {
    bits.set(i, i);
  }
  Counting a;
  a.params.segments[0].mask = {bits.bytes.data(), 0, 0, bits.stride, 10};
  a.expect([](int64_t p, int64_t j) {
    const int64_t i = p - (kKeys - kQueries);
    return j < kKeys - 10 || j - (kKeys - 10) == i;
  });
}

TEST(Mask, CustomBitsOverMoreKeysThanThereAreCoverAll) {
  Bits bits(kQueries, kKeys);
  for (int64_t i = 0; i < kQueries; ++i) {
    bits.set(i, 5);
  }
  Counting a;
  a.params.segments[0].mask = {bits.bytes.data(), 0, 0, bits.stride, kKeys + 100};
  a.expect([](int64_t, int64_t j) { return j == 5; });
}

TEST(Mask, CustomBitsHaveAHeadStride) {
  Bits bits(2 * kQueries, kKeys);  // (head, query token)
  for (int64_t i = 0; i < kQueries; ++i) {
    bits.set(i, 0);
    bits.set(kQueries + i, 1);
    bits.set(kQueries + i, 2);
  }
  Counting a(kQueries, kKeys, 2);
  a.params.segments[0].mask = {bits.bytes.data(), 0, kQueries * bits.stride, bits.stride, -1};
  a.run();
  for (int64_t i = 0; i < kQueries; ++i) {
    EXPECT_EQ(a.visible_keys(0, i, 0), 1);
    EXPECT_EQ(a.visible_keys(0, i, 1), 2);
  }
}

TEST(Mask, CustomBitsReadNoByteBeyondTheCoveredKeys) {
  // Exactly (keys + 7) / 8 bytes per row, the last row ends the allocation: a sanitizer sees any step over it.
  Bits bits(kQueries, kKeys);
  Counting a;
  a.params.segments[0].mask = {bits.bytes.data(), 0, 0, bits.stride, -1};
  a.expect([](int64_t, int64_t) { return false; });
}

TEST(Mask, AGranuleWithoutVisibleKeysLeavesTheRowAlone) {
  // 400 keys, only the last 100 visible: as if the first two granules did not exist, up to slot positions.
  Attention masked(kCpuF32, {.sq = 1, .sk = 400}, 3, 8.0F);
  masked.params.segments[0].window_left = 15;
  masked.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  Attention poisoned(kCpuF32, {.sq = 1, .sk = 400}, 3, 8.0F);
  poisoned.params = masked.params;
  poisoned.params.q = poisoned.q.view();
  poisoned.params.segments[0].k = poisoned.k.view();
  poisoned.params.segments[0].v = poisoned.v.view();
  for (int64_t j = 0; j < 384; ++j) {
    poisoned.k.set_row(0, j, 0, kNan);
    poisoned.v.set_row(0, j, 0, kNan);
  }
  masked.run();
  poisoned.run();
  EXPECT_EQ(masked.all(), poisoned.all());
}

}  // namespace
}  // namespace tessera
