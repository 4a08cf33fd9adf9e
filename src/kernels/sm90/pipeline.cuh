// A ring of shared-memory stages between one producer (the copy engine) and the consumer warpgroups.
//
// Use u of the ring is stage u mod kStages; its parity is (u / kStages) mod 2. The producer waits until the consumers
// have emptied the stage kStages uses ago, the consumers until the copy engine has filled it.
#pragma once

#include <cstdint>

#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

// Position in a ring; every role keeps its own and advances it once per use. One number, so that it takes one register.
template <int kStages>
struct RingPosition {
  static_assert((kStages & (kStages - 1)) == 0, "stages: allowed powers of two, which uses can wrap around");
  uint32_t use = 0;

  __device__ __forceinline__ uint32_t stage() const { return use % kStages; }
  __device__ __forceinline__ uint32_t parity() const { return use / kStages % 2; }
  __device__ __forceinline__ RingPosition next() const { return {use + 1}; }
  __device__ __forceinline__ void advance() { ++use; }
};

// Shared addresses of the barriers of a ring: `full` counts the producer's one arrival and the bytes, `empty` one
// arrival per consumer warpgroup. Both are 8 bytes a stage.
struct Ring {
  uint32_t full;
  uint32_t empty;

  __device__ __forceinline__ void init(int stages, uint32_t consumers) const {
    for (int s = 0; s < stages; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, consumers);
    }
  }
  // Producer: the stage is free (the first pass through the ring never waits), and now expects `bytes`.
  template <int kStages>
  __device__ __forceinline__ uint32_t begin_fill(const RingPosition<kStages>& at, uint32_t bytes) const {
    barrier_wait(empty + 8 * at.stage(), at.parity() ^ 1U);
    barrier_arrive_expect(full + 8 * at.stage(), bytes);
    return full + 8 * at.stage();
  }
  // Consumer: the copy engine has filled the stage.
  template <int kStages>
  __device__ __forceinline__ void wait_full(const RingPosition<kStages>& at) const {
    barrier_wait(full + 8 * at.stage(), at.parity());
  }
  // Consumer, one thread per warpgroup: this warpgroup no longer reads the stage.
  template <int kStages>
  __device__ __forceinline__ void release(const RingPosition<kStages>& at) const {
    barrier_arrive(empty + 8 * at.stage());
  }
};

}  // namespace tessera::sm90
