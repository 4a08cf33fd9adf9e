// What happens to the accumulator fragment of one warp, column by column: x[n][2h + e] is row r + 8 h (r = lane / 4)
// and element 8 n + 2 (lane % 4) + e of the row.
#pragma once

#include <cstdint>

#include "kernels/sm80/fmha/softmax.cuh"
#include "kernels/sm80/fmha/visibility.cuh"

namespace tessera::sm80 {

// R2 by interval: scores outside become -Inf, whatever they were. `key0` is the key of s[0][0].
template <int kColumns>
__device__ __forceinline__ void mask_interval(float (&s)[kColumns][4], const KeyInterval (&visible)[kRowsPerThread],
                                              int key0) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = key0 + 8 * n + i % 2;
      const KeyInterval& v = visible[i / 2];
      s[n][i] = key >= v.begin && key < v.end ? s[n][i] : minus_infinity();
    }
  }
}

// Keys of pages that the pool does not have are absent. `present` is the byte of the key of s[0][0].
template <int kColumns>
__device__ __forceinline__ void mask_absent(float (&s)[kColumns][4], const uint8_t* present) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool there = present[8 * n + e] != 0;
#pragma unroll
      for (int h = 0; h < kRowsPerThread; ++h) {
        s[n][2 * h + e] = there ? s[n][2 * h + e] : minus_infinity();
      }
    }
  }
}

// Column n becomes column n - kBy, the first kBy the last: a rolled loop that works on x[0] meets every column, and
// registers cannot be indexed.
template <int kBy, int kColumns>
__device__ __forceinline__ void rotate(float (&x)[kColumns][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float first[kBy];
#pragma unroll
    for (int n = 0; n < kBy; ++n) {
      first[n] = x[n][i];
    }
#pragma unroll
    for (int n = 0; n + kBy < kColumns; ++n) {
      x[n][i] = x[n + kBy][i];
    }
#pragma unroll
    for (int n = 0; n < kBy; ++n) {
      x[kColumns - kBy + n][i] = first[n];
    }
  }
}

}  // namespace tessera::sm80
