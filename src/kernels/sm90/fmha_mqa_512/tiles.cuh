// Query tiles: which rows they have, which keys those see, and the walk over the granules of all segments.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_mqa_512/config.h"
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

// Writes the description of a tile. The lanes of one warp call this together: lane s has segment s.
__device__ __forceinline__ void describe_tile(const MqaArguments& args, const MqaTile& to, int index, int lane) {
  using Words = MqaTileWords;
  const int unit = divide(index, args.unit_tiles);
  const int first_row = (index - unit * static_cast<int>(args.unit_tiles.value)) * MqaTiling::kRows;
  const int batch = divide(unit, args.units_per_batch);
  const int token = unit - batch * static_cast<int>(args.units_per_batch.value);
  const int heads = static_cast<int>(args.heads.value);
  int tokens = args.seqlen_q;
  if (args.seqlens_q != nullptr) {
    tokens = min(max(args.seqlens_q[batch], 0), args.seqlen_q);
  }
  const int rows = (args.by_token ? (token < tokens ? 1 : 0) : tokens) * heads;
  const int first_token = token + divide(first_row, args.heads);
  const int last_token = token + divide(max(min(first_row + MqaTiling::kRows, rows) - 1, 0), args.heads);
  if (lane == 0) {
    store_shared(to.address + 4 * Words::kBatch, batch);
    store_shared(to.address + 4 * Words::kToken, token);
    store_shared(to.address + 4 * Words::kFirstRow, first_row);
    store_shared(to.address + 4 * Words::kRows, rows);
    store_shared(to.address + 4 * Words::kAlone, first_token == last_token ? 1 : 0);
  }
  const MqaSegment& s = args.segments[min(lane, args.count - 1)];
  int length = s.seqlen_k;
  int position0 = 0;
  MqaSight first{};
  MqaSight last{};
  if (s.sorted != nullptr) {
    length = s.counts[unit];
    first = last = {0, length};
  } else {
    if (s.seqlens_k != nullptr) {
      length = min(max(s.seqlens_k[batch], 0), s.seqlen_k);
    }
    position0 = s.q_positions != nullptr ? s.q_positions[batch] : length - tokens;
    first = mqa_sight(s, int64_t{position0} + first_token, length);
    last = mqa_sight(s, int64_t{position0} + last_token, length);
  }
  constexpr int kGranule = MqaTiling::kGranule;
  const bool any = lane < args.count && first_row < rows && first.first < last.end;
  const bool any_segment = __any_sync(kAllLanes, any);
  if (lane == 0) {
    store_shared(to.address + 4 * Words::kAny, any_segment ? 1 : 0);
  }
  if (lane >= args.count) {
    return;
  }
  const int first_key = any ? first.first : 0;
  const int stop_key = any ? last.end : 0;
  const uint32_t at = to.segment_at(lane);
  const auto put = [&](Words::SegmentField field, int value) { store_shared(at + 4 * field, value); };
  put(Words::kFirst, first_key / kGranule);
  put(Words::kEnd, (stop_key + kGranule - 1) / kGranule);
  put(Words::kOpenFirst, (last.first + kGranule - 1) / kGranule);
  put(Words::kOpenEnd, first.end / kGranule);
  put(Words::kFirstKey, first_key);
  put(Words::kStopKey, stop_key);
  put(Words::kLength, length);
  put(Words::kPosition, position0);
}

}  // namespace tessera::sm90
