// R9 and R12 for the rows of a tile as the threads of a consumer hold them: a thread has two rows, the second one 8
// further, and of each 8-column piece of O two columns.
#pragma once

#include "contract/output_rope.h"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/quad.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

inline constexpr int kMqaPieceGroup = 4;  // pieces that with 16-bit O are what a lane's 16 bytes are made of

template <class Tag>
class MqaOutputs {
  using Words = MqaTileWords;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;

  static constexpr int kGroup = kMqaPieceGroup;

 public:
  // A thread's rows.
  struct Place {
    int64_t batch;
    int token[kRowsPerThread], head[kRowsPerThread];
    bool stored[kRowsPerThread];
  };
  // What R9 needs beside O.
  struct End {
    float rescale[kRowsPerThread], inverse[kRowsPerThread];
    bool none[kRowsPerThread];
  };

  __device__ __forceinline__ MqaOutputs(const MqaArguments& args, int consumer) : args_(args), consumer_(consumer) {}

  __device__ __forceinline__ Place place_of(const MqaTile& tile) const {
    const int t = thread_index() % 128;
    Place where;
    where.batch = tile.get(Words::kBatch);
    const int first = tile.get(Words::kFirstRow) + t / 32 * 16 + t % 32 / 4;
    const int rows = tile.get(Words::kRows);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const int row = first + 8 * h;
      const int behind = divide(row, args_.heads);
      where.token[h] = tile.get(Words::kTensorToken) + behind;
      where.head[h] = row - behind * static_cast<int>(args_.heads.value);
      where.stored[h] = row < rows;
    }
    return where;
  }
  // Where the consumer's columns of a row of O begin, in elements; -1: the row does not exist.
  __device__ __forceinline__ int64_t output_at(const Place& where, int h) const {
    if (!where.stored[h]) {
      return -1;
    }
    return where.batch * args_.o_stride_batch + where.token[h] * args_.o_stride_token +
           where.head[h] * args_.o_stride_head + consumer_ * MqaTiling::kColumns;
  }

  // From a state's scalars; those that are wanted are stored, once per row if only one consumer `speaks`.
  __device__ __forceinline__ void finish_rows(const StateRows& rows, const Place& where, bool speaks, End& end) const {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const bool empty = rows.m[h] == minus_infinity();
      if (where.stored[h] && speaks) {
        store_scalars(rows.m[h], rows.l[h], empty, where, h);
      }
      end.none[h] = empty;
      end.rescale[h] = 1.0F;
      float sum = rows.l[h];
      if (args_.sinks != nullptr) {
        const float sink = __fmul_rn(args_.sinks[where.stored[h] ? where.head[h] : 0], kLog2E);
        end.none[h] = empty || sink == -minus_infinity();
        if (!end.none[h] && sink != minus_infinity()) {
          const float highest = fmaxf(rows.m[h], ceilf(sink));
          end.rescale[h] = drop_weight(__fsub_rn(highest, rows.m[h]));
          sum = __fadd_rn(__fmul_rn(sum, end.rescale[h]), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args_.bias)));
        }
      }
      end.inverse[h] = args_.unnormalized ? 1.0F : __frcp_rn(sum);
    }
  }

  // Both rows of a group of pieces, the first of which is `piece`; at[h] is where row h begins, below 0 nowhere.
  __device__ __forceinline__ void store_group(const float* o, int piece, const int64_t (&at)[kRowsPerThread],
                                              const MqaTile& tile, const End& end) const {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      float row[kGroup][2];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float y = o[4 * i + 2 * h + e];
          row[i][e] = end.none[h] ? 0.0F : __fmul_rn(__fmul_rn(y, end.rescale[h]), end.inverse[h]);
        }
      }
      if (args_.o_rope.cos_table != nullptr && !end.none[h]) {
        turn(row, piece, tile, h);
      }
      if (args_.wide_output) {
        store_wide(row, at[h] + 8 * piece, at[h] >= 0);
      } else {
        store_narrow(row, at[h] + 8 * piece, at[h] >= 0);
      }
    }
  }

 private:
  // R12 of a row's group of pieces; a lane has both of a pair.
  __device__ __forceinline__ void turn(float (&row)[kGroup][2], int piece, const MqaTile& tile, int h) const {
    const int pairs = args_.o_rope.rotary_dim / 2;
    const int first = consumer_ * MqaTiling::kColumns + 8 * piece + thread_index() % 4 * 2;
    if (first + 8 * (kGroup - 1) - MqaTiling::kValueDims + 2 * pairs < 0) {
      return;
    }
    const Place where = place_of(tile);
    if (!where.stored[h]) {
      return;
    }
    const int64_t sequence = args_.cu_seqlens_q != nullptr ? 0 : where.batch * args_.seqlen_q;
    const int position = __ldg(args_.o_rope.positions + sequence + where.token[h]);
    const bool known = position >= 0 && position < args_.o_rope.num_positions;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int pair = (first + 8 * i - MqaTiling::kValueDims) / 2 + pairs;
      if (pair >= 0) {
        const int64_t at = int64_t{position} * pairs + pair;
        const float nan = __uint_as_float(0x7fc00000U);
        turn_back(row[i][0], row[i][1], known ? __ldg(args_.o_rope.cos_table + at) : nan,
                  known ? __ldg(args_.o_rope.sin_table + at) : nan);
      }
    }
  }
  __device__ __forceinline__ void store_scalars(float m, float l, bool empty, const Place& where, int h) const {
    if (thread_index() % 4 != 0) {
      return;
    }
    const auto put = [&](const tessera_row_scalars& to, float value) {
      if (to.data != nullptr) {
        to.data[where.batch * to.stride_batch + where.token[h] * to.stride_token + where.head[h] * to.stride_head] =
            value;
      }
    };
    const float m_log2 = empty ? m : __fsub_rn(m, args_.bias);
    put(args_.lse, empty ? m : __fmul_rn(__fadd_rn(soft_log2(l), m_log2), kLn2));
    put(args_.row_max, m_log2);
    put(args_.row_sum, empty ? 0.0F : l);
  }
  // A lane's columns are 8 i + 2 q and the next of piece i.
  __device__ __forceinline__ void store_wide(const float (&x)[kGroup][2], int64_t at, bool stored) const {
    float* const o = static_cast<float*>(args_.o) + at + thread_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (stored) {  // -0 as +0
        asm volatile("st.global.cs.v2.f32 [%0], {%1, %2};" ::"l"(o + 8 * i), "f"(__fadd_rn(x[i][0], 0.0F)),
                     "f"(__fadd_rn(x[i][1], 0.0F))
                     : "memory");
      }
    }
  }
  __device__ __forceinline__ void store_narrow(const float (&x)[kGroup][2], int64_t at, bool stored) const {
    uint32_t pair[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      pair[i] = finish_pair<kElement>(x[i][0], x[i][1]);
    }
    const uint4 row = transpose_quad(pair[0], pair[1], pair[2], pair[3]);
    if (stored) {
      // Said in assembly, because ptxas takes the store apart into four otherwise.
      asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(static_cast<uint16_t*>(args_.o) + at +
                                                                       thread_index() % 4 * 8),
                   "r"(row.x), "r"(row.y), "r"(row.z), "r"(row.w)
                   : "memory");
    }
  }

  const MqaArguments& args_;
  int consumer_;
};

}  // namespace tessera::sm90
