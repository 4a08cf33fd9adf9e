// R9 with all that the interface asks of it: sinks, O in fp32, un-normalised states. O goes from the registers to
// memory without a detour, since the copy engine's staging would be too small for fp32.
#pragma once

#include "kernels/sm90/fmha_prefill/common.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

template <class Tag>
struct GeneralFinish {
  static constexpr Element kElement = PrefillCommon<Tag>::kElement;

  const PrefillArguments& args;
  bool stored[kRowsPerThread];
  bool none[kRowsPerThread];      // out = +0
  float rescale[kRowsPerThread];  // else RN(RN(O rescale) inverse)
  float inverse[kRowsPerThread];
  int64_t at[kRowsPerThread];  // of the thread's first element of O

  // Thread t of its warpgroup holds rows `row` and `row` + 8 of it. Stores the rows' scalars.
  __device__ __forceinline__ GeneralFinish(const PrefillArguments& arguments, const StateRows& closed,
                                           const QueryTile& query, int t, int row)
      : args(arguments) {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const float m = closed.m[h];
      float l = closed.l[h];
      const int i = query.first_row + row + 8 * h;
      stored[h] = i < args.seqlen_q;
      const bool empty = m == minus_infinity();
      if (stored[h] && t % 4 == 0) {
        const float m_log2 = empty ? m : __fsub_rn(m, args.bias);
        store(args.lse, args.lse_stride_batch, args.lse_stride_token, args.lse_stride_head, query, i,
              empty ? m : __fmul_rn(__fadd_rn(soft_log2(l), m_log2), kLn2));
        store(args.row_max, query, i, m_log2);
        store(args.row_sum, query, i, empty ? 0.0F : l);
      }
      const float sink = args.sinks == nullptr ? minus_infinity() : __fmul_rn(args.sinks[query.head], kLog2E);
      none[h] = empty || sink == -minus_infinity();
      rescale[h] = 1.0F;
      if (sink != minus_infinity() && !none[h]) {
        const float highest = fmaxf(m, ceilf(sink));
        rescale[h] = drop_weight(__fsub_rn(highest, m));
        l = __fadd_rn(__fmul_rn(l, rescale[h]), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args.bias)));
      }
      inverse[h] = args.unnormalized ? 1.0F : __frcp_rn(l);
      at[h] = query.batch * args.o_stride_batch + i * args.o_stride_token + query.head * args.o_stride_head + t % 4 * 2;
    }
  }

  // Piece n of the thread's O: columns 8 n + 2 (t mod 4) and the next of its two rows. kWideOutput: O is fp32.
  template <bool kWideOutput>
  __device__ __forceinline__ uint32_t put(int n, const float4& piece) const {
    const float o[2 * kRowsPerThread] = {piece.x, piece.y, piece.z, piece.w};
    uint32_t bits = 0;
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const float low = none[h] ? 0.0F : __fmul_rn(__fmul_rn(o[2 * h], rescale[h]), inverse[h]);
      const float high = none[h] ? 0.0F : __fmul_rn(__fmul_rn(o[2 * h + 1], rescale[h]), inverse[h]);
      if constexpr (kWideOutput) {
        bits = __float_as_uint(high);
        if (stored[h]) {
          // -0 as +0.
          *reinterpret_cast<float2*>(static_cast<float*>(args.o) + at[h] + 8 * n) =
              make_float2(__fadd_rn(low, 0.0F), __fadd_rn(high, 0.0F));
        }
      } else {
        bits = finish_pair<kElement>(low, high);
        if (stored[h]) {
          *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(args.o) + at[h] + 8 * n) = bits;
        }
      }
    }
    return bits;
  }

 private:
  __device__ __forceinline__ static void store(float* data, int64_t batch, int64_t token, int64_t head,
                                               const QueryTile& query, int i, float value) {
    if (data != nullptr) {
      data[query.batch * batch + i * token + query.head * head] = value;
    }
  }
  __device__ __forceinline__ static void store(const tessera_row_scalars& scalars, const QueryTile& query, int i,
                                               float value) {
    store(scalars.data, scalars.stride_batch, scalars.stride_token, scalars.stride_head, query, i, value);
  }
};

}  // namespace tessera::sm90
