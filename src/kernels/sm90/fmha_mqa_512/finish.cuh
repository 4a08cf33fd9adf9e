// What a consumer does with its O at the end of a chunk (R8) and of a tile (R9). What chunks, superchunks and segments
// have been chained to lies in global scratch; each thread reads and writes only what it wrote itself.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/fmha_prefill_512/finish.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

// m of R3 and l of R7 of a thread's rows in the chunk that ends.
struct MqaClosed {
  float m[kRowsPerThread];
  float l[kRowsPerThread][kClassesPerThread];
};

template <class Tag>
class MqaChain {
  using Layout = MqaLayout;
  using Words = MqaTileWords;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kOutputs = Layout::kColumns / 2;
  static constexpr int kPieces = kOutputs / 4;  // float4 per thread
  static constexpr int kBatch = 4;              // pieces at a time: with 16-bit O what a lane's 16 bytes are made of
  static constexpr int kSteps = kPieces / kBatch;
  static constexpr int kLevels = 3;

 public:
  static constexpr int kFinish = kLevels;  // where a tile's last chunk goes

  __device__ __forceinline__ MqaChain(const MqaArguments& args, int consumer) : args_(args), consumer_(consumer) {}

  // A chunk ends. Its state is chained behind those of the levels up to `to` that are in `used` (bits), and goes to
  // level `to`, which is then used instead of them; or it becomes rows of O.
  __device__ __forceinline__ void close(float (&o)[kOutputs], const MqaClosed& closed, int to, uint32_t& used,
                                        const MqaTile& tile) const {
    StateRows rows{{closed.m[0], closed.m[1]}, {sum_classes(closed.l[0]), sum_classes(closed.l[1])}};
#pragma unroll 1
    for (int level = 0; level < kLevels && level <= to; ++level) {
      if ((used >> level & 1U) != 0) {
        chain_behind(o, rows, place(level));
      }
    }
    if (to == kFinish) {
      finish(o, rows, tile);
      return;
    }
    used = (used & ~((2U << to) - 1)) | 1U << to;
    float4* const memory = place(to);
    __stcg(memory + kPieces * 128, make_float4(rows.m[0], rows.m[1], rows.l[0], rows.l[1]));
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      __stcg(memory + i * 128, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    }
  }

  // A tile whose rows see no key.
  __device__ __forceinline__ void store_nothing(const MqaTile& tile) const {
    const RowPlace where = place_of(tile);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      if (where.stored[h]) {
        store_scalars(minus_infinity(), 0.0F, true, where, h);
      }
    }
    const End end{{0.0F, 0.0F}, {0.0F, 0.0F}, {true, true}};
    const int64_t at[kRowsPerThread] = {output_at(where, 0), output_at(where, 1)};
    const float zeros[4 * kBatch] = {};
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      store_rows(zeros, step, at, where.stored, end);
    }
  }

 private:
  // A thread's two rows, the second one 8 further.
  struct RowPlace {
    int64_t batch;
    int token[kRowsPerThread], head[kRowsPerThread];
    bool stored[kRowsPerThread];
  };
  // What R9 needs beside O.
  struct End {
    float rescale[kRowsPerThread], inverse[kRowsPerThread];
    bool none[kRowsPerThread];
  };

  __device__ __forceinline__ RowPlace place_of(const MqaTile& tile) const {
    const int t = thread_index() % 128;
    RowPlace where;
    where.batch = tile.get(Words::kBatch);
    const int first = tile.get(Words::kFirstRow) + t / 32 * 16 + t % 32 / 4;
    const int rows = tile.get(Words::kRows);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const int row = first + 8 * h;
      const int behind = divide(row, args_.heads);
      where.token[h] = tile.get(Words::kToken) + behind;
      where.head[h] = row - behind * static_cast<int>(args_.heads.value);
      where.stored[h] = row < rows;
    }
    return where;
  }

  // (rows, o) := chain(the state in memory, (rows, o)). O turns by a batch in every step: a loop that is not unrolled
  // cannot index registers, and one that is has no room for what is on its way.
  __device__ __forceinline__ static void chain_behind(float (&o)[kOutputs], StateRows& rows, const float4* memory) {
    float4 ahead[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      ahead[i] = load_if(true, memory + i * 128);
    }
    const float4 x = __ldcg(memory + kPieces * 128);
    StateRows first{{x.x, x.y}, {x.z, x.w}};
    const ChainWeights w = chain_scalars(first, rows);
    rows = first;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      float4 before[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        before[i] = ahead[i];
        ahead[i] = load_if(step + 1 < kSteps, memory + ((step + 1) * kBatch + i) * 128);
      }
      float turned[4 * kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        turned[4 * i] = chain_output(before[i].x, o[4 * i], w, 0);
        turned[4 * i + 1] = chain_output(before[i].y, o[4 * i + 1], w, 1);
        turned[4 * i + 2] = chain_output(before[i].z, o[4 * i + 2], w, 2);
        turned[4 * i + 3] = chain_output(before[i].w, o[4 * i + 3], w, 3);
      }
#pragma unroll
      for (int i = 0; i + 4 * kBatch < kOutputs; ++i) {
        o[i] = o[i + 4 * kBatch];
      }
#pragma unroll
      for (int i = 0; i < 4 * kBatch; ++i) {
        o[kOutputs - 4 * kBatch + i] = turned[i];
      }
    }
  }

  __device__ __forceinline__ void finish(float (&o)[kOutputs], const StateRows& rows, const MqaTile& tile) const {
    const RowPlace where = place_of(tile);
    End end;
    finish_rows(rows, where, end);
    const int64_t at[kRowsPerThread] = {output_at(where, 0), output_at(where, 1)};
    // O moves on by a batch in every step: a loop that is not unrolled cannot index registers, and one that is misses
    // the instruction cache all the way.
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      float x[4 * kBatch];
#pragma unroll
      for (int i = 0; i < 4 * kBatch; ++i) {
        x[i] = o[i];
      }
      store_rows(x, step, at, where.stored, end);
#pragma unroll
      for (int i = 0; i + 4 * kBatch < kOutputs; ++i) {
        o[i] = o[i + 4 * kBatch];
      }
    }
  }

  __device__ __forceinline__ void finish_rows(const StateRows& rows, const RowPlace& where, End& end) const {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const bool empty = rows.m[h] == minus_infinity();
      if (where.stored[h]) {
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

  __device__ __forceinline__ float4* place(int level) const {
    return args_.levels[level] +
           static_cast<int64_t>(blockIdx.x * Layout::kConsumers + consumer_) * (kPieces + 1) * 128 +
           thread_index() % 128;
  }
  __device__ __forceinline__ int64_t output_at(const RowPlace& where, int h) const {
    return where.batch * args_.o_stride_batch + where.token[h] * args_.o_stride_token +
           where.head[h] * args_.o_stride_head + consumer_ * Layout::kColumns;
  }

  __device__ __forceinline__ void store_scalars(float m, float l, bool empty, const RowPlace& where, int h) const {
    if (thread_index() % 4 != 0 || consumer_ != 0) {
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

  // R9 of both rows of a batch of pieces.
  __device__ __forceinline__ void store_rows(const float (&o)[4 * kBatch], int step,
                                             const int64_t (&at)[kRowsPerThread], const bool (&stored)[kRowsPerThread],
                                             const End& end) const {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      float x[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float y = o[4 * i + 2 * h + e];
          x[i][e] = end.none[h] ? 0.0F : __fmul_rn(__fmul_rn(y, end.rescale[h]), end.inverse[h]);
        }
      }
      if (args_.wide_output) {
        store_wide(x, at[h] + 8 * step * kBatch, stored[h]);
      } else {
        store_narrow(x, at[h] + 8 * step * kBatch, stored[h]);
      }
    }
  }
  // A lane's columns are 8 i + 2 q and the next of piece i.
  __device__ __forceinline__ void store_wide(const float (&x)[kBatch][2], int64_t at, bool stored) const {
    float* const o = static_cast<float*>(args_.o) + at + thread_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (stored) {  // -0 as +0
        *reinterpret_cast<float2*>(o + 8 * i) = make_float2(__fadd_rn(x[i][0], 0.0F), __fadd_rn(x[i][1], 0.0F));
      }
    }
  }
  __device__ __forceinline__ void store_narrow(const float (&x)[kBatch][2], int64_t at, bool stored) const {
    uint32_t pair[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      pair[i] = finish_pair<kElement>(x[i][0], x[i][1]);
    }
    const uint4 row = transpose_quad(pair[0], pair[1], pair[2], pair[3]);
    if (stored) {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(args_.o) + at + thread_index() % 4 * 8) = row;
    }
  }

  const MqaArguments& args_;
  int consumer_;
};

}  // namespace tessera::sm90
