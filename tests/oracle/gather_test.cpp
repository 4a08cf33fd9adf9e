// R10's gathered keys: the row is that of the listed visible keys laid out densely in ascending order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "attention_fixture.h"

namespace tessera {
namespace {

class Gather : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, Gather, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

constexpr int64_t kKeys = 2500;
constexpr Shape kShape{.sq = 1, .sk = kKeys, .hq = 2, .hk = 1, .dqk = 16, .dv = 16};

void attach(Attention& a, const std::vector<int32_t>& indices) {
  tessera_kv_segment& s = a.params.segments[0];
  s.indices = indices.data();
  s.indices_stride = static_cast<int64_t>(indices.size());
  s.topk = static_cast<int32_t>(indices.size());
}

// Rows of the keys `kept`, in that order, as a dense problem.
std::vector<uint8_t> dense_rows(Numerics n, const Attention& source, const std::vector<int32_t>& kept) {
  Attention dense(n, {.sq = 1, .sk = static_cast<int64_t>(kept.size()), .hq = 2, .hk = 1, .dqk = 16, .dv = 16});
  dense.q.copy_token(0, 0, source.q, 0, 0);
  for (size_t t = 0; t < kept.size(); ++t) {
    dense.k.copy_token(0, static_cast<int64_t>(t), source.k, 0, kept[t]);
    dense.v.copy_token(0, static_cast<int64_t>(t), source.v, 0, kept[t]);
  }
  dense.run();
  return dense.all();
}

std::vector<int32_t> random_indices(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> indices(count);
  for (int32_t& j : indices) {
    j = static_cast<int32_t>(random() % kKeys);
  }
  return indices;
}

TEST_P(Gather, EqualsTheDenseProblemOfTheListedKeysInAscendingOrder) {
  std::vector<int32_t> indices = random_indices(1300, 1);  // duplicates included
  Attention a(GetParam(), kShape, 41, 5.0F);
  attach(a, indices);
  a.run();
  std::sort(indices.begin(), indices.end());
  EXPECT_EQ(a.all(), dense_rows(GetParam(), a, indices));
}

TEST_P(Gather, OrderOfTheListAndPlacesOfMinusOneMoveNoBit) {
  std::vector<int32_t> indices = random_indices(500, 2);
  Attention plain(GetParam(), kShape, 42, 5.0F);
  attach(plain, indices);
  plain.run();
  std::shuffle(indices.begin(), indices.end(), std::mt19937(3));
  for (const size_t at : {size_t{0}, size_t{7}, size_t{300}, indices.size()}) {
    indices.insert(indices.begin() + static_cast<int64_t>(at), 64, -1);
  }
  Attention shuffled(GetParam(), kShape, 42, 5.0F);
  attach(shuffled, indices);
  shuffled.run();
  EXPECT_EQ(shuffled.all(), plain.all());
}

TEST_P(Gather, DuplicatesCountAsOftenAsListed) {
  Attention a(GetParam(), kShape);
  a.zero_queries();
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  const std::vector<int32_t> indices = {5, -1, 5, 9, 5};
  attach(a, indices);
  a.run();
  EXPECT_EQ(a.visible_keys(0, 0, 0), 4);
}

TEST_P(Gather, MaskedIndicesAreDroppedBeforeRanksAreCounted) {
  const std::vector<int32_t> positions = {1800};
  std::vector<int32_t> indices = random_indices(900, 4);
  Attention a(GetParam(), kShape, 43, 5.0F);
  attach(a, indices);
  a.params.segments[0].causal = 1;
  a.params.segments[0].q_positions = positions.data();
  a.run();
  std::erase_if(indices, [](int32_t j) { return j > 1800; });
  std::sort(indices.begin(), indices.end());
  EXPECT_EQ(a.all(), dense_rows(GetParam(), a, indices));
}

TEST_P(Gather, AlibiUsesTheIndexAndNotTheRank) {
  const std::vector<float> slopes = {0.01F, 0.02F};
  const std::vector<int32_t> indices = {100, 2000};
  Attention a(GetParam(), kShape, 44);
  attach(a, indices);
  a.params.alibi_slopes = slopes.data();
  a.zero_queries();
  a.run();
  // Natural scores slope * (j - p), p = 2499.
  EXPECT_NEAR(a.lse_at(0, 0, 0), std::log(std::exp(0.01 * (100 - 2499)) + std::exp(0.01 * (2000 - 2499))), 1e-4);
}

TEST_P(Gather, EveryTokenHasItsOwnListAndLength) {
  Attention a(GetParam(), {.sq = 3, .sk = 50});
  a.zero_queries();
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  const std::vector<int32_t> indices = {0, 1, 2, 3, /**/ 4, 5, -1, 6, /**/ -1, -1, -1, -1};
  const std::vector<int32_t> lens = {4, 2, 4};
  tessera_kv_segment& s = a.params.segments[0];
  s.indices = indices.data();
  s.indices_stride = 4;
  s.topk = 4;
  s.topk_lens = lens.data();
  a.run();
  EXPECT_EQ(a.visible_keys(0, 0, 0), 4);
  EXPECT_EQ(a.visible_keys(0, 1, 0), 2);
  EXPECT_EQ(a.visible_keys(0, 2, 0), 0);
}

TEST_P(Gather, UnlistedKeysMayHoldNan) {
  const std::vector<int32_t> indices = {7, 3, -1};
  Attention clean(GetParam(), {.sq = 1, .sk = 20}, 45);
  attach(clean, indices);
  clean.run();
  Attention dirty(GetParam(), {.sq = 1, .sk = 20}, 45);
  attach(dirty, indices);
  for (int64_t j = 0; j < 20; ++j) {
    if (j != 3 && j != 7) {
      dirty.k.set_row(0, j, 0, kNan);
      dirty.v.set_row(0, j, 0, kNan);
    }
  }
  dirty.run();
  EXPECT_EQ(dirty.all(), clean.all());
}

TEST_P(Gather, PagedPoolGivesTheSameBits) {
  const std::vector<int32_t> indices = random_indices(300, 6);
  Attention plain(GetParam(), kShape, 46, 5.0F);
  attach(plain, indices);
  plain.run();
  Attention paged(GetParam(), kShape, 46, 5.0F);
  attach(paged, indices);
  constexpr int64_t kPage = 64;
  const int64_t pages = (kKeys + kPage - 1) / kPage;
  Tensor k(GetParam().dtype, pages, kPage, 1, 16), v(GetParam().dtype, pages, kPage, 1, 16);
  std::vector<int32_t> table;
  for (int64_t page = 0; page < pages; ++page) {
    table.push_back(static_cast<int32_t>(pages - 1 - page));
  }
  for (int64_t j = 0; j < kKeys; ++j) {
    k.copy_token(pages - 1 - j / kPage, j % kPage, paged.k, 0, j);
    v.copy_token(pages - 1 - j / kPage, j % kPage, paged.v, 0, j);
  }
  tessera_kv_segment& s = paged.params.segments[0];
  s.k = k.view();
  s.v = v.view();
  s.page_table = table.data();
  s.page_table_stride = pages;
  s.page_size = kPage;
  s.num_pages = pages;
  paged.run();
  EXPECT_EQ(paged.all(), plain.all());
}

}  // namespace
}  // namespace tessera
