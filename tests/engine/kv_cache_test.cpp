#include "engine/kv_cache.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

ModelConfig small_config() {
  ModelConfig c;
  c.n_layers = 3;
  c.num_heads_kv = 2;
  c.head_dim = 4;
  return c;
}

KvCache make_cache(int64_t page_size, int64_t tokens) {
  Result<KvCache> cache = KvCache::create(small_config(), TESSERA_F32, page_size, tokens);
  EXPECT_TRUE(cache.ok()) << cache.status().text();
  return std::move(cache).value();
}

float& k_element(const KvCache& cache, int64_t layer, SequenceId id, int64_t token, int64_t i) {
  return reinterpret_cast<float*>(cache.k_row(layer, id, token, i / 4))[i % 4];
}

float& v_element(const KvCache& cache, int64_t layer, SequenceId id, int64_t token, int64_t i) {
  return reinterpret_cast<float*>(cache.v_row(layer, id, token, i / 4))[i % 4];
}

// A value that names its place.
float mark(int64_t layer, int64_t side, int64_t token, int64_t i) {
  return static_cast<float>(((layer * 2 + side) * 100 + token) * 8 + i);
}

void fill(KvCache* cache, SequenceId id, int64_t length) {
  ASSERT_TRUE(cache->reserve(id, length).ok());
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < 8; ++i) {
        k_element(*cache, layer, id, t, i) = mark(layer, 0, t, i);
        v_element(*cache, layer, id, t, i) = mark(layer, 1, t, i);
      }
    }
  }
  cache->set_length(id, length);
}

void expect_filled(const KvCache& cache, SequenceId id, int64_t length) {
  ASSERT_EQ(cache.length(id), length);
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < 8; ++i) {
        ASSERT_EQ(k_element(cache, layer, id, t, i), mark(layer, 0, t, i));
        ASSERT_EQ(v_element(cache, layer, id, t, i), mark(layer, 1, t, i));
      }
    }
  }
}

TEST(KvCache, RowsOfTwoSequencesDoNotOverlap) {
  KvCache cache = make_cache(3, 30);
  const SequenceId a = cache.add();
  const SequenceId b = cache.add();
  fill(&cache, a, 7);
  fill(&cache, b, 11);
  expect_filled(cache, a, 7);
  expect_filled(cache, b, 11);
}

TEST(KvCache, RefusesMoreTokensThanPagesAndTakesNone) {
  KvCache cache = make_cache(4, 16);
  const SequenceId a = cache.add();
  const Status status = cache.reserve(a, 17);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(cache.free_pages(), 4);
  EXPECT_TRUE(cache.reserve(a, 16).ok());
  EXPECT_EQ(cache.free_pages(), 0);
}

TEST(KvCache, ShorteningGivesPagesBack) {
  KvCache cache = make_cache(4, 16);
  const SequenceId a = cache.add();
  fill(&cache, a, 13);
  cache.set_length(a, 5);
  EXPECT_EQ(cache.free_pages(), 2);
  expect_filled(cache, a, 5);
}

TEST(KvCache, ARestoredSequenceIsTheSameInOtherPages) {
  KvCache cache = make_cache(2, 20);
  const SequenceId a = cache.add();
  fill(&cache, a, 7);
  const SavedSequence saved = cache.save(a);
  const std::vector<int32_t> before(cache.pages(a).begin(), cache.pages(a).end());
  cache.remove(a);
  const SequenceId b = cache.add();
  ASSERT_TRUE(cache.reserve(b, 3).ok());
  cache.set_length(b, 3);
  const SequenceId c = cache.add();
  ASSERT_TRUE(cache.restore(c, saved).ok());
  expect_filled(cache, c, 7);
  EXPECT_NE(std::vector<int32_t>(cache.pages(c).begin(), cache.pages(c).end()), before);
}

TEST(KvCache, IdsAreReusedAfterRemoval) {
  KvCache cache = make_cache(1, 8);
  const SequenceId a = cache.add();
  cache.remove(a);
  EXPECT_FALSE(cache.contains(a));
  EXPECT_EQ(cache.add(), a);
  EXPECT_FALSE(cache.contains(-1));
  EXPECT_FALSE(cache.contains(99));
}

TEST(KvCache, RefusesImpossibleSizes) {
  EXPECT_FALSE(KvCache::create(small_config(), TESSERA_F32, 0, 16).ok());
  EXPECT_FALSE(KvCache::create(small_config(), TESSERA_F32, 16, 0).ok());
  ModelConfig huge = small_config();
  huge.n_layers = 512;
  huge.num_heads_kv = 4096;
  huge.head_dim = 576;
  EXPECT_FALSE(KvCache::create(huge, TESSERA_F32, 1 << 20, int64_t{1} << 30).ok());
}

}  // namespace
}  // namespace tessera
