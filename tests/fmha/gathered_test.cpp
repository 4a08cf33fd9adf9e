// Gathered keys (R10) on the CPU: every kernel against the oracle, and what a list may not change.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "fmha/conformance.h"
#include "fmha/draw.h"

namespace tessera::test {
namespace {

FmhaSpec gathered(int64_t q, int64_t k, int32_t topk) {
  FmhaSpec spec;
  spec.head_dim_qk = spec.head_dim_v = 32;
  spec.segments.emplace_back();
  spec.segments[0].topk = topk;
  spec.segments[0].poison_masked = true;  // keys that no list names are NaN
  return one_sequence(spec, q, k);
}

TEST(Gathered, ListsOfEveryLengthGiveTheOraclesBytes) {
  for (const int32_t topk : {1, 2, 15, 16, 17, 100, 129, 700}) {
    for (const int64_t q : {1, 5}) expect_oracle_bytes(gathered(q, 900, topk));
  }
}

TEST(Gathered, ManyHeadsOfATokenShareItsList) {
  for (const int32_t heads : {1, 7, 16, 64, 200}) {
    FmhaSpec spec = gathered(3, 300, 90);
    spec.heads_q = heads;
    spec.heads_kv = 1;
    expect_oracle_bytes(spec);
  }
}

TEST(Gathered, ListsThatCrossChunksAreCutByRank) {
  FmhaSpec spec = gathered(2, 7000, 4500);
  spec.head_dim_qk = spec.head_dim_v = 16;
  spec.heads_q = 2;
  spec.heads_kv = 1;
  spec.segments[0].list_duplicates = true;
  expect_oracle_bytes(spec, 7);
}

TEST(Gathered, WhatR2HidesIsDroppedBeforeRanksAreCounted) {
  FmhaSpec spec = gathered(6, 400, 120);
  spec.segments[0].causal = 1;
  spec.segments[0].window_left = 200;
  spec.segments[0].q_positions = {250};
  expect_oracle_bytes(spec);
  spec.segments[0].causal = 0;
  spec.segments[0].window_left = -1;
  spec.segments[0].compress_ratio = 4;
  spec.segments[0].q_positions = {1000};
  expect_oracle_bytes(spec);
}

TEST(Gathered, OrderAndPlacesOfMinusOneMoveNoBit) {
  FmhaSpec spec = gathered(3, 500, 200);
  spec.segments[0].absent_of = 4;
  spec.segments[0].layout = KvLayout::kPaged;
  spec.segments[0].unlisted_pages = true;
  for (const uint64_t seed : {2u, 3u, 4u}) {
    FmhaSpec other = spec;
    other.segments[0].list_seed = seed;
    other.segments[0].page_seed = seed;
    EXPECT_EQ(row_of(spec, 0, 1, 2, 3), row_of(other, 0, 1, 2, 3));
  }
}

TEST(Gathered, TokensOfOneCallHaveTheBytesOfCallsOfTheirOwn) {
  FmhaSpec all = gathered(5, 350, 64);
  all.segments[0].list_lengths = true;
  for (int64_t i = 0; i < 5; ++i) {
    FmhaSpec one = all;
    one.q_lengths = {1};
    one.q_first = {i};
    for (int64_t h = 0; h < 4; ++h) EXPECT_EQ(row_of(all, 0, i, h), row_of(one, 0, 0, h)) << i;
  }
}

FmhaSpec draw_gathered(uint64_t seed) {
  Draw draw(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = draw.of({TESSERA_F32, TESSERA_F16, TESSERA_BF16});
  spec.unnormalized = draw.one_in(4);
  spec.o_dtype = spec.unnormalized || draw.one_in(3) ? TESSERA_F32 : spec.dtype;
  spec.head_dim_qk = draw.of<int32_t>({16, 40, 64, 128, 192});
  spec.head_dim_v = draw.one_in(2) ? spec.head_dim_qk : 64;
  spec.heads_kv = static_cast<int32_t>(draw.in(1, 2));
  spec.heads_q = spec.heads_kv * draw.of<int32_t>({1, 3, 8, 20});
  spec.q_lengths.clear();
  const int64_t batch = draw.in(1, 3);
  for (int64_t b = 0; b < batch; ++b) spec.q_lengths.push_back(draw.one_in(6) ? 0 : draw.in(1, 6));
  spec.packed_q = draw.one_in(2);
  spec.slot_padding = draw.one_in(3) ? draw.in(1, 3) : 0;
  if (draw.one_in(4)) spec.softcap = 20.0f;
  if (!spec.unnormalized && draw.one_in(2)) spec.sinks.assign(static_cast<size_t>(spec.heads_q), 0.5f);
  const int64_t segments = draw.in(1, 3);
  for (int64_t i = 0; i < segments; ++i) {
    SegmentSpec s;
    for (int64_t b = 0; b < batch; ++b) s.lengths.push_back(draw.one_in(7) ? 0 : draw.in(1, 260));
    s.layout = draw.of({KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged});
    s.page_size = draw.of<int32_t>({1, 2, 64, 333});
    s.page_seed = draw.bits();
    s.poison_masked = true;
    s.row_padding = draw.one_in(3) ? 5 : 0;
    if (!draw.one_in(3)) {
      s.topk = draw.of<int32_t>({1, 16, 50, 130});
      s.absent_of = draw.of({0, 3});
      s.list_lengths = draw.one_in(2);
      s.list_duplicates = draw.one_in(2);
      s.list_seed = draw.bits();
    } else if (draw.one_in(2)) {
      s.mask = true;
    }
    if (draw.one_in(3)) {
      s.compress_ratio = 4;
      for (int64_t b = 0; b < batch; ++b) s.q_positions.push_back(static_cast<int32_t>(draw.in(0, 900)));
    } else {
      s.causal = draw.one_in(2) ? 1 : 0;
      if (draw.one_in(2)) s.window_left = 127;
      // A page has to be there for every listed key in reach, even if the token that lists it does not see it.
      s.unlisted_pages = s.topk > 0 && s.causal == 0 && s.window_left < 0;
    }
    spec.segments.push_back(s);
  }
  return spec;
}

class GatheredMixes : public testing::TestWithParam<int> {};

TEST_P(GatheredMixes, EqualTheOracle) {
  for (int i = 0; i < 8; ++i) {
    const uint64_t seed = 9000 + static_cast<uint64_t>(GetParam()) * 8 + static_cast<uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_oracle_bytes(draw_gathered(seed), 2 + i % 5);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, GatheredMixes, testing::Range(0, 12));

}  // namespace
}  // namespace tessera::test
