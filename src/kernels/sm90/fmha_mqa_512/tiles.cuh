// Query tiles: which rows they have, which keys those see, and the walk over the granules of all segments.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_mqa_512/config.h"
#include "kernels/sm90/fmha_prefill/ragged_tiles.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

// Keys [first, end) of `length` that a token at `position` sees (R2).
struct MqaSight {
  int first, end;
};
__device__ __forceinline__ MqaSight mqa_sight(const MqaSegment& s, int64_t position, int length) {
  int64_t first = 0;
  int64_t end = length;
  if (s.compressed) {
    const int64_t behind = min(max(position, int64_t{-1}) + 1, int64_t{0x7fffffff});  // length * ratio is less
    end = min(end, int64_t{divide(static_cast<int>(behind), s.compress_ratio)});
  } else {
    end = s.causal ? min(end, position + 1) : end;
    end = s.window_right >= 0 ? min(end, position + 1 + s.window_right) : end;
    first = s.window_left >= 0 ? max(first, position - s.window_left) : first;
  }
  return {static_cast<int>(min(first, int64_t{length})), static_cast<int>(max(end, int64_t{0}))};
}

// A tile's description at a shared address. Fields are read where they are used, so that they take no registers.
struct MqaTile {
  uint32_t address;

  template <class Layout>
  __device__ __forceinline__ static MqaTile at(uint32_t shared, uint32_t round) {
    return {shared + Layout::kTiles + Layout::kTileBytes * (round % Layout::kTileSlots)};
  }
  __device__ __forceinline__ int get(MqaTileWords::Field field) const { return load_shared(address + 4 * field); }
  __device__ __forceinline__ uint32_t segment_at(int segment) const {
    return address + 4 * (MqaTileWords::kHeader + MqaTileWords::kSegmentFields * segment);
  }
  __device__ __forceinline__ int get(int segment, MqaTileWords::SegmentField field) const {
    return load_shared(segment_at(segment) + 4 * field);
  }
};

// Where the state of a chunk goes that a tile ends with: behind the levels of MqaArguments.
inline constexpr int kMqaFinish = 3;

// A granule of the walk: ascending in a segment, segments in their order.
struct MqaPlace {
  int segment, granule;
  int end;  // of the segment's granules; 0: behind the last granule

  __device__ __forceinline__ bool valid() const { return end != 0; }
};

class MqaWalk {
 public:
  __device__ __forceinline__ MqaWalk(const MqaTile& tile, int count) : tile_(tile), count_(count) {}

  __device__ __forceinline__ MqaPlace first() const { return enter(0); }
  __device__ __forceinline__ MqaPlace next(const MqaPlace& place) const {
    if (!place.valid()) {
      return place;
    }
    if (place.granule + 1 < place.end) {
      return {place.segment, place.granule + 1, place.end};
    }
    return enter(place.segment + 1);
  }
  // Whether some row of the tile does not see all keys of the granule.
  __device__ __forceinline__ bool is_masked(const MqaSegment& segment, const MqaPlace& place) const {
    return (segment.page_table != nullptr && segment.sorted == nullptr) ||
           place.granule < tile_.get(place.segment, MqaTileWords::kOpenFirst) ||
           place.granule >= tile_.get(place.segment, MqaTileWords::kOpenEnd);
  }
  // Whether a chunk (R8) begins with the granule.
  __device__ __forceinline__ bool is_fresh(const MqaPlace& place) const {
    return place.granule % MqaTiling::kChunkGranules == 0 ||
           place.granule == uniform(tile_.get(place.segment, MqaTileWords::kFirst));
  }

 private:
  __device__ __forceinline__ MqaPlace enter(int segment) const {
#pragma unroll 1
    for (; segment < count_; ++segment) {
      const int first = uniform(tile_.get(segment, MqaTileWords::kFirst));
      const int end = uniform(tile_.get(segment, MqaTileWords::kEnd));
      if (first < end) {
        return {segment, first, end};
      }
    }
    return {segment, 0, 0};
  }

  MqaTile tile_;
  int count_;
};

// What a block takes at a time: a part of a tile's chunks.
struct MqaItem {
  static constexpr int kAllParts = -1;
  int tile, part;

  // Parts of the same keys follow each other, so that they are read once.
  __device__ __forceinline__ static MqaItem at(const MqaArguments& args, int index) {
    const int group = divide(index, args.unit_tiles);
    const int unit = divide(group, args.parts);
    const int tiles = static_cast<int>(args.unit_tiles.value);
    return {unit * tiles + index - group * tiles, group - unit * static_cast<int>(args.parts.value)};
  }
};

// Where the granules of a segment are cut: in front of the first chunk that has `granules` or more before it in its
// tile, `before` of which are those of earlier segments.
__device__ __forceinline__ int mqa_cut(int first, int end, int before, int granules) {
  constexpr int kChunk = MqaTiling::kChunkGranules;
  const int inside = granules - before;
  return inside <= 0 ? first : min(end, (first + inside + kChunk - 1) / kChunk * kChunk);
}

// Writes the description of an item. The lanes of one warp call this together: lane s has segment s.
__device__ __forceinline__ void describe_tile(const MqaArguments& args, const MqaTile& to, const MqaItem& item,
                                              int lane) {
  using Words = MqaTileWords;
  constexpr int kGranule = MqaTiling::kGranule;
  constexpr int kChunk = MqaTiling::kChunkGranules;
  const int unit = divide(item.tile, args.unit_tiles);
  const int first_row = (item.tile - unit * static_cast<int>(args.unit_tiles.value)) * MqaTiling::kRows;
  const int batch = divide(unit, args.units_per_batch);
  const int token = unit - batch * static_cast<int>(args.units_per_batch.value);
  const int heads = static_cast<int>(args.heads.value);
  const TokenRange tokens = token_range(args.cu_seqlens_q, args.seqlens_q, args.seqlen_q, batch);
  const int rows = (args.by_token ? (token < tokens.count ? 1 : 0) : tokens.count) * heads;
  const int first_token = token + divide(first_row, args.heads);
  const int last_token = token + divide(max(min(first_row + MqaTiling::kRows, rows) - 1, 0), args.heads);
  const MqaSegment& s = args.segments[min(lane, args.count - 1)];
  TokenRange keys{0, 0};
  int position0 = 0;
  MqaSight first{};
  MqaSight last{};
  if (s.sorted != nullptr) {
    keys.count = s.counts[unit];
    first = last = {0, keys.count};
  } else {
    keys = token_range(s.cu_seqlens_k, s.seqlens_k, s.seqlen_k, batch);
    position0 = s.q_positions != nullptr ? s.q_positions[batch] : keys.count - tokens.count;
    first = mqa_sight(s, int64_t{position0} + first_token, keys.count);
    last = mqa_sight(s, int64_t{position0} + last_token, keys.count);
  }
  const bool any = lane < args.count && first_row < rows && first.first < last.end;
  const int first_key = any ? first.first : 0;
  const int stop_key = any ? last.end : 0;
  const int first_granule = first_key / kGranule;
  const int end_granule = (stop_key + kGranule - 1) / kGranule;
  const int chunks = any ? (end_granule - 1) / kChunk - first_granule / kChunk + 1 : 0;
  // Granules and chunks of earlier segments, and of all.
  int granules_before = 0;
  int chunks_before = 0;
  int granules = 0;
#pragma unroll 1
  for (int i = 0; i < args.count; ++i) {
    const int more = __shfl_sync(kAllLanes, end_granule - first_granule, i);
    const int more_chunks = __shfl_sync(kAllLanes, chunks, i);
    granules += more;
    granules_before += i < lane ? more : 0;
    chunks_before += i < lane ? more_chunks : 0;
  }
  int from = first_granule;
  int stop = end_granule;
  bool whole = true;
  if (args.parts.value > 1) {
    const int share = divide(granules + static_cast<int>(args.parts.value) - 1, args.parts);
    whole = __all_sync(kAllLanes, mqa_cut(first_granule, end_granule, granules_before, share) == end_granule);
    if (item.part != MqaItem::kAllParts) {
      from = mqa_cut(first_granule, end_granule, granules_before, item.part * share);
      stop = mqa_cut(first_granule, end_granule, granules_before, (item.part + 1) * share);
    }
  }
  const uint32_t with_keys = __ballot_sync(kAllLanes, from < stop);
  const int state = __shfl_sync(kAllLanes, chunks_before + from / kChunk - first_granule / kChunk,
                                max(__ffs(static_cast<int>(with_keys)) - 1, 0));
  if (lane == 0) {
    const auto put = [&](Words::Field field, int value) { store_shared(to.address + 4 * field, value); };
    put(Words::kBatch, batch);
    put(Words::kToken, token);
    put(Words::kTensorToken, tokens.first + token);
    put(Words::kFirstRow, first_row);
    put(Words::kRows, rows);
    put(Words::kWork, with_keys != 0                    ? Words::kKeys
                      : granules == 0 && item.part <= 0 ? Words::kNothing
                                                        : Words::kOthers);
    put(Words::kAlone, first_token == last_token ? 1 : 0);
    put(Words::kState, whole ? -1 : item.tile * args.tile_chunks + state);
  }
  if (lane >= args.count) {
    return;
  }
  const uint32_t at = to.segment_at(lane);
  const auto put = [&](Words::SegmentField field, int value) { store_shared(at + 4 * field, value); };
  put(Words::kFirst, from);
  put(Words::kEnd, stop);
  put(Words::kOpenFirst, (last.first + kGranule - 1) / kGranule);
  put(Words::kOpenEnd, first.end / kGranule);
  put(Words::kFirstKey, first_key);
  put(Words::kStopKey, stop_key);
  put(Words::kLength, keys.count);
  put(Words::kPosition, position0);
  put(Words::kFirstToken, keys.first);
}

}  // namespace tessera::sm90
