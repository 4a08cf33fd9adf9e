// How a tile is described in shared memory to the roles of a ragged kernel. Only the scheduler looks at the caller's
// arrays; everyone else reads its slots.
#pragma once

#include "kernels/sm90/fmha_prefill/common.cuh"
#include "kernels/sm90/fmha_prefill/ragged_tiles.h"

namespace tessera::sm90 {

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

}  // namespace tessera::sm90
