// What the roles of a ragged kernel share: how a tile is described in shared memory, and which keys its rows see. Only
// the scheduler looks at the caller's arrays; everyone else reads its slots.
#pragma once

#include "kernels/sm90/fmha_prefill/common.cuh"

namespace tessera::sm90 {

// R2 for the rows of one sequence, without custom bits: row i sees keys [begin(i), end(i)), if any. Both ends rise with
// i, and neighbouring rows leave no gap: every key between the first row's begin and the last row's end is seen.
struct RaggedSight {
  int begin_base, end_base;  // at row 0; beyond +-2^30 they are put there, which no length reaches
  int first_key, last_key;   // inside the length and the chunk range
  int position0;
  int compress_ratio;

  __device__ __forceinline__ int begin(int i) const { return max(begin_base + i, first_key); }
  __device__ __forceinline__ int end(int i) const {
    if (compress_ratio > 0) {
      // A position is the sum of two 32-bit numbers >= 0 here.
      const int64_t p = int64_t{position0} + i;
      const uint32_t keys = static_cast<uint32_t>(p + 1) / static_cast<uint32_t>(compress_ratio);
      return p < 0 ? 0 : static_cast<int>(min(keys, static_cast<uint32_t>(last_key)));
    }
    return min(end_base + i, last_key);
  }
};

// Granules [first, end) that rows look at. Those in [open_first, open_end) are seen whole by all of them.
struct RaggedWalk {
  int first, end;
  int open_first, open_end;
};

// A tile's description at a shared address. Fields are read where they are used, so that they take no registers.
struct RaggedSlot {
  uint32_t address;

  // In vectors of four: of the tile's place, of what its rows see, of its keys.
  enum Field {
    kBatch,  // -1: no further tile
    kHead,
    kFirstRow,  // of the sequence; negative where the tile begins before it
    kTokens,    // of the sequence
    kFirstToken,
    kPosition0,
    kFirstKey,  // keys that any row of the tile sees
    kLastKey,
    kFirstGranule,
    kEndGranule,
    kKeyOrigin,  // of the sequence in packed K and V
    kKeys,       // of the sequence
    kBeginBase,
    kEndBase,
    kSightLastKey,
    kUnclean,  // V may hold rows that no query sees and that the copy engine does not cut off
    kFields
  };
  static constexpr int kWalks = 64;  // one int4 per consumer

  __device__ __forceinline__ int get(Field field) const { return load_shared(address + 4 * field); }
  __device__ __forceinline__ int4 vector(Field field) const { return load_shared_int4(address + 4 * field); }
  __device__ __forceinline__ RaggedWalk walk(int consumer) const {
    const int4 w = load_shared_int4(address + kWalks + 16 * consumer);
    return {w.x, w.y, w.z, w.w};
  }
  __device__ __forceinline__ RaggedSight sight(const RaggedArguments& r) const {
    const int4 s = vector(kBeginBase);
    return {s.x, s.y, r.first_key, s.z, get(kPosition0), r.compress_ratio};
  }
};
static_assert(RaggedSlot::kFields * 4 == RaggedSlot::kWalks && RaggedSlot::kWalks + 16 * 4 == kRaggedSlotBytes);

// Coordinates of make_clipped_map() for the box of `box` rows from row `row` on of which only rows [lead, stop) count,
// counted in the box. Of a lead and a stop that are both inside the box only the stop is kept; stop <= 0: zeros.
struct ClippedBox {
  int row, sum;
};
__device__ __forceinline__ ClippedBox clip_box(int row, int lead, int stop, int box) {
  if (lead > 0 && stop >= box) {
    return {-lead, row + box + lead};
  }
  const int rows = max(0, min(stop, box));
  return {box - rows, row + rows};
}

}  // namespace tessera::sm90
