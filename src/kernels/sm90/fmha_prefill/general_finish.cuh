// R9 with all that the interface asks of it: sinks, O in fp32, un-normalised states. O goes from the registers to
// memory without a detour, since the copy engine's staging would be too small for fp32.
#pragma once

#include "kernels/sm90/fmha_prefill/ragged.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

// Where a consumer's rows lie: as a QueryTile, but first_row is the consumer's own, and of sequences of any lengths.
struct RaggedRows {
  int first_row;
  int head;
  int batch;
  int tokens;       // of the sequence
  int first_token;  // in Q, O and the rows' scalars
  RaggedSlot slot;  // where all of it was read
  int consumer;

  __device__ __forceinline__ static RaggedRows load(RaggedSlot slot, int consumer) {
    const int4 place = slot.vector(RaggedSlot::kBatch);
    return {place.z + consumer * kWarpgroupRows, place.y, place.x, place.w,
            slot.get(RaggedSlot::kFirstToken),   slot,    consumer};
  }
};
__device__ __forceinline__ int tokens_of(const PrefillArguments& args, const QueryTile&) {
  return args.seqlen_q;
}
__device__ __forceinline__ int tokens_of(const PrefillArguments&, const RaggedRows& rows) {
  return rows.tokens;
}
__device__ __forceinline__ int token_of(const QueryTile&, int row) {
  return row;
}
__device__ __forceinline__ int token_of(const RaggedRows& rows, int row) {
  return rows.first_token + row;
}

// Of kernels with the general finish: whether these rows can do without it.
__device__ __forceinline__ constexpr bool goes_through_copy_engine(const PrefillArguments&, const QueryTile&) {
  return false;
}
__device__ __forceinline__ bool goes_through_copy_engine(const PrefillArguments& args, const RaggedRows&) {
  return args.ragged.fast_finish;
}

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
  template <class Rows>
  __device__ __forceinline__ GeneralFinish(const PrefillArguments& arguments, const StateRows& closed,
                                           const Rows& query, int t, int row)
      : args(arguments) {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const float m = closed.m[h];
      float l = closed.l[h];
      const int i = query.first_row + row + 8 * h;
      const int token = token_of(query, i);
      stored[h] = i < tokens_of(args, query);
      const bool empty = m == minus_infinity();
      if (stored[h] && t % 4 == 0) {
        const float m_log2 = empty ? m : __fsub_rn(m, args.bias);
        store(args.lse, args.lse_stride_batch, args.lse_stride_token, args.lse_stride_head, query, token,
              empty ? m : __fmul_rn(__fadd_rn(soft_log2(l), m_log2), kLn2));
        store(args.row_max, query, token, m_log2);
        store(args.row_sum, query, token, empty ? 0.0F : l);
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
      at[h] =
          query.batch * args.o_stride_batch + token * args.o_stride_token + query.head * args.o_stride_head + t % 4 * 2;
    }
  }

  // Piece n of the thread's O: columns 8 n + 2 (t mod 4) and the next of its two rows. kWideOutput: O is fp32.
  template <bool kWideOutput>
  __device__ __forceinline__ uint32_t put(int n, const float4& piece) const {
    const float o[2 * kRowsPerThread] = {piece.x, piece.y, piece.z, piece.w};
    uint32_t bits = 0;
    if constexpr (PrefillCommon<Tag>::kSchedule.ragged) {
      if (8 * n >= args.ragged.v_dims) {
        return 0;
      }
    }
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
  template <class Rows>
  __device__ __forceinline__ static void store(float* data, int64_t batch, int64_t token, int64_t head,
                                               const Rows& query, int i, float value) {
    if (data != nullptr) {
      data[query.batch * batch + i * token + query.head * head] = value;
    }
  }
  template <class Rows>
  __device__ __forceinline__ static void store(const tessera_row_scalars& scalars, const Rows& query, int i,
                                               float value) {
    store(scalars.data, scalars.stride_batch, scalars.stride_token, scalars.stride_head, query, i, value);
  }
};

}  // namespace tessera::sm90
