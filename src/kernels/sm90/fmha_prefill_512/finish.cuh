// What a consumer does with its O at the end of a chunk (R8) and of a tile (R9). The chained O of chunks and
// superchunks lies in global scratch; each thread reads and writes only what it wrote itself.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_prefill_512/config.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/softmax.cuh"

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

template <class Tag>
class Chain512 {
  using Layout = Layout512;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kOutputs = Layout::kColumns / 2;
  static constexpr int kPieces = kOutputs / 4;  // float4 per thread
  static constexpr int kBatch = 4;              // pieces at a time: with 16-bit O what a lane's 16 bytes are made of

 public:
  __device__ __forceinline__ Chain512(const Arguments512& args, int warpgroup, int rank)
      : args_(args), warpgroup_(warpgroup), rank_(rank) {}

  // Chunk `index` has ended, and is not the row's last one.
  __device__ __forceinline__ void put_away(const float (&o)[kOutputs], const float (&m)[kRowsPerThread],
                                           const float (&l)[kRowsPerThread][kClassesPerThread], int index) const {
    StateRows closed{{m[0], m[1]}, {sum_classes(l[0]), sum_classes(l[1])}};
    float4* const memory = place(args_.chains);
    const bool any = index % kSuperchunkChunks != 0;
    const ChainWeights w = chain_before(any, memory, closed);
    Batch next = fetch(any, memory, 0);
#pragma unroll
    for (int first = 0; first < kPieces; first += kBatch) {
      const Batch before = next;
      if (first + kBatch < kPieces) {
        next = fetch(any, memory, first + kBatch);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        __stcg(memory + (first + i) * 128, chain_piece(before.x[i], piece(o, first + i), w));
      }
    }
    if ((index + 1) % kSuperchunkChunks == 0) {
      close_superchunk(closed, index >= kSuperchunkChunks);
    } else {
      store_state(memory, closed);
    }
  }

  // R9 of rows first_row .. of a head, whose last chunk `index` is (o, rows).
  __device__ __forceinline__ void finish(const float (&o)[kOutputs], const float (&m)[kRowsPerThread],
                                         const float (&l)[kRowsPerThread][kClassesPerThread], int index, int first_row,
                                         int head, int batch) const {
    StateRows closed{{m[0], m[1]}, {sum_classes(l[0]), sum_classes(l[1])}};
    const bool any_chunk = index % kSuperchunkChunks != 0;
    const bool any_superchunk = index >= kSuperchunkChunks;
    const ChainWeights inner = chain_before(any_chunk, place(args_.chains), closed);
    const ChainWeights outer = chain_before(any_superchunk, place(args_.superchunks), closed);
    const int t = thread_index() % 128;
    const int row = first_row + t / 32 * 16 + t % 32 / 4;
    bool stored[kRowsPerThread];
    bool none[kRowsPerThread];
    float rescale[kRowsPerThread];
    float inverse[kRowsPerThread];
    int64_t at[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const int token = row + 8 * h;
      stored[h] = token < args_.seqlen_q;
      at[h] = batch * args_.o_stride_batch + token * args_.o_stride_token + head * args_.o_stride_head;
      const bool empty = closed.m[h] == minus_infinity();
      if (stored[h] && t % 4 == 0 && rank_ == 0) {
        store_scalars(closed.m[h], closed.l[h], empty, token, head, batch);
      }
      none[h] = empty;
      rescale[h] = 1.0F;
      float sum = closed.l[h];
      if (args_.sinks != nullptr) {
        const float sink = __fmul_rn(args_.sinks[head], kLog2E);
        none[h] = empty || sink == -minus_infinity();
        if (!none[h] && sink != minus_infinity()) {
          const float highest = fmaxf(closed.m[h], ceilf(sink));
          rescale[h] = drop_weight(__fsub_rn(highest, closed.m[h]));
          sum = __fadd_rn(__fmul_rn(sum, rescale[h]), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args_.bias)));
        }
      }
      inverse[h] = args_.unnormalized ? 1.0F : __frcp_rn(sum);
    }
    Batch next = fetch(any_chunk, place(args_.chains), 0);
#pragma unroll
    for (int first = 0; first < kPieces; first += kBatch) {
      float x[kBatch][4];
      const Batch chunks = next;
      if (first + kBatch < kPieces) {
        next = fetch(any_chunk, place(args_.chains), first + kBatch);
      }
      const Batch superchunks = fetch(any_superchunk, place(args_.superchunks), first);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float4 y = piece(o, first + i);
        y = chain_piece(chunks.x[i], y, inner);
        y = chain_piece(superchunks.x[i], y, outer);
        const float all[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int h = j / 2;
          x[i][j] = none[h] ? 0.0F : __fmul_rn(__fmul_rn(all[j], rescale[h]), inverse[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < kRowsPerThread; ++h) {
        if (args_.wide_output) {
          store_wide(x, h, at[h], first, stored[h]);
        } else {
          store_narrow(x, h, at[h], first, stored[h]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static float4 piece(const float (&o)[kOutputs], int i) {
    return make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
  }
  __device__ __forceinline__ static float4 chain_piece(const float4& first, const float4& second,
                                                       const ChainWeights& w) {
    return make_float4(chain_output(first.x, second.x, w, 0), chain_output(first.y, second.y, w, 1),
                       chain_output(first.z, second.z, w, 2), chain_output(first.w, second.w, w, 3));
  }
  __device__ __forceinline__ float4* place(float4* scratch) const {
    return scratch + static_cast<int64_t>(blockIdx.x * Layout::kConsumers + warpgroup_) * (kPieces + 1) * 128 +
           thread_index() % 128;
  }

  struct Batch {
    float4 x[kBatch];
  };
  // Pieces from `first` on, or zeros. The next batch is on its way while one is worked on: a piece at a time would wait
  // for memory 32 times.
  __device__ __forceinline__ static Batch fetch(bool any, const float4* memory, int first) {
    Batch batch;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch.x[i] = load_if(any, memory + (first + i) * 128);
    }
    return batch;
  }

  // `state` := chain(the state in memory, state) in its scalars, if there is one there; else the weights leave O alone,
  // but for the sign of a zero, which R9 drops.
  __device__ __forceinline__ static ChainWeights chain_before(bool any, const float4* memory, StateRows& state) {
    if (!any) {
      return {{0.0F, 0.0F}, {1.0F, 1.0F}};
    }
    const float4 x = __ldcg(memory + kPieces * 128);
    StateRows first{{x.x, x.y}, {x.z, x.w}};
    const ChainWeights w = chain_scalars(first, state);
    state = first;
    return w;
  }
  __device__ __forceinline__ static void store_state(float4* memory, const StateRows& state) {
    __stcg(memory + kPieces * 128, make_float4(state.m[0], state.m[1], state.l[0], state.l[1]));
  }

  // The chunks in memory, whose scalars are `chunks`, join the superchunks before them, if there are `any`.
  __device__ __forceinline__ void close_superchunk(StateRows& chunks, bool any) const {
    const float4* const memory = place(args_.chains);
    float4* const all = place(args_.superchunks);
    const ChainWeights w = chain_before(any, all, chunks);
#pragma unroll 4
    for (int i = 0; i < kPieces; ++i) {
      __stcg(all + i * 128, chain_piece(load_if(any, all + i * 128), __ldcg(memory + i * 128), w));
    }
    store_state(all, chunks);
  }

  __device__ __forceinline__ void store_scalars(float m, float l, bool empty, int token, int head, int batch) const {
    const auto store = [&](const tessera_row_scalars& to, float value) {
      if (to.data != nullptr) {
        to.data[batch * to.stride_batch + token * to.stride_token + head * to.stride_head] = value;
      }
    };
    const float m_log2 = empty ? m : __fsub_rn(m, args_.bias);
    store(args_.lse, empty ? m : __fmul_rn(__fadd_rn(soft_log2(l), m_log2), kLn2));
    store(args_.row_max, m_log2);
    store(args_.row_sum, empty ? 0.0F : l);
  }

  // Row h of four pieces: a lane's columns are 8 i + 2 q and the next of piece i.
  __device__ __forceinline__ void store_wide(const float (&x)[kBatch][4], int h, int64_t at, int first,
                                             bool stored) const {
    float* const o = static_cast<float*>(args_.o) + at;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int column = rank_ * Layout::kColumns + 8 * (first + i) + thread_index() % 4 * 2;
      if (stored && column < args_.dims_v) {
        // -0 as +0
        *reinterpret_cast<float2*>(o + column) =
            make_float2(__fadd_rn(x[i][2 * h], 0.0F), __fadd_rn(x[i][2 * h + 1], 0.0F));
      }
    }
  }
  __device__ __forceinline__ void store_narrow(const float (&x)[kBatch][4], int h, int64_t at, int first,
                                               bool stored) const {
    uint32_t pair[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      pair[i] = finish_pair<kElement>(x[i][2 * h], x[i][2 * h + 1]);
    }
    const uint4 row = transpose_quad(pair[0], pair[1], pair[2], pair[3]);
    const int column = rank_ * Layout::kColumns + 8 * (first + thread_index() % 4);
    if (stored && column < args_.dims_v) {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(args_.o) + at + column) = row;
    }
  }

  const Arguments512& args_;
  int warpgroup_, rank_;
};

}  // namespace tessera::sm90
