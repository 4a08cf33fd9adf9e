// How close the contract's bits are to the mathematics, for every feature (tolerances: expect_close.h).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attention_fixture.h"
#include "expect_close.h"

namespace tessera {
namespace {

class Accuracy : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, Accuracy, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

TEST_P(Accuracy, Plain) {
  Attention a(GetParam(), {.batch = 2, .sq = 7, .sk = 333, .hq = 4, .hk = 2, .dqk = 64, .dv = 64}, 51, 2.0F);
  expect_close(a);
}

TEST_P(Accuracy, HeadDimsOfOtherModels) {
  for (const auto& [qk, v] : {std::pair{80, 80}, std::pair{96, 96}, std::pair{192, 128}, std::pair{256, 256},
                              std::pair{576, 512}, std::pair{1, 1}, std::pair{17, 5}}) {
    Attention a(GetParam(), {.sq = 2, .sk = 150, .hq = 2, .hk = 1, .dqk = qk, .dv = v}, 52, 2.0F);
    expect_close(a);
  }
}

TEST_P(Accuracy, CausalWindowAndGqa) {
  Attention a(GetParam(), {.sq = 70, .sk = 300, .hq = 6, .hk = 2, .dqk = 32, .dv = 32}, 53, 3.0F);
  a.params.segments[0].causal = 1;
  a.params.segments[0].window_left = 127;
  expect_close(a);
}

TEST_P(Accuracy, LongContextDoesNotDrift) {
  // One-sided truncation over one long chain would show here: values with mean 1.
  Attention a(GetParam(), {.sq = 1, .sk = 40000, .dqk = 16, .dv = 16}, 54);
  a.v.fill(99, 0.5F, 1.0F);
  expect_close(a);
}

TEST_P(Accuracy, LargeScores) {
  Attention a(GetParam(), {.sq = 8, .sk = 500, .dqk = 64, .dv = 64}, 55, 30.0F);
  expect_close(a);
}

TEST_P(Accuracy, SoftcapAlibiAndSinks) {
  Attention a(GetParam(), {.sq = 9, .sk = 200, .hq = 4, .hk = 4, .dqk = 32, .dv = 32}, 56, 6.0F);
  const std::vector<float> slopes = {0.5F, 0.25F, 0.125F, 0.0625F};
  const std::vector<float> sinks = {0.5F, 3.0F, -kInf, -104.0F};
  a.params.segments[0].causal = 1;
  a.params.softcap = 20.0F;
  expect_close(a);
  a.params.alibi_slopes = slopes.data();
  expect_close(a);
  a.params.sinks = sinks.data();
  expect_close(a);
  a.params.softcap = 0.0F;
  expect_close(a);
}

TEST_P(Accuracy, TwoSegmentsWithGatheredKeysAndSinks) {
  Attention a(GetParam(), {.sq = 4, .sk = 400, .hq = 2, .hk = 1, .dqk = 64, .dv = 48}, 57, 3.0F);
  Tensor k2(GetParam().dtype, 1, 90, 1, 64), v2(GetParam().dtype, 1, 90, 1, 48);
  k2.fill(58, 1.0F);
  v2.fill(59, 1.0F);
  std::vector<int32_t> indices;
  for (int32_t t = 0; t < 4 * 30; ++t) {
    indices.push_back(t % 7 == 3 ? -1 : (t * 37) % 90);
  }
  const std::vector<float> sinks = {1.0F, 2.0F};
  const std::vector<int32_t> positions = {396};
  a.params.sinks = sinks.data();
  a.params.num_segments = 2;
  a.params.segments[0].causal = 1;
  a.params.segments[0].window_left = 127;
  a.params.segments[1] = Attention::segment(k2, v2, 90);
  a.params.segments[1].indices = indices.data();
  a.params.segments[1].indices_stride = 30;
  a.params.segments[1].topk = 30;
  a.params.segments[1].compress_ratio = 4;
  a.params.segments[1].q_positions = positions.data();
  expect_close(a);
}

TEST_P(Accuracy, PackedSequencesWithCustomBits) {
  const std::vector<int32_t> cu = {0, 4, 4, 20};
  Attention a(GetParam(), {.batch = 1, .sq = 20, .sk = 20, .hq = 2, .hk = 1, .dqk = 16, .dv = 16}, 60, 2.0F);
  a.params.batch = 3;
  a.params.seqlen_q = 20;
  a.params.cu_seqlens_q = cu.data();
  a.params.segments[0].cu_seqlens_k = cu.data();
  a.params.segments[0].k.stride_batch = a.params.segments[0].v.stride_batch = 0;
  std::vector<uint8_t> bits(3 * 20 * 3);
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<uint8_t>(i * 37 | 1);
  }
  a.params.segments[0].mask = {bits.data(), 60, 0, 3, -1};
  a.params.segments[0].causal = 1;
  expect_close(a);
}

}  // namespace
}  // namespace tessera
