// R8 and R10 from outside: chunk ranges, merges of states, segments.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "attention_fixture.h"

namespace tessera {
namespace {

// States of the same rows, collected for a merge: (state, token, head, dim).
class States {
 public:
  States(int64_t tokens, int32_t heads, int32_t dim) : tokens_(tokens), heads_(heads), dim_(dim) {}

  void add(const Attention& a) {
    for (int64_t i = 0; i < tokens_; ++i) {
      for (int32_t h = 0; h < heads_; ++h) {
        for (int64_t d = 0; d < dim_; ++d) {
          o_.push_back(a.o.at(0, i, h, d));
        }
        max_.push_back(a.max_at(0, i, h));
        sum_.push_back(a.sum_at(0, i, h));
      }
    }
    ++count_;
  }
  void add_raw(const std::vector<float>& o, float row_max, float row_sum) {
    o_.insert(o_.end(), o.begin(), o.end());
    max_.push_back(row_max);
    sum_.push_back(row_sum);
    ++count_;
  }

  // Merge of states [first, end) into `a`'s outputs, in a's output mode.
  Status merge_into(Attention& a, int64_t first, int64_t end, tessera_output_mode mode, const float* sinks = nullptr) {
    const int64_t rows = tokens_ * heads_;
    a.o = Tensor(TESSERA_F32, 1, tokens_, heads_, dim_);
    a.lse.assign(static_cast<size_t>(rows), kNan);
    a.row_max = a.row_sum = a.lse;
    tessera_merge_params m{};
    m.struct_size = sizeof(m);
    m.dtype = a.numerics.dtype;
    m.o_dtype = TESSERA_F32;
    m.head_dim_qk = a.shape.dqk;
    m.head_dim_v = dim_;
    m.num_heads_q = heads_;
    m.num_rows = tokens_;
    m.num_states = end - first;
    m.o_states = {o_.data() + first * rows * dim_, rows * dim_, int64_t{heads_} * dim_, dim_, 1};
    m.row_max_log2_states = {max_.data() + first * rows, rows, heads_, 1};
    m.row_sum_states = {sum_.data() + first * rows, rows, heads_, 1};
    m.sinks = sinks;
    m.output_mode = mode;
    m.o = a.o.view();
    m.lse_natural_no_sink = {a.lse.data(), rows, heads_, 1};
    m.row_max_log2 = {a.row_max.data(), rows, heads_, 1};
    m.row_sum = {a.row_sum.data(), rows, heads_, 1};
    return oracle_merge(a.numerics.arithmetic, m);
  }

 private:
  int64_t tokens_;
  int32_t heads_, dim_;
  int64_t count_ = 0;
  std::vector<float> o_, max_, sum_;
};

class SplitMerge : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, SplitMerge, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

constexpr int64_t kChunk = 2048;

// Runs chunks [begin, end) as a state.
void run_range(Attention& a, int64_t begin, int64_t end) {
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.params.sinks = nullptr;
  a.params.chunk_begin = begin;
  a.params.chunk_end = end;
  a.run();
}

TEST_P(SplitMerge, EveryChunkAloneThenMergedIsTheWhole) {
  const Shape shape{.sq = 3, .sk = 4 * kChunk + 77, .hq = 2, .hk = 1, .dqk = 16, .dv = 16};
  const std::vector<float> sinks = {1.0F, -2.0F};
  Attention whole(GetParam(), shape, 21, 5.0F);
  whole.params.segments[0].causal = 1;
  whole.params.sinks = sinks.data();
  whole.run();
  Attention part(GetParam(), shape, 21, 5.0F);
  part.params.segments[0].causal = 1;
  States states(shape.sq, shape.hq, shape.dv);
  for (int64_t chunk = 0; chunk < 5; ++chunk) {
    run_range(part, chunk, chunk + 1);
    states.add(part);
  }
  ASSERT_TRUE(states.merge_into(part, 0, 5, TESSERA_OUTPUT_NORMALIZED, sinks.data()).ok());
  EXPECT_EQ(part.all(), whole.all());
}

TEST_P(SplitMerge, APrefixAndSingleChunksMergeToTheWhole) {
  const Shape shape{.sq = 1, .sk = 7 * kChunk, .dqk = 16, .dv = 16};
  Attention whole(GetParam(), shape, 22, 5.0F);
  whole.run();
  for (const int64_t prefix : {1, 3, 6}) {
    Attention part(GetParam(), shape, 22, 5.0F);
    States states(1, 1, 16);
    run_range(part, 0, prefix);
    states.add(part);
    for (int64_t chunk = prefix; chunk < 7; ++chunk) {
      run_range(part, chunk, chunk + 1);
      states.add(part);
    }
    ASSERT_TRUE(states.merge_into(part, 0, 8 - prefix, TESSERA_OUTPUT_NORMALIZED).ok());
    EXPECT_EQ(part.all(), whole.all()) << prefix;
  }
}

TEST_P(SplitMerge, SuperchunksAreChainedFirstAndAFlatChainDiffers) {
  const int64_t chunks = 36;  // superchunks of 16, 16 and 4
  const Shape shape{.sq = 4, .sk = chunks * kChunk, .dqk = 16, .dv = 16};
  Attention whole(GetParam(), shape, 23, 5.0F);
  run_range(whole, 0, 0);
  Attention part(GetParam(), shape, 23, 5.0F);
  States leaves(4, 1, 16);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    run_range(part, chunk, chunk + 1);
    leaves.add(part);
  }
  States superchunks(4, 1, 16);
  for (int64_t first = 0; first < chunks; first += 16) {
    ASSERT_TRUE(leaves.merge_into(part, first, std::min(chunks, first + 16), TESSERA_OUTPUT_UNNORMALIZED).ok());
    superchunks.add(part);
  }
  ASSERT_TRUE(superchunks.merge_into(part, 0, 3, TESSERA_OUTPUT_UNNORMALIZED).ok());
  EXPECT_EQ(part.all(), whole.all());
  ASSERT_TRUE(leaves.merge_into(part, 0, chunks, TESSERA_OUTPUT_UNNORMALIZED).ok());
  EXPECT_NE(part.all(), whole.all());
}

TEST_P(SplitMerge, APrefixOfAllSuperchunksIsOneState) {
  const Shape shape{.sq = 1, .sk = 33 * kChunk, .dqk = 16, .dv = 16};
  Attention whole(GetParam(), shape, 24, 5.0F);
  whole.run();
  Attention part(GetParam(), shape, 24, 5.0F);
  States states(1, 1, 16);
  run_range(part, 0, 32);
  states.add(part);
  run_range(part, 32, 33);
  states.add(part);
  ASSERT_TRUE(states.merge_into(part, 0, 2, TESSERA_OUTPUT_NORMALIZED).ok());
  EXPECT_EQ(part.all(), whole.all());
}

TEST_P(SplitMerge, EmptyStatesAreTheIdentityWhateverTheirBytes) {
  const Shape shape{.sq = 1, .sk = 50, .dqk = 16, .dv = 2};
  Attention a(GetParam(), shape);
  States plain(1, 1, 2);
  plain.add_raw({3.0F, -5.0F}, 4.0F, 1.5F);
  plain.add_raw({1.0F, 7.0F}, 2.0F, 1.25F);
  ASSERT_TRUE(plain.merge_into(a, 0, 2, TESSERA_OUTPUT_NORMALIZED).ok());
  const std::vector<uint8_t> expected = a.all();
  States padded(1, 1, 2);
  padded.add_raw({kNan, kInf}, -kInf, 0.0F);
  padded.add_raw({3.0F, -5.0F}, 4.0F, 1.5F);
  padded.add_raw({-kInf, kNan}, -kInf, 0.0F);
  padded.add_raw({1.0F, 7.0F}, 2.0F, 1.25F);
  ASSERT_TRUE(padded.merge_into(a, 0, 4, TESSERA_OUTPUT_NORMALIZED).ok());
  EXPECT_EQ(a.all(), expected);
}

TEST_P(SplitMerge, MergeOfOnlyEmptyStatesIsAnEmptyRow) {
  Attention a(GetParam(), {.dqk = 16, .dv = 2});
  const float sink = -104.0F;
  States states(1, 1, 2);
  states.add_raw({kNan, 3.0F}, -kInf, 0.0F);
  states.add_raw({5.0F, kNan}, -kInf, 0.0F);
  for (const int64_t count : {0, 1, 2}) {
    ASSERT_TRUE(states.merge_into(a, 0, count, TESSERA_OUTPUT_NORMALIZED, &sink).ok());
    EXPECT_EQ(bits_of(a.o.at(0, 0, 0, 0)), 0U);
    EXPECT_EQ(bits_of(a.o.at(0, 0, 0, 1)), 0U);
    EXPECT_EQ(a.lse_at(0, 0, 0), -kInf);
  }
}

TEST_P(SplitMerge, ChainRoundsTheLaterTermBeforeTheFusedSum) {
  // l'' = fma(l_A, w_A, RN(l_B w_B)), likewise O: with w_B = 1/2, three units of 2^-149 become 1.5, which rounds to 2.
  Attention a(GetParam(), {.dqk = 16, .dv = 1});
  States states(1, 1, 1);
  states.add_raw({0x1p-149F}, 1.0F, 0x1p-149F);
  states.add_raw({0x3p-149F}, 0.0F, 0x3p-149F);
  ASSERT_TRUE(states.merge_into(a, 0, 2, TESSERA_OUTPUT_UNNORMALIZED).ok());
  EXPECT_EQ(a.o.at(0, 0, 0, 0), 0x3p-149F);
  EXPECT_EQ(a.sum_at(0, 0, 0), 0x3p-149F);
  EXPECT_EQ(a.max_at(0, 0, 0), 1.0F);
  States reversed(1, 1, 1);  // as the earlier state they enter the fma unrounded: 1.5 + 1 = 2.5 rounds to 2
  reversed.add_raw({0x3p-149F}, 0.0F, 0x3p-149F);
  reversed.add_raw({0x1p-149F}, 1.0F, 0x1p-149F);
  ASSERT_TRUE(reversed.merge_into(a, 0, 2, TESSERA_OUTPUT_UNNORMALIZED).ok());
  EXPECT_EQ(a.o.at(0, 0, 0, 0), 0x2p-149F);
  EXPECT_EQ(a.sum_at(0, 0, 0), 0x2p-149F);
}

TEST_P(SplitMerge, SegmentsAreChainedInTheDeclaredOrder) {
  const Shape shape{.sq = 2, .sk = 300, .hq = 2, .hk = 1, .dqk = 16, .dv = 16};
  Tensor k2(GetParam().dtype, 1, 70, 1, 16), v2(GetParam().dtype, 1, 70, 1, 16);
  k2.fill(77, 1.0F);
  v2.fill(78, 1.0F);
  Attention both(GetParam(), shape, 25, 5.0F);
  both.params.num_segments = 2;
  both.params.segments[0].window_left = 100;
  both.params.segments[1] = Attention::segment(k2, v2, 70);
  both.params.segments[1].compress_ratio = 4;
  both.run();

  Attention part(GetParam(), shape, 25, 5.0F);
  part.params.segments[0].window_left = 100;
  States states(2, 2, 16);
  run_range(part, 0, 0);
  states.add(part);
  part.params.segments[0] = both.params.segments[1];
  run_range(part, 0, 0);
  states.add(part);
  ASSERT_TRUE(states.merge_into(part, 0, 2, TESSERA_OUTPUT_NORMALIZED).ok());
  EXPECT_EQ(part.all(), both.all());
}

TEST_P(SplitMerge, SegmentsHaveTheirOwnIndexSpaceSoOneSegmentCutInTwoIsNotTheSame) {
  // Keys 0..99 and 100..199 as two segments: the second one's granules start at its own key 0.
  const Shape shape{.sq = 4, .sk = 200, .dqk = 16, .dv = 16};
  Attention whole(GetParam(), shape, 26, 30.0F);
  whole.run();
  Attention cut(GetParam(), shape, 26, 30.0F);
  cut.params.num_segments = 2;
  cut.params.segments[1] = cut.params.segments[0];
  cut.params.segments[0].seqlen_k = cut.params.segments[1].seqlen_k = 100;
  const int64_t skip = 100 * 16;
  const auto advance = [&](tessera_tensor& t) {
    t.data = static_cast<uint8_t*>(t.data) + skip * static_cast<int64_t>(dtype_size(GetParam().dtype));
  };
  advance(cut.params.segments[1].k);
  advance(cut.params.segments[1].v);
  cut.run();
  EXPECT_NE(cut.all(), whole.all());
  EXPECT_NEAR(cut.lse_at(0, 0, 0), whole.lse_at(0, 0, 0), 1e-4);
}

}  // namespace
}  // namespace tessera
