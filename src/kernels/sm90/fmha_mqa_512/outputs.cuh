// R9 and R12 for the rows of a tile as the threads of a multiplier hold them: a thread has two rows, the second one 8
// further, and of each 8-column piece of O two columns.
#pragma once

#include "contract/output_rope.h"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/quad.cuh"
#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

inline constexpr int kMqaPieceGroup = 4;  // pieces that with 16-bit O are what a lane's 16 bytes are made of

// The first kBy of O go behind the others.
template <int kBy, int kOutputs>
__device__ __forceinline__ void turn(float (&o)[kOutputs]) {
#pragma unroll
  for (int i = 0; i < kBy; ++i) {
    const float turned = o[i];
#pragma unroll
    for (int j = i; j + kBy < kOutputs; j += kBy) {
      o[j] = o[j + kBy];
    }
    o[kOutputs - kBy + i] = turned;
  }
}

template <class Tag>
class MqaOutputs {
  using Words = MqaTileWords;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;

  static constexpr int kGroup = kMqaPieceGroup;
  static constexpr int kGroupOutputs = 4 * kGroup;  // of a thread

  // A thread's rows.
  struct Place {
    int64_t batch;
    int token[kRowsPerThread], head[kRowsPerThread];
    bool stored[kRowsPerThread];
  };

 public:
  __device__ __forceinline__ MqaOutputs(const MqaArguments& args, int multiplier)
      : args_(args), multiplier_(multiplier) {}

  // R9 and R12 of `kPieces` pieces of O, the first of which is `piece`, of rows with these m and l, but for the
  // rounding. What is wanted of these two is stored, once per row if only one thread of those that have it `speaks`.
  template <int kPieces>
  __device__ __forceinline__ void finish(float (&o)[4 * kPieces], int piece, const StateRows& rows, bool speaks,
                                         const MqaTile& tile) const {
    // Places are found again for each step, so that they take no registers beside O.
    bool none[kRowsPerThread];
    finish_rows(o, rows, place_of(tile), speaks, none);
    if (args_.o_rope.cos_table != nullptr) {
      turn_rows(o, piece, place_of(tile));
    }
    if (__any_sync(kAllLanes, none[0] || none[1])) {
#pragma unroll
      for (int i = 0; i < 4 * kPieces; ++i) {
        o[i] = none[i / 2 % 2] ? 0.0F : o[i];
      }
    }
  }

  // Rounds and stores them.
  template <int kPieces>
  __device__ __forceinline__ void store(const float (&o)[4 * kPieces], int piece, const MqaTile& tile) const {
    static_assert(kPieces % kGroup == 0);
    const Place where = place_of(tile);
    if (args_.wide_output) {
#pragma unroll
      for (int h = 0; h < kRowsPerThread; ++h) {
        if (where.stored[h]) {
          store_wide<kPieces>(o, row_at<float>(where, piece, h) + thread_index() % 4 * 2, h);
        }
      }
      return;
    }
    uint16_t* at[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      at[h] = row_at<uint16_t>(where, piece, h) + thread_index() % 4 * 8;
    }
#pragma unroll
    for (int i = 0; i < kPieces; i += kGroup) {
#pragma unroll
      for (int h = 0; h < kRowsPerThread; ++h) {
        store_narrow(&o[4 * i], at[h] + MqaTiling::column_of_piece(0, i), where.stored[h], h);
      }
    }
  }

  // The same of all of a multiplier's pieces by the copy engine, as MqaArguments::boxed_output allows it: from `room`
  // in shared memory, where its groups of columns of a granule are. Stores of rows take as long as two granules.
  // Returns when `room` is free for the thread; `barrier` is a named one of the 128 threads.
  template <int kPieces>
  __device__ __forceinline__ void store_boxes(const float (&o)[4 * kPieces], const MqaTile& tile, uint32_t room,
                                              uint32_t group_step, uint32_t barrier) const {
    constexpr int kPanelPieces = kPanelColumns / 8;
    constexpr int kGroupPanels = MqaTiling::kGroupColumns / kPanelColumns;
    static_assert(kPieces == MqaTiling::kColumns / 8);
    const auto panel_at = [&](int panel) {
      return room + panel / kGroupPanels * group_step +
             static_cast<uint32_t>(panel % kGroupPanels * panel_bytes(MqaTiling::kRows));
    };
    const int t = thread_index() % 128;
    const int lane = t % 32;
    const int row = t / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < kPieces; i += 2) {
      const uint32_t pairs[4] = {
          finish_pair<kElement>(o[4 * i], o[4 * i + 1]), finish_pair<kElement>(o[4 * i + 2], o[4 * i + 3]),
          finish_pair<kElement>(o[4 * i + 4], o[4 * i + 5]), finish_pair<kElement>(o[4 * i + 6], o[4 * i + 7])};
      store_matrices(
          panel_at(i / kPanelPieces) + swizzled_offset(MqaTiling::kRows, row, (i % kPanelPieces + lane / 16) * 8),
          pairs);
    }
    fence_async_proxy();
    named_barrier_sync(barrier, 128);
    if (t == 0) {
      const int first = tile.get(Words::kFirstRow);
      const int behind = divide(first, args_.heads);
      const int head = first - behind * static_cast<int>(args_.heads.value);
      const int token = tile.get(Words::kTensorToken) + behind;
      const int batch = args_.cu_seqlens_q != nullptr ? 0 : tile.get(Words::kBatch);  // packed rows are of one batch
#pragma unroll
      for (int panel = 0; panel < kPieces / kPanelPieces; ++panel) {
        store_box_as(&args_.o_map, panel_at(panel), MqaTiling::column_of_piece(multiplier_, panel * kPanelPieces), head,
                     token, batch, read_once_policy());
      }
      store_commit();
      store_wait_read<>();
    }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ Place place_of(const MqaTile& of) const {
    const MqaTile tile{static_cast<uint32_t>(opaque(static_cast<int>(of.address)))};
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
  // A row of O, from the multiplier's piece `piece` on.
  template <class T>
  __device__ __forceinline__ T* row_at(const Place& where, int piece, int h) const {
    return static_cast<T*>(args_.o) + where.batch * args_.o_stride_batch + where.token[h] * args_.o_stride_token +
           where.head[h] * args_.o_stride_head + MqaTiling::column_of_piece(multiplier_, piece);
  }

  // R9 but for the rounding to the dtype and the zeros of rows that have `none`.
  template <int kOutputs>
  __device__ __forceinline__ void finish_rows(float (&o)[kOutputs], const StateRows& rows, const Place& where,
                                              bool speaks, bool (&none)[kRowsPerThread]) const {
    float factor[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const bool empty = rows.m[h] == minus_infinity();
      if (where.stored[h] && speaks) {
        store_scalars(rows.m[h], rows.l[h], empty, where, h);
      }
      none[h] = empty;
      float sum = rows.l[h];
      if (args_.sinks != nullptr) {
        const float sink = __fmul_rn(args_.sinks[where.stored[h] ? where.head[h] : 0], kLog2E);
        none[h] = empty || sink == -minus_infinity();
        if (!none[h] && sink != minus_infinity()) {
          const float highest = fmaxf(rows.m[h], ceilf(sink));
          const float rescale = drop_weight(__fsub_rn(highest, rows.m[h]));
          sum = __fadd_rn(__fmul_rn(sum, rescale), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args_.bias)));
          multiply_row(o, rescale, h);
        }
      }
      factor[h] = args_.unnormalized ? 1.0F : __frcp_rn(sum);
    }
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      multiply_row(o, factor[h], h);
    }
  }
  template <int kOutputs>
  __device__ __forceinline__ static void multiply_row(float (&o)[kOutputs], float factor, int h) {
#pragma unroll
    for (int i = 2 * h; i < kOutputs; i += 4) {
      o[i] = __fmul_rn(o[i], factor);
      o[i + 1] = __fmul_rn(o[i + 1], factor);
    }
  }

  // R12; a lane has both of a pair. Group by group, where O turns until it is what it was: unrolled this would be much
  // code for something that few ask for.
  template <int kOutputs>
  __device__ __forceinline__ void turn_rows(float (&o)[kOutputs], int piece, const Place& where) const {
    const int pairs = args_.o_rope.rotary_dim / 2;
    const int behind = pairs - MqaTiling::kValueDims / 2 + thread_index() % 4;
    const int64_t sequence = args_.cu_seqlens_q != nullptr ? 0 : where.batch * args_.seqlen_q;
    int position[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      position[h] = where.stored[h] ? __ldg(args_.o_rope.positions + sequence + where.token[h]) : -1;
    }
#pragma unroll 1
    for (int group = 0; group < kOutputs / kGroupOutputs; ++group) {
      int pair = MqaTiling::column_of_piece(multiplier_, piece + group * kGroup) / 2 + behind;
#pragma unroll
      for (int i = 0; i < kGroup; ++i, pair += 4) {
#pragma unroll
        for (int h = 0; h < kRowsPerThread; ++h) {
          const bool known = position[h] >= 0 && position[h] < args_.o_rope.num_positions;
          const int64_t at = int64_t{position[h]} * pairs + pair;
          const float nan = __uint_as_float(0x7fc00000U);
          if (pair >= 0) {
            turn_back(o[4 * i + 2 * h], o[4 * i + 2 * h + 1], known ? __ldg(args_.o_rope.cos_table + at) : nan,
                      known ? __ldg(args_.o_rope.sin_table + at) : nan);
          }
        }
      }
      turn<kGroupOutputs>(o);
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
  // A row, of whose pieces a lane has two columns; `row` are its own ones of the first.
  template <int kPieces>
  __device__ __forceinline__ static void store_wide(const float (&x)[4 * kPieces], float* row, int h) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {  // -0 as +0
      asm volatile("st.global.cs.v2.f32 [%0], {%1, %2};" ::"l"(row + MqaTiling::column_of_piece(0, i)),
                   "f"(__fadd_rn(x[4 * i + 2 * h], 0.0F)), "f"(__fadd_rn(x[4 * i + 2 * h + 1], 0.0F))
                   : "memory");
    }
  }
  // A group of pieces, of which a lane stores one.
  __device__ __forceinline__ static void store_narrow(const float* x, uint16_t* to, bool stored, int h) {
    uint32_t pair[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      pair[i] = finish_pair<kElement>(x[4 * i + 2 * h], x[4 * i + 2 * h + 1]);
    }
    const uint4 row = transpose_quad(pair[0], pair[1], pair[2], pair[3]);
    // Said in assembly, because ptxas takes the store apart into four otherwise; and predicated, because a branch would
    // be one for each.
    asm volatile(
        "{\n"
        ".reg .pred stored;\n"
        "setp.ne.u32 stored, %5, 0;\n"
        "@stored st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};\n"
        "}\n" ::"l"(to),
        "r"(row.x), "r"(row.y), "r"(row.z), "r"(row.w), "r"(static_cast<uint32_t>(stored))
        : "memory");
  }

  const MqaArguments& args_;
  int multiplier_;
};

}  // namespace tessera::sm90
