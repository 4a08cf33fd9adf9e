// The 16 bytes of a thread's two rows and two classes (R7), in shared memory where registers have no room for them.
#pragma once

#include <cstdint>

#include "kernels/sm90/shared_memory.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

__device__ __forceinline__ void load_sums(uint32_t from, float (&sums)[kRowsPerThread][kClassesPerThread]) {
  const uint4 x = load_piece(from);
  sums[0][0] = __uint_as_float(x.x);
  sums[0][1] = __uint_as_float(x.y);
  sums[1][0] = __uint_as_float(x.z);
  sums[1][1] = __uint_as_float(x.w);
}
__device__ __forceinline__ void keep_sums(uint32_t to, const float (&sums)[kRowsPerThread][kClassesPerThread]) {
  store_piece(to, make_uint4(__float_as_uint(sums[0][0]), __float_as_uint(sums[0][1]), __float_as_uint(sums[1][0]),
                             __float_as_uint(sums[1][1])));
}

}  // namespace tessera::sm90
