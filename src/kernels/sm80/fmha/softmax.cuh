// Rules R3, R4, R7 and R8 for the fragment of one warp: a thread holds two rows (h = 0, 1: rows r and r + 8 of the
// warp, r = lane / 4) and of each row the keys of classes 2q and 2q + 1 (key mod 8, q = lane mod 4). Element
// s[n][2h + e] is key 8n + 2q + e of the granule. The four threads of a row agree on everything but s and l.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "contract/ceil_product.h"
#include "contract/exp2.h"
#include "contract/plan.h"
#include "kernels/sm80/fmha/config.h"
#include "kernels/sm80/fmha/ptx.cuh"

namespace tessera::sm80 {

inline constexpr uint32_t kAllLanes = 0xffffffffU;
inline constexpr int kClassesPerThread = 2;

__device__ __forceinline__ float minus_infinity() {
  return __uint_as_float(0xff800000U);
}

// A thread's two rows over one chunk (R3, R7). m = -Inf is "none".
struct ChunkRows {
  float m[kRowsPerThread];
  float l[kRowsPerThread][kClassesPerThread];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      m[h] = minus_infinity();
      l[h][0] = l[h][1] = 0.0F;
    }
  }
};

// (m, l) of R8 for a thread's two rows. m = -Inf: empty, and then l = +0.
struct StateRows {
  float m[kRowsPerThread];
  float l[kRowsPerThread];
};

// u of R3: the cheap form while the product is below 2^22 (contract/ceil_product.h); -Inf and the rest the long way.
__device__ __forceinline__ float integer_above(float mu, float c) {
  const float u = __fadd_rn(__fmaf_ru(mu, c, kRoundMagic), -kRoundMagic);
  return fabsf(u) < 0x1p22F ? u : ceil_product(mu, c);
}

// Scores of one granule, -Inf where masked, become p (R4, unrounded); `rows` moves on by R3 and R7. `a` receives the a
// of R3 for each row. Returns whether any row of the warp has a new maximum; if none has, every a is 1 or belongs to a
// row without keys.
template <int kColumns>
__device__ __forceinline__ bool softmax_granule(float (&s)[kColumns][4], ChunkRows& rows, float (&a)[kRowsPerThread],
                                                float c, float bias) {
  bool any_moves = false;
  float offset[kRowsPerThread];  // RN(b - m')
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    float even = s[0][2 * h];
    float odd = s[0][2 * h + 1];
#pragma unroll
    for (int n = 1; n < kColumns; ++n) {
      even = fmaxf(even, s[n][2 * h]);
      odd = fmaxf(odd, s[n][2 * h + 1]);
    }
    float mu = fmaxf(even, odd);
    mu = fmaxf(mu, __shfl_xor_sync(kAllLanes, mu, 1));
    mu = fmaxf(mu, __shfl_xor_sync(kAllLanes, mu, 2));

    const float u = integer_above(mu, c);
    const bool moves = u > __fadd_rn(rows.m[h], kLazyThreshold);  // true for the first key: m = -Inf
    const float m = moves ? u : rows.m[h];
    a[h] = drop_weight(__fsub_rn(m, rows.m[h]));  // 0 if there was none yet
    rows.m[h] = m;
    offset[h] = __fsub_rn(bias, m == minus_infinity() ? 0.0F : m);  // without any key y stays -Inf
    any_moves |= moves;
  }
  any_moves = __any_sync(kAllLanes, any_moves);
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    float g[kClassesPerThread];
#pragma unroll
    for (int block = 0; block < kColumns / 2; ++block) {
#pragma unroll
      for (int e = 0; e < kClassesPerThread; ++e) {
        float& low = s[2 * block][2 * h + e];
        float& high = s[2 * block + 1][2 * h + e];
        low = exp2_approx(__fmaf_rn(low, c, offset[h]));
        high = exp2_approx(__fmaf_rn(high, c, offset[h]));
        const float t = __fadd_rn(low, high);
        g[e] = block == 0 ? t : __fadd_rn(g[e], t);
      }
    }
#pragma unroll
    for (int e = 0; e < kClassesPerThread; ++e) {
      rows.l[h][e] = __fmaf_rn(rows.l[h][e], a[h], g[e]);
    }
  }
  return any_moves;
}

// R7 at a chunk's end: the state of its rows.
__device__ __forceinline__ StateRows close_rows(const ChunkRows& rows) {
  StateRows state;
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    float l = __fadd_rn(rows.l[h][0], rows.l[h][1]);
    l = __fadd_rn(l, __shfl_xor_sync(kAllLanes, l, 1));
    l = __fadd_rn(l, __shfl_xor_sync(kAllLanes, l, 2));
    state.m[h] = rows.m[h];
    state.l[h] = l;
  }
  return state;
}

// Weights of the two sides of one chain step (R8): 0 for an empty side, and then 1 for the other, which leaves its bits
// alone.
struct ChainWeights {
  float first[kRowsPerThread];
  float second[kRowsPerThread];
};

// The scalars of chain(first, second) go to `second`.
__device__ __forceinline__ ChainWeights chain_scalars(const StateRows& first, StateRows& second) {
  ChainWeights w;
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    const float m = fmaxf(first.m[h], second.m[h]);
    w.first[h] = drop_weight(__fsub_rn(m, first.m[h]));  // a NaN (both empty) gives 0
    w.second[h] = drop_weight(__fsub_rn(m, second.m[h]));
    second.l[h] = __fmaf_rn(first.l[h], w.first[h], __fmul_rn(second.l[h], w.second[h]));
    second.m[h] = m;
  }
  return w;
}

}  // namespace tessera::sm80
