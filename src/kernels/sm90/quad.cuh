// What the four lanes that share a row of an accumulator do together.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

// Lane q of four gets element q of each lane's four, ordered by lane.
__device__ __forceinline__ uint4 transpose_quad(uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
  const bool odd = (threadIdx.x & 1U) != 0;
  const bool high = (threadIdx.x & 2U) != 0;
  const auto swap = [](bool upper, uint32_t& low, uint32_t& other, int lanes) {
    const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? low : other, lanes);
    (upper ? low : other) = got;
  };
  swap(odd, v0, v1, 1);
  swap(odd, v2, v3, 1);
  swap(high, v0, v2, 2);
  swap(high, v1, v3, 2);
  return make_uint4(v0, v1, v2, v3);
}

}  // namespace tessera::sm90
