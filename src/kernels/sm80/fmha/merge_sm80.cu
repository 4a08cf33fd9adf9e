// The chain of R8 over states in global memory, then R9 and R12: one warp per (row, head), one lane per dim modulo 32.
#include <cuda_runtime.h>

#include <algorithm>

#include "contract/output_rope.h"
#include "kernels/sm80/fmha/entry.h"
#include "kernels/sm80/fmha/finish.cuh"

namespace tessera::sm80 {
namespace {

constexpr int kMergeThreads = 256;
constexpr int kMergeWarps = kMergeThreads / 32;
constexpr int kLaneDims = 4;  // dims per lane and pass over the states

struct MergedRow {
  float m;  // -Inf: empty
  float l;
};

// Dims lane + 32 i of [first_dim, ...) of one row: the chain over the states in order. An empty state is the identity,
// whatever its O holds.
__device__ __forceinline__ MergedRow merge_row(const tessera_merge_params& p, float bias, int64_t token, int64_t head,
                                               int first_dim, float (&o)[kLaneDims]) {
  const float minus_inf = __uint_as_float(0xff800000U);
  const tessera_row_scalars& maxima = p.row_max_log2_states;
  const tessera_row_scalars& sums = p.row_sum_states;
  MergedRow merged{minus_inf, 0.0F};
#pragma unroll
  for (float& x : o) {
    x = 0.0F;
  }
  for (int64_t t = 0; t < p.num_states; ++t) {
    const float row_max =
        maxima.data[t * maxima.stride_batch + token * maxima.stride_token + head * maxima.stride_head];
    if (row_max == minus_inf) {
      continue;
    }
    const float m = add_rn(row_max, bias);
    const float l = sums.data[t * sums.stride_batch + token * sums.stride_token + head * sums.stride_head];
    const float* state = static_cast<const float*>(p.o_states.data) + t * p.o_states.stride_batch +
                         token * p.o_states.stride_token + head * p.o_states.stride_head;
    const bool first = merged.m == minus_inf;
    const float highest = fmaxf(merged.m, m);
    const float w_first = drop_weight(sub_rn(highest, merged.m));
    const float w_second = drop_weight(sub_rn(highest, m));
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) {
      const int dim = first_dim + 32 * i;
      if (dim < p.head_dim_v) {
        const float x = state[dim * p.o_states.stride_dim];
        o[i] = first ? x : fma_rn(o[i], w_first, mul_rn(x, w_second));
      }
    }
    merged.l = first ? l : fma_rn(merged.l, w_first, mul_rn(l, w_second));
    merged.m = highest;
  }
  return merged;
}

__device__ __forceinline__ void store_element(const tessera_merge_params& p, int64_t at, float value) {
  if (p.o_dtype == TESSERA_F32) {
    static_cast<float*>(p.o.data)[at] = output_float(value);
  } else {
    static_cast<uint16_t*>(p.o.data)[at] =
        p.o_dtype == TESSERA_BF16 ? output_bits<true>(value) : output_bits<false>(value);
  }
}

// R12 of the lane's dim, whose pair is the neighbouring lane's. Every lane of the warp takes part.
__device__ __forceinline__ float turn_element(const tessera_merge_params& p, int64_t token, int dim, float value) {
  const float other = __shfl_xor_sync(0xffffffffU, value, 1);
  const int at = dim - (p.head_dim_v - p.o_rope.rotary_dim);  // even for the first of a pair, as both numbers are
  if (at < 0 || dim >= p.head_dim_v) {
    return value;
  }
  const int64_t position = p.o_rope.positions[token];
  float c = __uint_as_float(0x7fc00000U);
  float s = c;
  if (position >= 0 && position < p.o_rope.num_positions) {
    const int64_t angle = position * (p.o_rope.rotary_dim / 2) + at / 2;
    c = p.o_rope.cos_table[angle];
    s = p.o_rope.sin_table[angle];
  }
  float pair[2] = {at % 2 == 0 ? value : other, at % 2 == 0 ? other : value};
  turn_back(pair[0], pair[1], c, s);
  return at % 2 == 0 ? pair[0] : pair[1];
}

__global__ void __launch_bounds__(kMergeThreads)
    fmha_merge_sm80(const __grid_constant__ tessera_merge_params p, float bias) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t rows = p.num_rows * p.num_heads_q;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kMergeWarps + threadIdx.x / 32; row < rows;
       row += static_cast<int64_t>(gridDim.x) * kMergeWarps) {
    const int64_t token = row / p.num_heads_q;
    const int64_t head = row - token * p.num_heads_q;
    for (int dim0 = 0; dim0 < p.head_dim_v; dim0 += 32 * kLaneDims) {
      float o[kLaneDims];
      const MergedRow merged = merge_row(p, bias, token, head, dim0 + lane, o);
      const RowFinish end =
          finish_row(merged.m, merged.l, bias, p.sinks == nullptr ? __uint_as_float(0xff800000U) : p.sinks[head],
                     p.output_mode == TESSERA_OUTPUT_NORMALIZED);
#pragma unroll
      for (int i = 0; i < kLaneDims; ++i) {
        const int dim = dim0 + lane + 32 * i;
        float value = finish_element(o[i], end);
        if (p.o_rope.cos_table != nullptr && !end.none) {
          value = turn_element(p, token, dim, value);
        }
        if (dim < p.head_dim_v) {
          store_element(p, token * p.o.stride_token + head * p.o.stride_head + dim * p.o.stride_dim, value);
        }
      }
      if (dim0 == 0 && lane == 0) {
        store_scalars(p, 0, token, head, merged.m, merged.l, bias);
      }
    }
  }
}

}  // namespace

cudaError_t launch_merge(const tessera_merge_params& params, float bias, cudaStream_t stream) {
  constexpr int64_t kLargestGrid = int64_t{1} << 30;
  const int64_t rows = params.num_rows * params.num_heads_q;
  const int64_t blocks = std::min((rows + kMergeWarps - 1) / kMergeWarps, kLargestGrid);
  fmha_merge_sm80<<<static_cast<unsigned>(blocks), kMergeThreads, 0, stream>>>(params, bias);
  return cudaGetLastError();
}

}  // namespace tessera::sm80
