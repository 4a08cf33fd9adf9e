// What a consumer does with its O at the end of a chunk (R8) and of a tile (R9). What chunks, superchunks and segments
// have been chained to lies in global scratch; each thread reads and writes only what it wrote itself.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/quad.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

// m of R3 and l of R7 of a thread's rows in the chunk that ends.
struct MqaClosed {
  float m[kRowsPerThread];
  float l[kRowsPerThread][kClassesPerThread];
};

template <class Tag>
class MqaChain {
  using Layout = MqaLayout<Tag::kHeadDim>;
  using Words = MqaTileWords;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kOutputs = Layout::kColumns / 2;
  static constexpr int kPieces = kOutputs / 4;  // float4 per thread
  static constexpr int kGroup = 4;              // pieces that with 16-bit O are what a lane's 16 bytes are made of
  static constexpr int kBatch = 8;              // pieces at a time
  static constexpr int kSteps = kPieces / kBatch;
  static constexpr int kLevels = 3;

 public:
  static constexpr int kFinish = kLevels;  // where a tile's last chunk goes
  static constexpr int kNowhere = kLevels + 1;

  __device__ __forceinline__ MqaChain(const MqaArguments& args, uint32_t shared, int consumer)
      : args_(args), shared_(shared), consumer_(consumer) {}

  // A chunk ends. Its state is chained behind those of the levels up to `to` that are in `used` (bits), and goes to
  // level `to`, which is then used instead of them; or it becomes rows of O.
  __device__ __forceinline__ void close(float (&o)[kOutputs], const MqaClosed& closed, int to, uint32_t& used,
                                        const MqaTile& tile) const {
    StateRows rows{{closed.m[0], closed.m[1]}, {sum_classes(closed.l[0]), sum_classes(closed.l[1])}};
    uint32_t sources = used & ((2U << to) - 1);
    used = (used & ~sources) | (to == kFinish ? 0U : 1U << to);
    if (sources == 0 && to != kFinish) {
      float4* const memory = place(to);
      store_state(memory, rows);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        __stcg(memory + i * 128, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
      }
      return;
    }
    // There seldom is more than one source.
#pragma unroll 1
    for (; (sources & (sources - 1)) != 0; sources &= sources - 1) {
      walk(o, rows, __ffs(static_cast<int>(sources)) - 1, kNowhere, tile);
    }
    walk(o, rows, __ffs(static_cast<int>(sources)) - 1, to, tile);
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
    keep_outputs(where);
    float nothing[kOutputs] = {};
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      store_rows(nothing, step, end);
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

  // (rows, o) := chain(the state of level `from`, (rows, o)), if it is no level below 0 of which there are none; and to
  // level `to`, or O. O turns by some pieces in every step: a loop that is not unrolled cannot index registers, and one
  // that is misses the instruction cache all the way.
  __device__ __forceinline__ void walk(float (&o)[kOutputs], StateRows& rows, int from, int to,
                                       const MqaTile& tile) const {
    const bool any = from >= 0;
    const float4* const memory = place(max(from, 0));
    float4 ahead[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      ahead[i] = load_if(any, memory + i * 128);
    }
    ChainWeights w{{0.0F, 0.0F}, {1.0F, 1.0F}};  // leave O alone, but for the sign of a zero, which R9 drops
    if (any) {
      const float4 x = __ldcg(memory + kPieces * 128);
      StateRows first{{x.x, x.y}, {x.z, x.w}};
      w = chain_scalars(first, rows);
      rows = first;
    }
    End end{};
    if (to == kFinish) {
      const RowPlace where = place_of(tile);
      finish_rows(rows, where, end);
      keep_outputs(where);
    } else if (to != kNowhere) {
      store_state(place(to), rows);
    }
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        o[4 * i] = chain_output(ahead[i].x, o[4 * i], w, 0);
        o[4 * i + 1] = chain_output(ahead[i].y, o[4 * i + 1], w, 1);
        o[4 * i + 2] = chain_output(ahead[i].z, o[4 * i + 2], w, 2);
        o[4 * i + 3] = chain_output(ahead[i].w, o[4 * i + 3], w, 3);
      }
      const float4* const following = place(max(from, 0)) + (step + 1) * kBatch * 128;  // found again: few registers
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        ahead[i] = load_if(any && step + 1 < kSteps, following + i * 128);
      }
      if (to == kFinish) {
        store_rows(o, step, end);
      } else if (to != kNowhere) {
        float4* const state = place(to) + step * kBatch * 128;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          __stcg(state + i * 128, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
        }
      }
#pragma unroll
      for (int i = 0; i < 4 * kBatch; ++i) {
        const float turned = o[i];
#pragma unroll
        for (int j = i; j + 4 * kBatch < kOutputs; j += 4 * kBatch) {
          o[j] = o[j + 4 * kBatch];
        }
        o[kOutputs - 4 * kBatch + i] = turned;
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

  __device__ __forceinline__ static void store_state(float4* memory, const StateRows& rows) {
    __stcg(memory + kPieces * 128, make_float4(rows.m[0], rows.m[1], rows.l[0], rows.l[1]));
  }
  __device__ __forceinline__ float4* place(int level) const {
    return args_.levels[level] +
           static_cast<int64_t>(blockIdx.x * Layout::kConsumers + consumer_) * (kPieces + 1) * 128 +
           thread_index() % 128;
  }
  // Where a thread's rows are waits in shared memory, because registers have no room for it.
  __device__ __forceinline__ uint32_t outputs_at() const {
    return shared_ + Layout::kOutputsAt + (consumer_ * 128 + thread_index() % 128) * 16;
  }
  __device__ __forceinline__ void keep_outputs(const RowPlace& where) const {
    const int64_t at[kRowsPerThread] = {output_at(where, 0), output_at(where, 1)};
    store_piece(outputs_at(), make_uint4(static_cast<uint32_t>(at[0]), static_cast<uint32_t>(at[0] >> 32),
                                         static_cast<uint32_t>(at[1]), static_cast<uint32_t>(at[1] >> 32)));
  }
  // -1: the row does not exist.
  __device__ __forceinline__ int64_t output_at(const RowPlace& where, int h) const {
    if (!where.stored[h]) {
      return -1;
    }
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

  // R9 of both rows of the first pieces of O.
  __device__ __forceinline__ void store_rows(const float (&o)[kOutputs], int step, const End& end) const {
    const uint4 x = load_piece(outputs_at());
    const int64_t at[kRowsPerThread] = {static_cast<int64_t>(x.x | static_cast<uint64_t>(x.y) << 32),
                                        static_cast<int64_t>(x.z | static_cast<uint64_t>(x.w) << 32)};
#pragma unroll
    for (int first = 0; first < kBatch; first += kGroup) {
#pragma unroll
      for (int h = 0; h < kRowsPerThread; ++h) {
        float row[kGroup][2];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float y = o[4 * (first + i) + 2 * h + e];
            row[i][e] = end.none[h] ? 0.0F : __fmul_rn(__fmul_rn(y, end.rescale[h]), end.inverse[h]);
          }
        }
        const int64_t place = at[h] + 8 * (step * kBatch + first);
        if (args_.wide_output) {
          store_wide(row, place, at[h] >= 0);
        } else {
          store_narrow(row, place, at[h] >= 0);
        }
      }
    }
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
  uint32_t shared_;
  int consumer_;
};

}  // namespace tessera::sm90
