// Inputs that broke other attention libraries: splits and merges (B), empty rows and extreme scores (C). Names start
// with the row of the case list that they come from; "close" means the tolerances of expect_close.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention_fixture.h"
#include "expect_close.h"

namespace tessera {
namespace {

class CasesExtreme : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, CasesExtreme, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

void expect_empty(const Attention& a, int64_t b, int64_t i, int64_t h) {
  for (int64_t d = 0; d < a.shape.dv; ++d) {
    ASSERT_EQ(bits_of(a.o.at(b, i, h, d)), 0U);
  }
  ASSERT_EQ(a.lse_at(b, i, h), -kInf);
}

TEST_P(CasesExtreme, B5LengthsOfEachSequenceAndNotTheLongest) {
  Attention a(GetParam(), {.batch = 2, .sq = 1, .sk = 4096, .hq = 2, .hk = 1}, 61, 2.0F);
  const std::vector<int32_t> lengths = {64, 4096};
  a.params.segments[0].seqlens_k = lengths.data();
  a.k.set_row(0, 64, 0, kNan);
  a.v.set_row(0, 64, 0, kNan);
  expect_close(a);
}

TEST_P(CasesExtreme, B8SinkCountsOnceWhenTheFirstChunkIsMasked) {
  Attention a(GetParam(), {.sq = 1, .sk = 2048, .hq = 2, .hk = 1}, 62, 2.0F);
  const std::vector<float> sinks = {2.0F, 0.0F};
  a.params.sinks = sinks.data();
  a.params.segments[0].window_left = 500;
  expect_close(a);
  a.params.segments[0].seqlen_k = 0;
  a.run();
  expect_empty(a, 0, 0, 0);
}

TEST_P(CasesExtreme, B15LongPrefixWithShortSuffixIsOneSoftmax) {
  for (const int64_t prefix : {3072, 4096}) {
    Attention a(GetParam(), {.sq = 64, .sk = prefix + 64, .dqk = 16, .dv = 16}, 63, 2.0F);
    a.params.segments[0].causal = 1;
    expect_close(a);
  }
}

TEST_P(CasesExtreme, B18PrefixesOfLengthZeroAndOdd) {
  Attention a(GetParam(), {.batch = 3, .sq = 4, .sk = 516, .hq = 2, .hk = 1}, 64, 2.0F);
  const std::vector<int32_t> lengths = {4, 516, 41};  // prefixes 0, 512, 37
  a.params.segments[0].causal = 1;
  a.params.segments[0].seqlens_k = lengths.data();
  expect_close(a);
}

TEST_P(CasesExtreme, B19F14F15LengthZeroBesideOtherSequences) {
  Attention a(GetParam(), {.batch = 3, .sq = 1, .sk = 5, .hq = 16, .hk = 1, .dqk = 576, .dv = 512}, 65);
  const std::vector<int32_t> lengths = {0, 5, 0};
  a.params.segments[0].seqlens_k = lengths.data();
  a.run();
  expect_empty(a, 0, 0, 0);
  expect_empty(a, 2, 0, 15);
  expect_close(a);
}

// q = (1, 0...), so that the natural score of key j is k[j][0] times the scale 1.
void set_scores(Attention& a, float low, float high) {
  a.params.softmax_scale = 1.0F;
  a.q.fill_with(0.0F);
  for (int64_t i = 0; i < a.shape.sq; ++i) {
    for (int64_t h = 0; h < a.shape.hq; ++h) {
      a.q.set(0, i, h, 0, 1.0F);
      a.q.set(0, i, h, 1, 1.0F);
    }
  }
  a.k.fill_with(0.0F);
  for (int64_t j = 0; j < a.shape.sk; ++j) {
    const float score = low + (high - low) * static_cast<float>(j) / static_cast<float>(a.shape.sk);
    a.k.set(0, j, 0, 0, score);
    a.k.set(0, j, 0, 1, static_cast<float>(j % 5));
  }
}

TEST_P(CasesExtreme, C1ScoresOfMinusSixtyThousandAndMoreAreScores) {
  Attention a(GetParam(), {.sq = 1, .sk = 64, .hq = 16, .hk = 1, .dqk = 128, .dv = 128}, 66);
  if (GetParam().dtype == TESSERA_F16) {
    set_scores(a, -6e4F, -6.5e4F);
  } else {
    set_scores(a, -6e4F, -1e5F);
  }
  expect_close(a);
  // All scores equal: the mean of V, whatever their size.
  set_scores(a, -5e4F, -5e4F);
  expect_close(a);
}

TEST_P(CasesExtreme, C16LogSumExpBelowMinusEightyNine) {
  for (const int64_t keys : {64, 192, 320}) {
    Attention a(GetParam(), {.sq = 1, .sk = keys}, 67);
    set_scores(a, -200.0F, -120.0F);
    expect_close(a);
    EXPECT_LT(a.lse_at(0, 0, 0), -100.0F);
  }
}

TEST_P(CasesExtreme, ScoresBeyondTwoToTheTwentyTwoStillGiveAWeightedMean) {
  if (GetParam().dtype == TESSERA_F16) {
    return;  // fp16 keys cannot reach such scores with this construction
  }
  for (const float size : {1e7F, -1e7F, 5e8F, -5e8F}) {
    Attention a(GetParam(), {.sq = 1, .sk = 300}, 68);
    set_scores(a, size, size);
    a.run();
    for (int64_t d = 0; d < a.shape.dv; ++d) {
      EXPECT_TRUE(std::isfinite(a.o.at(0, 0, 0, d))) << size;
      EXPECT_LT(std::fabs(a.o.at(0, 0, 0, d)), 6.0F);
    }
    EXPECT_NEAR(a.lse_at(0, 0, 0) / size, 1.0F, 1e-2);  // bf16 keys hold the size to 2^-8
    EXPECT_EQ(a.max_at(0, 0, 0), std::ceil(a.max_at(0, 0, 0)));
  }
}

TEST_P(CasesExtreme, C4MoreQueriesThanKeysUnderCausal) {
  Attention a(GetParam(), {.sq = 256, .sk = 128, .dqk = 16, .dv = 16}, 69);
  a.params.segments[0].causal = 1;
  expect_close(a);
  expect_empty(a, 0, 0, 0);
  expect_empty(a, 0, 127, 0);
  EXPECT_GT(a.lse_at(0, 128, 0), -kInf);
}

TEST_P(CasesExtreme, C5C6C7KeylessRowsInAPackedBatchWithEverySink) {
  for (const float sink : {0.5F, 100.0F, -104.0F, -1e4F, 200.0F}) {
    const std::vector<int32_t> cu_q = {0, 1, 2}, cu_k = {0, 0, 7};
    const std::vector<float> sinks = {sink};
    Attention a(GetParam(), {.batch = 1, .sq = 2, .sk = 128}, 70);
    a.params.batch = 2;
    a.params.cu_seqlens_q = cu_q.data();
    a.params.segments[0].cu_seqlens_k = cu_k.data();
    a.params.segments[0].k.stride_batch = a.params.segments[0].v.stride_batch = 0;
    a.params.sinks = sinks.data();
    a.run();
    expect_empty(a, 0, 0, 0);
    EXPECT_TRUE(std::isfinite(a.lse_at(0, 1, 0)));
    EXPECT_TRUE(std::isfinite(a.o.at(0, 1, 0, 0)));
  }
}

TEST_P(CasesExtreme, C8SinkFarAboveAllScoresGivesTinyFiniteOutput) {
  Attention a(GetParam(), {.sq = 1, .sk = 40}, 71, 0.01F);
  const std::vector<float> sinks = {200.0F};
  a.params.sinks = sinks.data();
  a.run();
  for (int64_t d = 0; d < a.shape.dv; ++d) {
    EXPECT_LT(std::fabs(a.o.at(0, 0, 0, d)), 1e-18F);
  }
  EXPECT_NEAR(a.lse_at(0, 0, 0), std::log(40.0F), 0.1F);
}

TEST_P(CasesExtreme, C11C13RowsThatAreMaskedWholeWithSinks) {
  Attention a(GetParam(), {.sq = 20, .sk = 64, .hq = 2, .hk = 1, .dqk = 512, .dv = 512}, 72);
  std::vector<uint8_t> bits(20 * 8, 0);
  std::fill(bits.begin() + 14 * 8, bits.end(), uint8_t{0xff});
  const std::vector<float> sinks = {1.0F, -3.0F};
  a.params.sinks = sinks.data();
  a.params.segments[0].mask = {bits.data(), 0, 0, 8, -1};
  expect_close(a);
  expect_empty(a, 0, 13, 1);
}

TEST_P(CasesExtreme, C12FirstIndicesMinusOne) {
  for (const size_t topk : {size_t{64}, size_t{128}}) {
    std::vector<int32_t> indices(topk, -1);
    for (size_t t = 16; t < topk; ++t) {
      indices[t] = static_cast<int32_t>(t * 3 % 200);
    }
    Attention a(GetParam(), {.sq = 1, .sk = 200}, 73, 2.0F);
    a.params.segments[0].indices = indices.data();
    a.params.segments[0].indices_stride = static_cast<int64_t>(topk);
    a.params.segments[0].topk = static_cast<int32_t>(topk);
    expect_close(a);
  }
}

TEST_P(CasesExtreme, C14FirstTilesMasked) {
  Attention a(GetParam(), {.sq = 1, .sk = 384}, 74, 2.0F);
  std::vector<uint8_t> bits(48, 0);
  std::fill(bits.begin() + 32, bits.end(), uint8_t{0xff});
  a.params.segments[0].mask = {bits.data(), 0, 0, 48, -1};
  expect_close(a);
}

TEST_P(CasesExtreme, C15WindowsOfWholeAndOddSize) {
  for (const int64_t window : {256, 221}) {
    Attention a(GetParam(), {.sq = 1, .sk = 1000, .hq = 4, .hk = 2, .dqk = 128, .dv = 128}, 75);
    a.params.segments[0].causal = 1;
    a.params.segments[0].window_left = window - 1;
    expect_close(a);
  }
}

TEST_P(CasesExtreme, B20ManyKeysOfAWideHeadByIndex) {
  std::vector<int32_t> indices(2048);
  for (size_t t = 0; t < indices.size(); ++t) {
    indices[t] = static_cast<int32_t>(t * 7919 % 3000);
  }
  Attention a(GetParam(), {.sq = 1, .sk = 3000, .hq = 2, .hk = 1, .dqk = 576, .dv = 512}, 76, 2.0F);
  a.params.segments[0].indices = indices.data();
  a.params.segments[0].indices_stride = 2048;
  a.params.segments[0].topk = 2048;
  expect_close(a);
}

}  // namespace
}  // namespace tessera
