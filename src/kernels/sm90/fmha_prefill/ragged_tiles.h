// The geometry of ragged tiles: which rows a tile has, which keys its rows see, and which box of K, V, Q or O the copy
// engine moves. Plain arithmetic, so that a test without a GPU can go through it (tests/sm90/ragged_tiles_test.cpp).
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/sm90/fmha_prefill/config.h"

namespace tessera::sm90 {

TESSERA_HD int least(int a, int b) {
  return a < b ? a : b;
}
TESSERA_HD int most(int a, int b) {
  return a < b ? b : a;
}

// Up to so many sequences with lengths of their own every block adds up their tiles for itself, a lane each; beyond, a
// step before the launch does (ragged_prepare.h).
inline constexpr int kFewSequences = 32;

// Tokens of a sequence: the first one's index in its tensor and how many there are.
struct TokenRange {
  int first;
  int count;
};
// Device arrays may hold anything: a length outside its bound is clamped, as the sm80 kernels do.
TESSERA_HD TokenRange token_range(const int32_t* cumulative, const int32_t* used, int bound, int b) {
  TokenRange range{0, bound};
  if (cumulative != nullptr) {
    range.first = cumulative[b];
    const int end = cumulative[b + 1];
    range.count = range.first < 0 || end <= range.first ? 0 : least(end - range.first, bound);
    range.first = most(range.first, 0);
  }
  if (used != nullptr) {
    range.count = most(0, least(used[b], range.count));
  }
  return range;
}

// R2 for the rows of one sequence, without custom bits: row i sees keys [begin(i), end(i)), if any. Both ends rise with
// i, and neighbouring rows leave no gap: every key between the first row's begin and the last row's end is seen.
struct RaggedSight {
  int begin_base, end_base;  // at row 0; beyond +-2^30 they are put there, which no length reaches
  int first_key, last_key;   // inside the length and the chunk range
  int position0;
  int compress_ratio;

  TESSERA_HD int begin(int i) const { return most(begin_base + i, first_key); }
  TESSERA_HD int end(int i) const {
    if (compress_ratio > 0) {
      // A position is the sum of two 32-bit numbers >= 0 here.
      const int64_t p = int64_t{position0} + i;
      const uint32_t keys = static_cast<uint32_t>(p + 1) / static_cast<uint32_t>(compress_ratio);
      return p < 0 ? 0
                   : static_cast<int>(keys < static_cast<uint32_t>(last_key) ? keys : static_cast<uint32_t>(last_key));
    }
    return least(end_base + i, last_key);
  }
};
// For a sequence of `keys` keys whose row 0 stands at `position0`.
TESSERA_HD RaggedSight sight_of(const RaggedArguments& r, int position0, int keys) {
  constexpr int64_t kFar = int64_t{1} << 30;
  const auto near = [](int64_t x) { return static_cast<int>(x < -kFar ? -kFar : x > kFar ? kFar : x); };
  return {near(position0 - r.left), near(position0 + r.right_end), r.first_key, least(keys, r.last_key), position0,
          r.compress_ratio};
}

// Granules [first, end) that rows look at. Those in [open_first, open_end) are seen whole by all of them.
struct RaggedWalk {
  int first, end;
  int open_first, open_end;
};

// Rows [first_row, first_row + block_m) of a sequence and head, as far as there are such rows.
struct RaggedTile {
  int head;
  int first_row;   // negative where the tile begins before the sequence
  int begin, end;  // keys that any of the rows sees
  int first_granule, end_granule;
  bool both_ends_in_one;  // granule, so that the copy engine may not cut off the keys before `begin`
};

// Tile `within` of a sequence of `tokens` rows, for all heads: the last rows come first, for as many heads at a time as
// fit the L2 cache. The sequence has a row.
TESSERA_HD RaggedTile ragged_tile(const RaggedArguments& r, const RaggedSight& sight, int within, int tokens, int keys,
                                  int heads_q, int group, int block_m, int granule_keys) {
  const int tiles = (tokens + block_m - 1) / block_m;
  const int64_t fitting = r.section_keys / most(keys, 1);
  const int64_t wanted = (fitting < r.section_heads ? r.section_heads : fitting) * group;
  const int section_heads = wanted < heads_q ? static_cast<int>(wanted) : heads_q;
  const int section = within / (section_heads * tiles);
  const int rest = within - section * section_heads * tiles;
  const int width = least(section_heads, heads_q - section * section_heads);
  const int last_row = (tokens + kWarpgroupRows - 1) / kWarpgroupRows * kWarpgroupRows;
  RaggedTile tile;
  tile.head = section * section_heads + rest % width;
  tile.first_row = last_row - (rest / width + 1) * block_m;
  tile.begin = sight.begin(most(tile.first_row, 0));
  tile.end = sight.end(least(tile.first_row + block_m, tokens) - 1);
  const bool any = tile.begin < tile.end;
  tile.first_granule = any ? tile.begin / granule_keys : 0;
  tile.end_granule = any ? (tile.end - 1) / granule_keys + 1 : 0;
  tile.both_ends_in_one = tile.first_granule + 1 == tile.end_granule && tile.begin % granule_keys != 0;
  return tile;
}

// What consumer `consumer` looks at of it: nothing, as an empty range at the tile's first granule, if it has no rows or
// they see no key.
TESSERA_HD RaggedWalk ragged_walk(const RaggedTile& tile, const RaggedSight& sight, int consumer, int tokens,
                                  int granule_keys) {
  const int first = tile.first_row + consumer * kWarpgroupRows;
  const int last = least(first + kWarpgroupRows, tokens) - 1;
  const int begin = sight.begin(first);
  const int end = sight.end(last);
  if (first < 0 || begin >= end) {
    return {tile.first_granule, tile.first_granule, 0, 0};
  }
  return {begin / granule_keys, (end - 1) / granule_keys + 1, (sight.begin(last) + granule_keys - 1) / granule_keys,
          most(0, sight.end(first)) / granule_keys};
}

// Coordinates in the maps of make_clipped_map() for the box of `box` rows from row `row` on of which only rows
// [lead, stop) count, counted in the box. Of a lead and a stop that are both inside the box only the stop is kept.
struct ClippedBox {
  int row, sum;
  bool begin;  // in the map Clip::kBegin
};
TESSERA_HD ClippedBox clip_box(int row, int lead, int stop, int box) {
  if (lead >= box || stop <= 0) {
    return {box, 0, true};  // zeros
  }
  if (lead > 0 && stop >= box) {
    return {-lead, row + lead, true};
  }
  const int rows = least(stop, box);
  return {box - rows, row + rows, false};
}

}  // namespace tessera::sm90
