// The geometry of ragged tiles against the visibility rule (R2) written down plainly: every row of every sequence in
// one tile, every visible key fetched from its place by the consumer that needs it, nothing read outside of what is
// there.
#include "kernels/sm90/fmha_prefill/ragged_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace tessera::sm90 {
namespace {

struct Problem {
  int tokens, keys, position0, heads, group;
  int left, right, ratio;  // -1, -1, 0: off
  int first_key, last_key;
  int block_m, granule, box;
};

bool visible(const Problem& p, int row, int key) {
  const int64_t at = int64_t{p.position0} + row;
  if (key >= p.keys || key < p.first_key || key >= p.last_key) return false;
  if (p.ratio > 0) return at >= 0 && key < (at + 1) / p.ratio;
  return (p.left < 0 || key >= at - p.left) && (p.right < 0 || key <= at + p.right);
}

Problem draw(std::mt19937& random) {
  const auto in = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Problem p{};
  p.tokens = in(0, 3) == 0 ? in(1, 3) : in(1, 450);
  p.keys = in(0, 4) == 0 ? 0 : in(1, 900);
  p.position0 = in(0, 2) == 0 ? in(-300, 1000) : p.keys - p.tokens;
  p.group = in(1, 3);
  p.heads = p.group * in(1, 20);
  p.left = in(0, 1) == 0 ? -1 : in(0, 300);
  p.right = in(0, 1) == 0 ? -1 : in(0, 1) == 0 ? 0 : in(0, 200);
  p.ratio = in(0, 3) == 0 ? in(1, 5) : 0;
  p.first_key = in(0, 4) == 0 ? 128 * in(0, 4) : 0;
  p.last_key = in(0, 4) == 0 ? p.first_key + 256 : 1 << 30;
  p.block_m = in(0, 1) == 0 ? 192 : 128;
  p.granule = in(0, 1) == 0 ? 128 : 64;
  p.box = p.granule >> in(0, 3);
  return p;
}

RaggedArguments arguments(const Problem& p) {
  constexpr int64_t kFar = int64_t{1} << 40;
  RaggedArguments r{};
  r.left = p.left < 0 || p.ratio > 0 ? kFar : p.left;
  r.right_end = (p.right < 0 || p.ratio > 0 ? kFar : p.right) + 1;
  r.compress_ratio = p.ratio;
  r.first_key = p.first_key;
  r.last_key = p.last_key;
  r.section_keys = 2000;
  r.section_heads = 4;
  return r;
}

// The token that the copy engine puts into row i of the box, or -1 for zeros.
int token_of(const ClippedBox& at, int i, int box) {
  const int x = at.row + i;
  return x < 0 || x >= box ? -1 : at.sum + x - (at.begin ? 0 : box);
}

class RaggedTiles : public testing::TestWithParam<int> {};

TEST_P(RaggedTiles, CoverEveryRowOnceAndEveryKeyItSees) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  for (int n = 0; n < 60; ++n) {
    const Problem p = draw(random);
    const RaggedArguments r = arguments(p);
    const RaggedSight sight = sight_of(r, p.position0, p.keys);
    const int tiles = (p.tokens + p.block_m - 1) / p.block_m;
    std::vector<int> seen(static_cast<size_t>(p.heads * p.tokens));
    for (int within = 0; within < tiles * p.heads; ++within) {
      const RaggedTile tile = ragged_tile(r, sight, within, p.tokens, p.keys, p.heads, p.group, p.block_m, p.granule);
      ASSERT_TRUE(tile.head >= 0 && tile.head < p.heads);
      for (int row = std::max(tile.first_row, 0); row < std::min(tile.first_row + p.block_m, p.tokens); ++row) {
        ++seen[static_cast<size_t>(tile.head) * static_cast<size_t>(p.tokens) + static_cast<size_t>(row)];
      }
      if (tile.head > 0) continue;  // keys are the same for all heads
      for (int consumer = 0; consumer < p.block_m / kWarpgroupRows; ++consumer) {
        const RaggedWalk walk = ragged_walk(tile, sight, consumer, p.tokens, p.granule);
        ASSERT_TRUE(walk.first >= tile.first_granule && walk.end <= tile.end_granule && walk.first <= walk.end);
        const int first_row = tile.first_row + consumer * kWarpgroupRows;
        for (int row = std::max(first_row, 0); row < std::min(first_row + kWarpgroupRows, p.tokens); ++row) {
          ASSERT_GE(first_row, 0) << "consumers have whole rows";
          for (int key = 0; key < p.keys; ++key) {
            const int j = key / p.granule;
            const bool sees = visible(p, row, key);
            ASSERT_EQ(sees, key >= sight.begin(row) && key < sight.end(row)) << "row " << row << " key " << key;
            ASSERT_TRUE(!sees || (j >= walk.first && j < walk.end)) << "row " << row << " key " << key;
          }
        }
        for (int j = std::max(walk.first, walk.open_first); j < std::min(walk.end, walk.open_end); ++j) {
          for (int row = first_row; row < std::min(first_row + kWarpgroupRows, p.tokens); ++row) {
            ASSERT_TRUE(visible(p, row, j * p.granule) && visible(p, row, (j + 1) * p.granule - 1)) << "open granule";
          }
        }
      }
      for (int j = tile.first_granule; j < tile.end_granule; ++j) {
        for (int key0 = j * p.granule; key0 < (j + 1) * p.granule; key0 += p.box) {
          const int origin = 1000 + key0;  // where the box's first key lies in its tensor or page
          const ClippedBox at = clip_box(origin, tile.begin - key0, tile.end - key0, p.box);
          ASSERT_TRUE(at.begin || (at.row >= 0 && at.row < p.box)) << "Clip::kEnd boxes begin in bounds";
          for (int i = 0; i < p.box; ++i) {
            const bool wanted = key0 + i >= tile.begin && key0 + i < tile.end;
            const int token = token_of(at, i, p.box);
            ASSERT_TRUE(!wanted || token == origin + i) << "key " << key0 + i;
            ASSERT_TRUE(wanted || token == -1 ||
                        (tile.both_ends_in_one && key0 + i < tile.begin && token == origin + i))
                << "key " << key0 + i << " of [" << tile.begin << ", " << tile.end << ")";
          }
        }
      }
    }
    ASSERT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RaggedTiles, testing::Range(1, 6));

TEST(RaggedTiles, LengthsOutsideTheirBoundsAreClamped) {
  const int32_t cumulative[] = {5, 9, 7, -3, 400};
  const int32_t used[] = {3, 100, -7, 2};
  EXPECT_EQ(token_range(cumulative, nullptr, 10, 0).count, 4);
  EXPECT_EQ(token_range(cumulative, nullptr, 10, 1).count, 0);
  EXPECT_EQ(token_range(cumulative, nullptr, 10, 3).count, 0);
  EXPECT_EQ(token_range(cumulative, nullptr, 10, 3).first, 0);
  EXPECT_EQ(token_range(cumulative, used, 10, 0).count, 3);
  EXPECT_EQ(token_range(nullptr, used, 10, 1).count, 10);
  EXPECT_EQ(token_range(nullptr, used, 10, 2).count, 0);
}

TEST(RaggedTiles, PositionsFarAwaySeeNothingOrEverything) {
  Problem p{};
  p.keys = 100;
  p.left = 10;
  p.right = 0;
  p.last_key = 1 << 30;
  for (const int position0 : {std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    const RaggedSight sight = sight_of(arguments(p), position0, p.keys);
    for (const int row : {0, 1, (1 << 30) - 1}) EXPECT_LE(sight.end(row), sight.begin(row)) << position0;
  }
  p.left = -1;
  EXPECT_EQ(sight_of(arguments(p), std::numeric_limits<int>::max(), p.keys).end(5), 100);
}

}  // namespace
}  // namespace tessera::sm90
