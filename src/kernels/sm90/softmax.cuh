// Rules R3, R4, R5, R7 and R8's scalars for the accumulator fragment of one warpgroup: a thread holds two rows (h = 0,
// 1) of S, which is one granule of 128 or 64 keys, and of each row the keys of classes 2q and 2q + 1 (key mod 8), q =
// lane mod 4.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/host_device.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace tessera::sm90 {

inline constexpr int kRowsPerThread = 2;
inline constexpr int kClassesPerThread = 2;

__device__ __forceinline__ float minus_infinity() {
  return __uint_as_float(0xff800000U);
}

// State of a thread's two rows over one chunk (R8 before the class sum). m = -Inf is "none".
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

// u of R3. In the usual range one fma rounded up to an integer; -Inf (no visible key) and large products go the long
// way.
__device__ __forceinline__ float ceil_of_product(float mu, float c) {
  const float u = __fadd_rn(__fmaf_ru(mu, c, kRoundMagic), -kRoundMagic);
  const float far = __fadd_rn(ceilf(__fmul_ru(mu, c)), 0.0F);
  return fabsf(u) < 0x1p22F ? u : far;
}

// drop_weight(-change) for an integer-valued change <= 0, NaN or -Inf: ex2.approx of an integer is exact
// (contract/ex2_sm90.h).
__device__ __forceinline__ float power_of_drop(float change) {
  return change >= -kLargestDrop ? exp2_approx(change) : 0.0F;
}

// R3 for one granule, masked scores given as -Inf: moves rows.m on. Returns whether any row of the warp changed its
// maximum, with the a of R3 per row in `rescale` (1 otherwise).
template <int kScores>
__device__ __forceinline__ bool move_maximum(const float (&s)[kScores], ChunkRows& rows,
                                             float (&rescale)[kRowsPerThread], float c, float lazy_threshold) {
  // Two chains of maxima per row hide the latency of each.
  constexpr int kChains = 2;
  float largest_of[kRowsPerThread][kChains];
#pragma unroll
  for (int n = 0; n < kScores / 4; ++n) {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const float pair = fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]);
      float& chain = largest_of[h][n % kChains];
      chain = n < kChains ? pair : fmaxf(chain, pair);
    }
  }
  float mu[kRowsPerThread];
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    mu[h] = fmaxf(largest_of[h][0], largest_of[h][1]);
  }
#pragma unroll
  for (int lanes = 1; lanes <= 2; lanes *= 2) {
#pragma unroll
    for (float& largest : mu) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
    }
  }
  bool higher = false;
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    const float u = ceil_of_product(mu[h], c);
    const bool moves = u > __fadd_rn(rows.m[h], lazy_threshold);
    const float m = moves ? u : rows.m[h];
    rescale[h] = power_of_drop(__fsub_rn(rows.m[h], m));
    rows.m[h] = m;
    higher |= moves;
  }
  return __any_sync(kAllLanes, higher);
}

// R5: two weights rounded to the element type, `low` in the low half.
template <Element kElement>
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
  uint32_t pair;
  if constexpr (kElement == Element::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// R7's sums over one granule, per row and class.
struct GranuleSums {
  float g[kRowsPerThread][kClassesPerThread];
};

// `value`, but not before `result`: `zero` is 0 at run time only.
__device__ __forceinline__ float after(float value, uint32_t result, uint32_t zero) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(result), "r"(zero), "r"(__float_as_uint(value)));
  return __uint_as_float(bits);
}

// R4 of one k16 block (a thread's 8 elements of S), S := p unrounded, and R7's sums of the granule so far.
__device__ __forceinline__ void weigh_block(float* s, bool first, const float (&offset)[kRowsPerThread], float c,
                                            GranuleSums& sums) {
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
#pragma unroll
    for (int e = 0; e < kClassesPerThread; ++e) {
      float& low = s[2 * h + e];
      float& high = s[4 + 2 * h + e];
      low = exp2_approx(__fmaf_rn(low, c, offset[h]));
      high = exp2_approx(__fmaf_rn(high, c, offset[h]));
      const float t = __fadd_rn(low, high);
      sums.g[h][e] = first ? t : __fadd_rn(sums.g[h][e], t);
    }
  }
}

// R5 of one k16 block: p -> the A operand of its step.
template <Element kElement>
__device__ __forceinline__ void round_block(const float* p, uint32_t (&a)[4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    a[r] = round_pair<kElement>(p[2 * r], p[2 * r + 1]);
  }
}

// The b - m' of R4. A row without any key so far keeps y = -Inf rather than NaN; kAnyKeys: there is no such row, or
// may_move() finds it.
template <bool kAnyKeys = false>
__device__ __forceinline__ void weight_offsets(const ChunkRows& rows, float bias, float (&offset)[kRowsPerThread]) {
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    offset[h] = __fsub_rn(bias, !kAnyKeys && rows.m[h] == minus_infinity() ? 0.0F : rows.m[h]);
  }
}

// R4 and R5 of one granule, a := P in place of S: block by block, each after the one two before it is done. Left to
// itself ptxas issues all exponentials first and nothing in their shadow. kAnyKeys: each row has had a key, or
// may_move() fails for it (|m| < 2^22 is part of the proof).
template <Element kElement, bool kAnyKeys = false, int kScores>
__device__ __forceinline__ GranuleSums weigh_and_round(float (&s)[kScores], uint32_t (&a)[kScores / 8][4],
                                                       const ChunkRows& rows, float c, float bias, uint32_t zero) {
  float offset[2][kRowsPerThread];
  weight_offsets<kAnyKeys>(rows, bias, offset[0]);
  weight_offsets<kAnyKeys>(rows, bias, offset[1]);
  GranuleSums sums;
#pragma unroll
  for (int block = 0; block < kScores / 8; ++block) {
    float(&own)[kRowsPerThread] = offset[block % 2];
    weigh_block(&s[8 * block], block == 0, own, c, sums);
    round_block<kElement>(&s[8 * block], a[block]);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      own[h] = after(own[h], a[block][2 + h], zero);
    }
  }
  return sums;
}

// R4 of one granule, S := p unrounded, in blocks that follow each other as above.
template <bool kAnyKeys = false, int kScores>
__device__ __forceinline__ GranuleSums weigh_only(float (&s)[kScores], const ChunkRows& rows, float c, float bias,
                                                  uint32_t zero) {
  float offset[2][kRowsPerThread];
  weight_offsets<kAnyKeys>(rows, bias, offset[0]);
  weight_offsets<kAnyKeys>(rows, bias, offset[1]);
  GranuleSums sums;
#pragma unroll
  for (int block = 0; block < kScores / 8; ++block) {
    float(&own)[kRowsPerThread] = offset[block % 2];
    weigh_block(&s[8 * block], block == 0, own, c, sums);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      own[h] = after(own[h], __float_as_uint(s[8 * block + 5 + 2 * h]), zero);
    }
  }
  return sums;
}

// R5 of one granule: p -> the A operands of P V.
template <Element kElement, int kScores>
__device__ __forceinline__ void round_weights(const float (&p)[kScores], uint32_t (&a)[kScores / 8][4]) {
#pragma unroll
  for (int block = 0; block < kScores / 8; ++block) {
    round_block<kElement>(&p[8 * block], a[block]);
  }
}

// R7: l of the granules so far and the new one.
__device__ __forceinline__ void add_sums(ChunkRows& rows, const float (&rescale)[kRowsPerThread],
                                         const GranuleSums& sums) {
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
#pragma unroll
    for (int e = 0; e < kClassesPerThread; ++e) {
      rows.l[h][e] = __fmaf_rn(rows.l[h][e], rescale[h], sums.g[h][e]);
    }
  }
}

// Whether R3 may move a row's maximum for the granule that was weighed with the maximum before it: false proves that it
// does not. A score with s c > m + 8 has y >= b + 8, as long as b - m is exact, so a weight and with it a sum above
// `limit` = 2^(b + 7); NaN counts as above.
__device__ __forceinline__ bool may_move(const ChunkRows& rows, const GranuleSums& sums, float limit) {
  bool below = true;
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    below = below && sums.g[h][0] < limit && sums.g[h][1] < limit && fabsf(rows.m[h]) < 0x1p22F;
  }
  return !below;
}

// R6: O := O a.
template <int kOutputs>
__device__ __forceinline__ void rescale_output(float (&o)[kOutputs], const float (&rescale)[kRowsPerThread]) {
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    o[i] = __fmul_rn(o[i], rescale[i / 2 % 2]);
  }
}

// l of R7 at a chunk's end, the same number in all four threads of a row.
__device__ __forceinline__ float sum_classes(const float (&l)[kClassesPerThread]) {
  float sum = __fadd_rn(l[0], l[1]);
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
  return __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
}

// (m, l) of R8 for a thread's two rows. m = -Inf: empty.
struct StateRows {
  float m[kRowsPerThread];
  float l[kRowsPerThread];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      m[h] = minus_infinity();
      l[h] = 0.0F;
    }
  }
};

// Weights of the two sides of one chain step (R8).
struct ChainWeights {
  float first[kRowsPerThread];
  float second[kRowsPerThread];
};

// `state` := chain(state, second) in its scalars; the weights are for O. An empty side gets weight 0, and the other 1,
// which leaves its bits alone.
__device__ __forceinline__ ChainWeights chain_scalars(StateRows& state, const StateRows& second) {
  ChainWeights w;
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    const float m = fmaxf(state.m[h], second.m[h]);
    w.first[h] = drop_weight(__fsub_rn(m, state.m[h]));
    w.second[h] = drop_weight(__fsub_rn(m, second.m[h]));
    state.l[h] = __fmaf_rn(state.l[h], w.first[h], __fmul_rn(second.l[h], w.second[h]));
    state.m[h] = m;
  }
  return w;
}

// The chain of one element of O; i is its index in the fragment.
__device__ __forceinline__ float chain_output(float first, float second, const ChainWeights& w, int i) {
  const int h = i / 2 % 2;
  return __fmaf_rn(first, w.first[h], __fmul_rn(second, w.second[h]));
}

// Two output elements of R9 as a pair, -0 as +0.
template <Element kElement>
__device__ __forceinline__ uint32_t finish_pair(float low, float high) {
  // -0 + +0 is +0, and nothing else changes.
  uint32_t pair;
  if constexpr (kElement == Element::kBf16) {
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(round_pair<kElement>(low, high)), "r"(0U));
  } else {
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(round_pair<kElement>(low, high)), "r"(0U));
  }
  return pair;
}

}  // namespace tessera::sm90
