// Counters in memory that may hold anything when a launch begins: they carry a tag while they count, and
// whoever counts last takes it away.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tessera::sm90 {

// A counter of finished chunks is a count with this above it; anything else is memory that no launch has used yet. As
// the upper word is a NaN with a payload, neither finite numbers nor what arithmetic makes of NaN look like it.
inline constexpr int kCountBits = 24;
inline constexpr unsigned long long kCounterTag = 0x7fd1e5a7b3ULL;

// Makes a counter of memory; one that counts already stays as it is. One thread calls.
__device__ __forceinline__ void claim_counter(unsigned long long* counter) {
  unsigned long long seen;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(counter) : "memory");
  while (seen >> kCountBits != kCounterTag) {
    const unsigned long long before = atomicCAS(counter, seen, kCounterTag << kCountBits);
    if (before == seen) {
      break;
    }
    seen = before;
  }
}

// The count in a counter's word.
__device__ __forceinline__ uint32_t count_of(unsigned long long word) {
  return static_cast<uint32_t>(word) & ((1U << kCountBits) - 1);
}

// Adds one, after everything the warp has written before its last __syncwarp() and before everything it reads behind
// the next one; the count before.
__device__ __forceinline__ uint32_t count_up(unsigned long long* counter) {
  unsigned long long before;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(counter) : "memory");
  return count_of(before);
}

}  // namespace tessera::sm90
