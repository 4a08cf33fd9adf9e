// R9: from state to row, with sinks, empty rows, dtypes and the log-sum-exp.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attention_fixture.h"
#include "contract/exp2.h"
#include "contract/log2.h"

namespace tessera {
namespace {

constexpr Shape kShape{.sq = 3, .sk = 50, .hq = 2, .hk = 1, .dqk = 16, .dv = 12};
constexpr float kLn2Bits = 0x1.62e43p-1F;

class Finish : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, Finish, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

float bias_of(Numerics n) {
  return plan_for(n.arithmetic, n.dtype, 16, 16).value().bias;
}

// Expected fp32 output of one element from the state, by R9 in plain operations.
float finished(float o, float l, float m, float b, float sink) {
  const float h = sink * 0x1.715476p+0F;
  if (h == kInf) {
    return 0.0F;
  }
  if (h != -kInf) {
    const float top = std::fmax(m, std::ceil(h));
    const float drop = top - m;
    const float w = drop > 64.0F ? 0.0F : std::exp2(-drop);
    o = o * w;
    l = l * w + soft_exp2((h - top) + b);
  }
  const float out = o * (1.0F / l);
  return out == 0.0F ? 0.0F : out;
}

void check_sinks(Numerics n, const std::vector<float>& sinks) {
  Attention state(n, kShape, 5, 4.0F);
  state.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  state.run();
  Attention row(n, kShape, 5, 4.0F);
  row.params.sinks = sinks.data();
  row.run();
  const float b = bias_of(n);
  for (int64_t i = 0; i < kShape.sq; ++i) {
    for (int64_t h = 0; h < kShape.hq; ++h) {
      for (int64_t d = 0; d < kShape.dv; ++d) {
        EXPECT_EQ(row.o.at(0, i, h, d), finished(state.o.at(0, i, h, d), state.sum_at(0, i, h),
                                                 state.max_at(0, i, h) + b, b, sinks[static_cast<size_t>(h)]));
      }
      EXPECT_EQ(row.lse_at(0, i, h), (soft_log2(state.sum_at(0, i, h)) + state.max_at(0, i, h)) * kLn2Bits);
      EXPECT_EQ(row.lse_at(0, i, h), state.lse_at(0, i, h));
    }
  }
}

TEST_P(Finish, OrdinarySinks) {
  check_sinks(GetParam(), {0.5F, -1.25F});
}
TEST_P(Finish, SinksAboveAllScores) {
  check_sinks(GetParam(), {40.0F, 200.0F});
}
TEST_P(Finish, SinksFarBelowAllScores) {
  check_sinks(GetParam(), {-104.0F, -1e4F});
}
TEST_P(Finish, SinksWhoseLog2Overflows) {
  check_sinks(GetParam(), {3e38F, -3e38F});
}

TEST_P(Finish, MinusInfinitySinkHasNoEffectAndPlusInfinityGivesZero) {
  Attention plain(GetParam(), kShape, 5);
  plain.run();
  Attention mixed(GetParam(), kShape, 5);
  const std::vector<float> sinks = {-kInf, kInf};
  mixed.params.sinks = sinks.data();
  mixed.run();
  for (int64_t i = 0; i < kShape.sq; ++i) {
    EXPECT_EQ(mixed.row(0, i, 0), plain.row(0, i, 0));
    for (int64_t d = 0; d < kShape.dv; ++d) {
      EXPECT_EQ(bits_of(mixed.o.at(0, i, 1, d)), 0U);
    }
    EXPECT_EQ(mixed.lse_at(0, i, 1), plain.lse_at(0, i, 1));
  }
}

TEST_P(Finish, RowsWithoutKeysAreZeroWhateverTheSink) {
  for (const float sink : {0.5F, 100.0F, 200.0F, -104.0F, -1e4F, kInf, -kInf}) {
    Attention a(GetParam(), kShape);
    const std::vector<float> sinks = {sink, sink};
    a.params.sinks = sinks.data();
    a.params.segments[0].seqlen_k = 0;
    a.run();
    for (int64_t i = 0; i < kShape.sq; ++i) {
      for (int64_t d = 0; d < kShape.dv; ++d) {
        EXPECT_EQ(bits_of(a.o.at(0, i, 1, d)), 0U);
      }
      EXPECT_EQ(a.lse_at(0, i, 1), -kInf);
      EXPECT_EQ(a.max_at(0, i, 1), -kInf);
      EXPECT_EQ(bits_of(a.sum_at(0, i, 1)), 0U);
    }
  }
}

TEST_P(Finish, EmptyStatesAreWrittenAsZeroAndMinusInfinity) {
  Attention a(GetParam(), kShape);
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.params.segments[0].seqlen_k = 0;
  a.run();
  EXPECT_EQ(bits_of(a.o.at(0, 2, 1, 11)), 0U);
  EXPECT_EQ(a.max_at(0, 2, 1), -kInf);
  EXPECT_EQ(bits_of(a.sum_at(0, 2, 1)), 0U);
  EXPECT_EQ(a.lse_at(0, 2, 1), -kInf);
}

TEST_P(Finish, SixteenBitOutputIsTheRoundedFp32Output) {
  if (GetParam().dtype == TESSERA_F32) {
    return;
  }
  Attention wide(GetParam(), kShape, 6);
  wide.run();
  Attention narrow(GetParam(), kShape, 6);
  narrow.params.o_dtype = GetParam().dtype;
  narrow.run();
  for (int64_t d = 0; d < kShape.dv; ++d) {
    EXPECT_EQ(narrow.o.at(0, 1, 1, d), as_stored(GetParam().dtype, wide.o.at(0, 1, 1, d)));
  }
}

TEST(FinishCpu, MinusZeroBecomesPlusZero) {
  Attention a(kCpuF32, {.sk = 4});
  a.zero_queries();
  a.v.fill_with(0.0F);
  a.v.set_row(0, 2, 0, -std::numeric_limits<float>::denorm_min());  // a quarter of it rounds to -0
  a.run();
  EXPECT_EQ(bits_of(a.o.at(0, 0, 0, 3)), 0U);
}

TEST(FinishCpu, MinusZeroOfAStateBecomesPlusZero) {
  Attention a(kCpuF32, {.sk = 129});
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.params.softmax_scale = kLn2Bits;
  a.q.fill_with(0.0F);
  a.q.set(0, 0, 0, 0, 1.0F);
  a.k.fill_with(0.0F);
  a.k.set(0, 128, 0, 0, 60.0F);
  a.v.fill_with(0.0F);
  a.v.set_row(0, 0, 0, -std::numeric_limits<float>::denorm_min());  // the rescale by 2^-60 gives -0
  a.run();
  EXPECT_EQ(bits_of(a.o.at(0, 0, 0, 3)), 0U);
}

TEST(FinishBf16, OutputThatUnderflowsInTheDtypeIsPlusZero) {
  Attention a(kHopperBf16, {.sk = 2});
  a.zero_queries();
  a.params.o_dtype = TESSERA_BF16;
  a.v.fill_with(0.0F);
  a.v.set_row(0, 1, 0, -0x1p-133F);  // half of the smallest bf16 subnormal is the result
  a.run();
  EXPECT_EQ(a.o.row_bytes(0, 0, 0), std::vector<uint8_t>(32, 0));
}

}  // namespace
}  // namespace tessera
