// Whole rows of the oracle against the second writing of R1 and R3..R8, over random problems.
#include "second_writing.h"

#include <gtest/gtest.h>

#include <vector>

#include "attention_fixture.h"

namespace tessera {
namespace {

class SecondWritingTest : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, SecondWritingTest, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

std::vector<float> row_of(const Tensor& t, int64_t b, int64_t token, int64_t head) {
  std::vector<float> values;
  for (int64_t d = 0; d < t.dim(); ++d) {
    values.push_back(t.at(b, token, head, d));
  }
  return values;
}

// Compares row (b, i, h) of an un-normalised, already run problem with keys [first, end) visible.
void compare(const Attention& a, int64_t b, int64_t i, int64_t h, int64_t first, int64_t end) {
  const NumericPlan plan = plan_for(a.numerics.arithmetic, a.numerics.dtype, a.shape.dqk, a.shape.dv).value();
  const SecondWriting second(plan, a.params.softmax_scale);
  const int64_t kv_head = h / (a.shape.hq / a.shape.hk);
  std::vector<SlotKey> keys;
  for (int64_t j = first; j < end; ++j) {
    keys.push_back({j, row_of(a.k, b, j, kv_head), row_of(a.v, b, j, kv_head)});
  }
  const RowState state = second.row(row_of(a.q, b, i, h), keys);
  ASSERT_FALSE(state.none);
  EXPECT_EQ(a.max_at(b, i, h), state.m - plan.bias);
  EXPECT_EQ(a.sum_at(b, i, h), state.l);
  EXPECT_EQ(row_of(a.o, b, i, h), state.o);
}

TEST_P(SecondWritingTest, SmallHeadDimsOverSeveralGranules) {
  Attention a(GetParam(), {.batch = 2, .sq = 3, .sk = 333, .hq = 4, .hk = 2, .dqk = 40, .dv = 24}, 11, 3.0F);
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.run();
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t h = 0; h < 4; ++h) {
        compare(a, b, i, h, 0, 333);
      }
    }
  }
}

TEST_P(SecondWritingTest, WideSpreadMovesTheMaxOften) {
  Attention a(GetParam(), {.sq = 6, .sk = 700, .dqk = 16, .dv = 16}, 12, 40.0F);
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.run();
  for (int64_t i = 0; i < 6; ++i) {
    compare(a, 0, i, 0, 0, 700);
  }
}

TEST_P(SecondWritingTest, LargeHeadDimWithTheSmallGranule) {
  Attention a(GetParam(), {.sq = 2, .sk = 300, .hq = 2, .dqk = 192, .dv = 128}, 13, 4.0F);
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.run();
  compare(a, 0, 0, 0, 0, 300);
  compare(a, 0, 1, 1, 0, 300);
}

TEST_P(SecondWritingTest, SeveralChunksUnderAWindowThatStartsInsideAGranule) {
  Attention a(GetParam(), {.sq = 4, .sk = 3000, .dqk = 16, .dv = 16}, 14, 6.0F);
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.params.segments[0].causal = 1;
  a.params.segments[0].window_left = 2222;
  a.run();
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t p = 3000 - 4 + i;
    compare(a, 0, i, 0, p - 2222, p + 1);
  }
}

TEST_P(SecondWritingTest, SeveralSuperchunks) {
  Attention a(GetParam(), {.sq = 1, .sk = 3 * 32768 + 100, .dqk = 16, .dv = 16}, 15, 6.0F);
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.run();
  compare(a, 0, 0, 0, 0, 3 * 32768 + 100);
}

}  // namespace
}  // namespace tessera
