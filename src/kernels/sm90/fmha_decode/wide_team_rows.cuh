// The end of a unit of the wide team: states of chunks (R8), how they are chained, and how rows are finished (R9). A
// thread has eight neighbouring columns of one row, so that what a row needs is found once for as many, and they leave
// as 16 bytes.
#pragma once

#include <cstdint>

#include "contract/exp2.h"
#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/state.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

inline constexpr int kRowColumns = 8;  // of a thread

// A thread's columns of a row's state. m = -Inf: empty.
struct RowState {
  float m, l;
  float o[kRowColumns];

  __device__ __forceinline__ void clear() {
    m = minus_infinity();
    l = 0.0F;
#pragma unroll
    for (float& x : o) {
      x = 0.0F;
    }
  }

  // *this := chain(*this, next). An empty side has weight 0 and the other one 1.
  __device__ __forceinline__ void chain(const RowState& next) {
    const float highest = fmaxf(m, next.m);
    const float w = power_of_drop(__fsub_rn(m, highest));  // a NaN (both empty) gives 0
    const float w_next = power_of_drop(__fsub_rn(next.m, highest));
    l = __fmaf_rn(l, w, __fmul_rn(next.l, w_next));
    m = highest;
#pragma unroll
    for (int i = 0; i < kRowColumns; ++i) {
      o[i] = __fmaf_rn(o[i], w, __fmul_rn(next.o[i], w_next));
    }
  }
};

// A row of a block's 64 columns, by eight threads.
template <class Tag, int kTeam>
class WideRow {
  static constexpr int kRows = Tag::kRows;
  static constexpr int kThreads = Tag::kValueDim / kTeam / kRowColumns;  // of a row
  static constexpr int kPieces = state_pieces(Tag::kValueDim, kRows);
  static constexpr int kAhead = 4;  // states on their way
  static_assert(kSuperchunkChunks % kAhead == 0, "states: a superchunk has to end where some of them do");
  static_assert((2 * kThreads + 1) * kRows * kTeam <= kPieces, "state: got more than its place");

 public:
  // `thread` counts the threads of all rows.
  __device__ __forceinline__ WideRow(const DecodeArguments& args, const Unit& unit, int rank, int thread)
      : args_(args),
        unit_(unit),
        rank_(rank),
        thread_(thread),
        row_(thread / kThreads),
        column_(rank * (Tag::kValueDim / kTeam) + thread % kThreads * kRowColumns) {
    const int in_unit = unit.first_row + row_;
    token_ = divide(in_unit, args.group);
    head_ = unit.kv_head * static_cast<int>(args.group.value) + in_unit - token_ * static_cast<int>(args.group.value);
  }

  __device__ __forceinline__ int row() const { return row_; }
  __device__ __forceinline__ int column() const { return thread_ % kThreads * kRowColumns; }  // of the block's
  __device__ __forceinline__ bool exists() const { return token_ < args_.seqlen_q; }

  // The unit's state; nothing of rows that do not exist.
  __device__ __forceinline__ void store(const RowState& state) const {
    if (!exists()) {
      return;
    }
    float4* to = place(unit_.chunk - unit_.first_chunk);
    __stcg(to, make_float4(state.o[0], state.o[1], state.o[2], state.o[3]));
    __stcg(to + kThreads * kRows, make_float4(state.o[4], state.o[5], state.o[6], state.o[7]));
    if (thread_ % kThreads == 0) {
      __stcg(scalars(to), make_float4(state.m, state.l, 0.0F, 0.0F));
    }
  }

  // R8 over all chunks of the unit's sequence: ascending inside superchunks, superchunks ascending. States that do not
  // exist count as empty, which changes nothing and needs no branch.
  __device__ __forceinline__ RowState chain() const {
    const int begin = unit_.first_chunk;
    const int end = unit_.chunks;
    RowState total;
    total.clear();
    RowState inner;
    inner.clear();
#pragma unroll 1
    for (int first = begin / kAhead * kAhead; first < end; first += kAhead) {
      float4 low[kAhead];
      float4 high[kAhead];
      float4 row[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const bool there = exists() && first + i >= begin && first + i < end;
        const float4* from = place(first + i - begin);
        low[i] = load_if(there, from);
        high[i] = load_if(there, from + kThreads * kRows);
        row[i] = load_if(there, scalars(from));
        row[i].x = there ? row[i].x : minus_infinity();
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        inner.chain(
            {row[i].x, row[i].y, {low[i].x, low[i].y, low[i].z, low[i].w, high[i].x, high[i].y, high[i].z, high[i].w}});
      }
      if ((first + kAhead) % kSuperchunkChunks == 0 || first + kAhead >= end) {
        total.chain(inner);
        inner.clear();
      }
    }
    return total;
  }

  // R9.
  __device__ __forceinline__ void finish(const RowState& state) const {
    if (!exists()) {
      return;
    }
    bool none = state.m == minus_infinity();  // out = +0
    float rescale = 1.0F;
    float l = state.l;
    if (args_.sinks != nullptr) {
      const float sink = __fmul_rn(args_.sinks[head_], kLog2E);
      none |= sink == -minus_infinity();
      if (!none && sink != minus_infinity()) {
        const float highest = fmaxf(state.m, ceilf(sink));
        rescale = drop_weight(__fsub_rn(highest, state.m));
        l = __fadd_rn(__fmul_rn(l, rescale), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args_.bias)));
      }
    }
    const float inverse = args_.unnormalized != 0 ? 1.0F : __fdiv_rn(1.0F, l);
    float x[kRowColumns];
#pragma unroll
    for (int i = 0; i < kRowColumns; ++i) {
      x[i] = none ? 0.0F : __fmul_rn(__fmul_rn(state.o[i], rescale), inverse);
    }
    if (column_ < args_.dims) {  // a multiple of eight
      const int64_t first =
          unit_.batch * args_.o_strides.batch + token_ * args_.o_strides.token + head_ * args_.o_strides.head + column_;
      if (args_.wide_output != 0) {
        store_wide(static_cast<float*>(args_.o) + first, x);
      } else {
        store_narrow(static_cast<uint16_t*>(args_.o) + first, x);
      }
    }
    if (rank_ == 0 && thread_ % kThreads == 0) {
      store_scalars(args_, unit_.batch, token_, head_, state.m, state.l);
    }
  }

 private:
  // The thread's first piece of a chunk's state, counted from the sequence's first one with keys that anybody sees.
  __device__ __forceinline__ float4* place(int chunk) const {
    const auto heads = static_cast<int>(args_.heads.value);
    return args_.states + ((int64_t{unit_.batch} * args_.state_chunks + chunk) * heads + unit_.head) * kPieces +
           rank_ * (kPieces / kTeam) + thread_;
  }
  // m and l of the row, behind the outputs.
  template <class Pointer>
  __device__ __forceinline__ Pointer* scalars(Pointer* piece) const {
    return piece - thread_ + 2 * kThreads * kRows + row_;
  }
  static __device__ __forceinline__ bool is_aligned(const void* to) {
    return reinterpret_cast<uintptr_t>(to) % 16 == 0;
  }
  static __device__ __forceinline__ void store_wide(float* to, const float (&x)[kRowColumns]) {
    float y[kRowColumns];
#pragma unroll
    for (int i = 0; i < kRowColumns; ++i) {
      y[i] = __fadd_rn(x[i], 0.0F);  // -0 as +0
    }
    if (is_aligned(to)) {
      reinterpret_cast<float4*>(to)[0] = make_float4(y[0], y[1], y[2], y[3]);
      reinterpret_cast<float4*>(to)[1] = make_float4(y[4], y[5], y[6], y[7]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kRowColumns; ++i) {
      to[i] = y[i];
    }
  }
  static __device__ __forceinline__ void store_narrow(uint16_t* to, const float (&x)[kRowColumns]) {
    uint32_t pairs[kRowColumns / 2];
#pragma unroll
    for (int i = 0; i < kRowColumns / 2; ++i) {
      pairs[i] = finish_pair<kElementOf<Tag::kBf16>>(x[2 * i], x[2 * i + 1]);
    }
    if (is_aligned(to)) {
      *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kRowColumns; ++i) {
      to[i] = static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2)));
    }
  }

  const DecodeArguments& args_;
  const Unit& unit_;
  int rank_, thread_;
  int row_, column_;
  int token_;
  int64_t head_;
};

}  // namespace tessera::sm90
