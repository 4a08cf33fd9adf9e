// One small problem per clause of R0 and R3..R7, with a result that another reading of the rule would not give.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attention_fixture.h"
#include "contract/ex2_sm90.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/tanh.h"

namespace tessera {
namespace {

// A row whose score times c is, exactly, the number given for each key: q = (1, 0, ...), k_j = (x_j, 0, ...), and a
// scale for which c = RN(scale * log2 e) is 1.
class ScoreRow : public Attention {
 public:
  ScoreRow(Numerics types, int64_t keys, float score, int32_t head_dim_v = 16)
      : Attention(types, {.sk = keys, .dqk = 16, .dv = head_dim_v}) {
    params.softmax_scale = 0x1.62e43p-1F;
    params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
    q.fill_with(0.0F);
    q.set(0, 0, 0, 0, 1.0F);
    k.fill_with(0.0F);
    v.fill_with(0.0F);
    for (int64_t j = 0; j < keys; ++j) {
      set_score(j, score);
    }
    bias = plan_for(types.arithmetic, types.dtype, 16, head_dim_v).value().bias;
  }
  void set_score(int64_t j, float x) { k.set(0, j, 0, 0, x); }
  float max_after_run() {
    run();
    return max_at(0, 0, 0) + bias;
  }
  // l and O as if b were 0.
  float unbiased_sum() const { return std::ldexp(sum_at(0, 0, 0), -static_cast<int>(bias)); }
  float unbiased_o(int64_t d) const { return std::ldexp(o.at(0, 0, 0, d), -static_cast<int>(bias)); }
  float bias = 0.0F;
};

class Rules : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, Rules, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

TEST_P(Rules, R0GranuleIs128KeysUpToHeadDim128And64Above) {
  // A score of 5 sets the max in the granule that holds the row's first key and, thanks to T = 8, not in a later one.
  for (const auto& [head_dim_v, granule] : {std::pair{128, 128}, std::pair{129, 64}}) {
    ScoreRow inside(GetParam(), 300, 0.0F, head_dim_v);
    inside.set_score(granule - 1, 5.0F);
    EXPECT_EQ(inside.max_after_run(), 5.0F);
    ScoreRow outside(GetParam(), 300, 0.0F, head_dim_v);
    outside.set_score(granule, 5.0F);
    EXPECT_EQ(outside.max_after_run(), 0.0F);
  }
}

TEST_P(Rules, R0ChunkIs2048KeysAndStartsFresh) {
  ScoreRow before(GetParam(), 2100, 0.0F);
  before.set_score(2047, 5.0F);
  EXPECT_EQ(before.max_after_run(), 0.0F);
  ScoreRow fresh(GetParam(), 2100, 0.0F);
  fresh.set_score(2048, 5.0F);
  EXPECT_EQ(fresh.max_after_run(), 5.0F);
}

TEST_P(Rules, R3LazyThresholdIsEight) {
  ScoreRow stays(GetParam(), 256, 0.0F);
  stays.set_score(200, 8.0F);
  EXPECT_EQ(stays.max_after_run(), 0.0F);
  ScoreRow moves(GetParam(), 256, 0.0F);
  moves.set_score(200, 8.0625F);
  EXPECT_EQ(moves.max_after_run(), 9.0F);
}

TEST_P(Rules, R3MaxIsTheCeilingOfTheLargestVisibleScore) {
  for (const auto& [score, expected] : {std::pair{1.0F, 1.0F}, std::pair{1.0078125F, 2.0F}, std::pair{-0.5F, 0.0F},
                                        std::pair{-3.0F, -3.0F}, std::pair{-3.5F, -3.0F}}) {
    ScoreRow row(GetParam(), 3, -50.0F);
    row.set_score(1, score);
    EXPECT_EQ(row.max_after_run(), expected) << score;
  }
}

TEST_P(Rules, R3MaskedScoresDoNotSetTheMax) {
  ScoreRow row(GetParam(), 4, 1.0F);
  row.set_score(3, 30.0F);
  row.params.segments[0].seqlen_k = 3;
  EXPECT_EQ(row.max_after_run(), 1.0F);

  const uint8_t bits = 0b1101;  // key 1 is hidden, whatever its score
  for (const float hidden : {-50.0F, 0.0F, 90.0F}) {
    ScoreRow masked(GetParam(), 4, -50.0F);
    masked.set_score(1, hidden);
    masked.params.segments[0].mask = {&bits, 0, 0, 1, -1};
    EXPECT_EQ(masked.max_after_run(), -50.0F);
    EXPECT_EQ(masked.unbiased_sum(), 3.0F);
  }
}

TEST_P(Rules, R3ADropOfSixtyFourKeepsThePastAndSixtyFiveForgetsIt) {
  for (const auto& [score, expected] : {std::pair{64.0F, 0x1p-64F}, std::pair{65.0F, 0.0F}}) {
    ScoreRow row(GetParam(), 256, 0.0F);
    row.v.set(0, 0, 0, 0, 1.0F);
    row.set_score(128, score);
    row.run();
    EXPECT_EQ(row.unbiased_o(0), expected);
  }
}

TEST_P(Rules, R8ADropOfSixtyFourBetweenChunksKeepsThePastAndSixtyFiveForgetsIt) {
  for (const auto& [score, expected] : {std::pair{64.0F, 0x1p-64F}, std::pair{65.0F, 0.0F}}) {
    ScoreRow row(GetParam(), 2049, 0.0F);
    row.v.set(0, 0, 0, 0, 1.0F);
    row.set_score(2048, score);
    row.run();
    EXPECT_EQ(row.unbiased_o(0), expected);
    EXPECT_EQ(row.max_at(0, 0, 0) + row.bias, score);

    ScoreRow reversed(GetParam(), 2049, -100.0F);  // the later chunk is the small one
    reversed.set_score(0, score);
    reversed.set_score(2048, 0.0F);
    reversed.v.set(0, 2048, 0, 0, 1.0F);
    reversed.run();
    EXPECT_EQ(reversed.unbiased_o(0), expected);
  }
}

TEST_P(Rules, R4WeightIsTwoToTheScoreMinusMaxPlusBias) {
  ScoreRow row(GetParam(), 2, -40.0F);
  row.set_score(0, -0.375F);
  row.v.set(0, 0, 0, 0, 1.0F);
  row.run();
  const float y = -0.375F + row.bias;  // m = 0
  const float p = GetParam().arithmetic == Arithmetic::kHopperK16F25 ? ex2_sm90()(y) : soft_exp2(y);
  EXPECT_EQ(row.sum_at(0, 0, 0), p);  // 2^-40 is lost beside it
}

TEST_P(Rules, R5OnlyHopperRoundsTheWeightAndOnlyForTheOutput) {
  ScoreRow row(GetParam(), 1, -0.375F);
  row.v.set(0, 0, 0, 0, 1.0F);
  row.run();
  const float p = row.sum_at(0, 0, 0);
  const bool hopper = GetParam().arithmetic == Arithmetic::kHopperK16F25;
  EXPECT_EQ(row.o.at(0, 0, 0, 0), hopper ? as_stored(GetParam().dtype, p) : p);
  EXPECT_EQ(row.o.at(0, 0, 0, 0) == p, !hopper);
}

TEST_P(Rules, R6KeysWithZeroWeightAreNotAdded) {
  ScoreRow row(GetParam(), 20, 0.0F);
  row.set_score(3, -200.0F);
  row.v.set_row(0, 3, 0, kInf);
  row.run();
  EXPECT_EQ(row.o.at(0, 0, 0, 5), 0.0F);
}

TEST(RulesF16, R6AWeightThatRoundsToZeroInF16StillCountsInTheSum) {
  ScoreRow pair(kHopperF16, 2, -33.0F);  // 2^-26 after the bias: a quarter of the smallest fp16 subnormal
  pair.set_score(0, 0.0F);
  pair.v.set(0, 1, 0, 0, 60000.0F);
  pair.run();
  EXPECT_EQ(pair.o.at(0, 0, 0, 0), 0.0F);
  ScoreRow subnormal(kHopperF16, 2, -31.0F);  // 2^-24: the smallest fp16 subnormal
  subnormal.set_score(0, 0.0F);
  subnormal.v.set(0, 1, 0, 0, 1.0F);
  subnormal.run();
  EXPECT_EQ(subnormal.o.at(0, 0, 0, 0), 0x1p-24F);
}

TEST(RulesBf16, R6BlocksAreFusedSumsOfSixteenKeys) {
  // Values 2^26, 1 and -2^26 with equal weights: inside one block 1 is cut off at 25 fraction bits below 2^26; with
  // -2^26 in the next block, the first block's sum is cut to 24 bits, which also loses 1; 2^24 keeps it in one block.
  const auto o_of = [](float big, int64_t last) {
    ScoreRow row(kHopperBf16, 32, 0.0F);
    row.v.set(0, 0, 0, 0, big);
    row.v.set(0, 1, 0, 0, 1.0F);
    row.v.set(0, last, 0, 0, -big);
    row.run();
    return row.o.at(0, 0, 0, 0);
  };
  EXPECT_EQ(o_of(0x1p24F, 15), 1.0F);
  EXPECT_EQ(o_of(0x1p26F, 15), 0.0F);
  EXPECT_EQ(o_of(0x1p24F, 16), 0.0F);
}

TEST(RulesCpu, R6KeysAreAddedOneByOneInAscendingOrder) {
  ScoreRow row(kCpuF32, 3, 0.0F);
  row.v.set(0, 0, 0, 0, 0x1p24F);
  row.v.set(0, 1, 0, 0, 1.0F);
  row.v.set(0, 2, 0, 0, -0x1p24F);
  row.v.set(0, 0, 0, 1, 0x1p24F);
  row.v.set(0, 1, 0, 1, -0x1p24F);
  row.v.set(0, 2, 0, 1, 1.0F);
  row.run();
  EXPECT_EQ(row.o.at(0, 0, 0, 0), 0.0F);
  EXPECT_EQ(row.o.at(0, 0, 0, 1), 1.0F);
}

TEST_P(Rules, R7RowSumHasEightClassesAndAFixedTree) {
  // Key 0 weighs 1, two more keys weigh 2^-24 each: they only count if the rule adds them to each other first.
  struct Pair {
    int64_t first, second;
    bool counts;
  };
  for (const Pair pair : {Pair{8, 16, false}, Pair{1, 9, true}, Pair{1, 17, true}, Pair{1, 2, false}, Pair{2, 3, true},
                          Pair{4, 5, true}, Pair{4, 7, true}, Pair{2, 4, false}, Pair{3, 19, true}}) {
    ScoreRow row(GetParam(), 32, -200.0F);
    row.set_score(0, 0.0F);
    row.set_score(pair.first, -24.0F);
    row.set_score(pair.second, -24.0F);
    row.run();
    EXPECT_EQ(row.unbiased_sum(), pair.counts ? 1.0F + 0x1p-23F : 1.0F) << pair.first << " " << pair.second;
  }
}

TEST_P(Rules, R7GranulesEnterAClassThroughTheirOwnSum) {
  // 2^-24 from keys 128 and 136 meet inside their granule before they meet the 1 of the granule before.
  ScoreRow row(GetParam(), 160, -200.0F);
  row.set_score(0, 0.0F);
  row.set_score(128, -24.0F);
  row.set_score(136, -24.0F);
  row.run();
  EXPECT_EQ(row.unbiased_sum(), 1.0F + 0x1p-23F);
}

TEST(RulesCpu, R1ClassesAndTreeOfTheScore) {
  struct Terms {
    int64_t one, minus;
    float expected;
  };
  // k = 2^24 at dim 0, 1 at `one`, -2^24 at `minus`, q = 1: which of them meet first decides whether 1 survives.
  for (const Terms t : {Terms{1, 8, 1.0F}, Terms{1, 2, 1.0F}, Terms{8, 4, 0.0F}, Terms{16, 32, 0.0F},
                        Terms{17, 16, 1.0F}, Terms{4, 2, 0.0F}, Terms{2, 4, 1.0F}}) {
    Attention row(kCpuF32, {.sk = 1, .dqk = 40, .dv = 16});
    row.params.softmax_scale = 0x1.62e43p-1F;
    row.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
    row.q.fill_with(1.0F);
    row.k.fill_with(0.0F);
    row.k.set(0, 0, 0, 0, 0x1p24F);
    row.k.set(0, 0, 0, t.one, 1.0F);
    row.k.set(0, 0, 0, t.minus, -0x1p24F);
    row.run();
    EXPECT_EQ(row.max_at(0, 0, 0), t.expected) << t.one << " " << t.minus;
  }
}

TEST(RulesBf16, R1StepsOfSixteenDimsAreFusedAndAscending) {
  struct Terms {
    float big;
    int64_t one, minus;
    float expected;
  };
  for (const Terms t : {Terms{0x1p24F, 1, 2, 1.0F}, Terms{0x1p26F, 1, 2, 0.0F}, Terms{0x1p24F, 16, 32, 0.0F},
                        Terms{0x1p24F, 32, 16, 1.0F}, Terms{0x1p24F, 32, 33, 1.0F}}) {
    Attention row(kHopperBf16, {.sk = 1, .dqk = 40, .dv = 16});
    row.params.softmax_scale = 0x1.62e43p-1F;
    row.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
    row.q.fill_with(1.0F);
    row.k.fill_with(0.0F);
    row.k.set(0, 0, 0, 0, t.big);
    row.k.set(0, 0, 0, t.one, 1.0F);
    row.k.set(0, 0, 0, t.minus, -t.big);
    row.run();
    EXPECT_EQ(row.max_at(0, 0, 0), t.expected) << t.big << " " << t.one << " " << t.minus;
  }
}

// LSE of a row with one key whose natural score is x, by R3, R4 and R9.
float one_key_lse(Numerics n, float x) {
  const float c = 0x1.715476p+0F;
  const float b = plan_for(n.arithmetic, n.dtype, 16, 16).value().bias;
  const auto m = static_cast<float>(std::ceil(static_cast<double>(x) * static_cast<double>(c)));
  const float y = std::fma(x, c, b - m);
  const float p = n.arithmetic == Arithmetic::kHopperK16F25 ? ex2_sm90()(y) : soft_exp2(y);
  return (soft_log2(p) + (m - b)) * 0x1.62e43p-1F;
}

TEST_P(Rules, R1SoftcapActsOnTheScaledScore) {
  for (const float score : {0.5F, 3.0F, 90.0F, -250.0F}) {
    ScoreRow row(GetParam(), 1, score);
    row.params.softmax_scale = 0.3F;
    row.params.softcap = 30.0F;
    row.run();
    const float x = 30.0F * soft_tanh((as_stored(GetParam().dtype, score) * 0.3F) / 30.0F);
    EXPECT_EQ(row.lse_at(0, 0, 0), one_key_lse(GetParam(), x)) << score;
  }
}

TEST_P(Rules, R1AlibiAddsSlopeTimesDistanceInNaturalUnits) {
  const std::vector<float> slopes = {0.3F};
  ScoreRow row(GetParam(), 1, 2.0F);
  const std::vector<int32_t> positions = {7};
  row.params.softmax_scale = 0.3F;
  row.params.alibi_slopes = slopes.data();
  row.params.segments[0].q_positions = positions.data();
  row.run();
  EXPECT_EQ(row.lse_at(0, 0, 0), one_key_lse(GetParam(), std::fma(0.3F, -7.0F, 2.0F * 0.3F)));
}

TEST_P(Rules, R1SoftcapComesBeforeAlibi) {
  const std::vector<float> slopes = {1.0F};
  const std::vector<int32_t> positions = {20};
  ScoreRow row(GetParam(), 1, 8.0F);
  row.params.softmax_scale = 1.0F;
  row.params.softcap = 4.0F;
  row.params.alibi_slopes = slopes.data();
  row.params.segments[0].q_positions = positions.data();
  row.run();
  EXPECT_EQ(row.lse_at(0, 0, 0), one_key_lse(GetParam(), std::fma(1.0F, -20.0F, 4.0F * soft_tanh(2.0F))));
}

TEST_P(Rules, ThreadsDoNotMoveABit) {
  Attention one(GetParam(), {.batch = 2, .sq = 70, .sk = 90, .hq = 4, .hk = 2, .dqk = 24, .dv = 20});
  one.run(1);
  Attention many(GetParam(), {.batch = 2, .sq = 70, .sk = 90, .hq = 4, .hk = 2, .dqk = 24, .dv = 20});
  many.run(5);
  EXPECT_EQ(one.all(), many.all());
}

}  // namespace
}  // namespace tessera
