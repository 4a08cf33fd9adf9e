// What a consumer does with its O at the end of a chunk (R8) and of a tile (R9). The chained O of chunks and
// superchunks lies in global scratch; each thread reads and writes only what it wrote itself.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_prefill_512/config.h"
#include "kernels/sm90/fmha_prefill_512/tiles.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/quad.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

template <class Tag>
class Chain512 {
  using Layout = Layout512;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kOutputs = Layout::kColumns / 2;
  static constexpr int kPieces = kOutputs / 4;  // float4 per thread
  static constexpr int kBatch = 4;              // pieces at a time: with 16-bit O what a lane's 16 bytes are made of
  static constexpr int kSteps = kPieces / kBatch;

  struct Batch {
    float4 x[kBatch];
  };
  // On their way while one is worked on, at the end of a chunk (pieces) and of a tile (batches): as many as there are
  // registers for. One at a time would wait for memory 32 times.
  static constexpr int kChunkAhead = 8;
  static constexpr int kTileAhead = 3;

 public:
  // Chunk `index` of a tile whose first one is `first`, as it ended: m of R3, l of R7.
  struct Closed {
    float m[kRowsPerThread];
    float l[kRowsPerThread][kClassesPerThread];
    int index, first;
  };

  __device__ __forceinline__ Chain512(const Arguments512& args, int warpgroup, int rank)
      : args_(args), warpgroup_(warpgroup), rank_(rank) {}

  // A chunk has ended that is not the rows' last one.
  __device__ __forceinline__ void put_away(const float (&o)[kOutputs], const Closed& closed) const {
    StateRows rows = rows_of(closed);
    float4* const memory = place(args_.chains);
    const bool any = any_chunk(closed);
    const ChainWeights w = chain_before(any, memory, rows);
    store_state(memory, rows);
    float4 ahead[kChunkAhead];
#pragma unroll
    for (int i = 0; i < kChunkAhead; ++i) {
      ahead[i] = load_if(any, memory + i * 128);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 before = ahead[i % kChunkAhead];
      if (i + kChunkAhead < kPieces) {
        ahead[i % kChunkAhead] = load_if(any, memory + (i + kChunkAhead) * 128);
      }
      __stcg(memory + i * 128, chain_piece(before, piece(o, i), w));
    }
    if ((closed.index + 1) % kSuperchunkChunks == 0) {
      close_superchunk(any_superchunk(closed));
    }
  }

  // R9 of a consumer's rows of the tile, whose last chunk is `last`.
  __device__ __forceinline__ void finish(float (&o)[kOutputs], const Closed& last, const Tile512& tile) const {
    StateRows closed = rows_of(last);
    const bool any = any_chunk(last);
    const bool any_super = any_superchunk(last);
    TileEnd end;
    end.inner = chain_before(any, place(args_.chains), closed);
    end.outer = chain_before(any_super, place(args_.superchunks), closed);
    const RowPlace rows = place_of(tile);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const bool empty = closed.m[h] == minus_infinity();
      if (rows.stored(h)) {
        store_scalars(closed.m[h], closed.l[h], empty, rows, h);
      }
      end.none[h] = empty;
      end.rescale[h] = 1.0F;
      float sum = closed.l[h];
      if (args_.sinks != nullptr) {
        const float sink = __fmul_rn(args_.sinks[rows.stored(h) ? head_of(rows, h) : rows.head], kLog2E);
        end.none[h] = empty || sink == -minus_infinity();
        if (!end.none[h] && sink != minus_infinity()) {
          const float highest = fmaxf(closed.m[h], ceilf(sink));
          end.rescale[h] = drop_weight(__fsub_rn(highest, closed.m[h]));
          sum = __fadd_rn(__fmul_rn(sum, end.rescale[h]), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args_.bias)));
        }
      }
      end.inverse[h] = args_.unnormalized ? 1.0F : __frcp_rn(sum);
    }
    finish_outputs(o, end, any, any_super, rows);
  }

  // A tile whose rows see no key.
  __device__ __forceinline__ void store_nothing(const Tile512& tile) const {
    const RowPlace rows = place_of(tile);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      if (rows.stored(h)) {
        store_scalars(minus_infinity(), 0.0F, true, rows, h);
      }
    }
    const int64_t at[kRowsPerThread] = {output_at(rows, 0), output_at(rows, 1)};
    const float zeros[kBatch][4] = {};
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      store(zeros, rows, at, step);
    }
  }

 private:
  __device__ __forceinline__ static StateRows rows_of(const Closed& closed) {
    return {{closed.m[0], closed.m[1]}, {sum_classes(closed.l[0]), sum_classes(closed.l[1])}};
  }
  // Whether chunks of the same superchunk, or superchunks, are in memory.
  __device__ __forceinline__ static bool any_chunk(const Closed& closed) {
    return closed.index % kSuperchunkChunks != 0 && closed.index != closed.first;
  }
  __device__ __forceinline__ static bool any_superchunk(const Closed& closed) {
    return closed.index / kSuperchunkChunks != closed.first / kSuperchunkChunks;
  }

  // The first of a thread's two rows; the other is 8 further.
  struct RowPlace {
    int batch, head;
    int row, rows;  // of the sequence
    int first_token;

    __device__ __forceinline__ bool stored(int h) const { return row + 8 * h < rows; }
  };
  __device__ __forceinline__ int64_t token_of(const RowPlace& rows, int h) const {
    return int64_t{rows.first_token} + (rows.row + 8 * h) / args_.packed;
  }
  __device__ __forceinline__ int head_of(const RowPlace& rows, int h) const {
    return rows.head + (rows.row + 8 * h) % args_.packed;
  }
  __device__ __forceinline__ RowPlace place_of(const Tile512& tile) const {
    const int t = thread_index() % 128;
    const int4 where = tile.vector(Tile512::kBatch);
    return {where.x, where.y, where.z + warpgroup_ * Layout::kRows + t / 32 * 16 + t % 32 / 4, where.w,
            tile.get(Tile512::kFirstToken)};
  }
  // Packed Q and O are one sequence.
  __device__ __forceinline__ int64_t batch_of(const RowPlace& rows) const {
    return args_.ragged.cu_seqlens_q != nullptr ? 0 : rows.batch;
  }
  __device__ __forceinline__ int64_t output_at(const RowPlace& rows, int h) const {
    return batch_of(rows) * args_.o_stride_batch + token_of(rows, h) * args_.o_stride_token +
           head_of(rows, h) * args_.o_stride_head;
  }

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

  // What R9 needs beside O.
  struct TileEnd {
    ChainWeights inner, outer;
    float rescale[kRowsPerThread], inverse[kRowsPerThread];
    bool none[kRowsPerThread];
  };
  // O moves on by a batch in every step: a loop that is not unrolled cannot index registers, and one that is misses the
  // instruction cache all the way (36000 clocks).
  __device__ __forceinline__ void finish_outputs(float (&o)[kOutputs], const TileEnd& end, bool any, bool any_super,
                                                 const RowPlace& rows) const {
    const int64_t at[kRowsPerThread] = {output_at(rows, 0), output_at(rows, 1)};
    Batch ahead[kTileAhead];
#pragma unroll
    for (int step = 0; step < kTileAhead; ++step) {
      ahead[step] = fetch(any, place(args_.chains), step);
    }
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      float x[kBatch][4];
      const Batch chunks = ahead[0];
#pragma unroll
      for (int i = 0; i + 1 < kTileAhead; ++i) {
        ahead[i] = ahead[i + 1];
      }
      ahead[kTileAhead - 1] = fetch(any && step + kTileAhead < kSteps, place(args_.chains), step + kTileAhead);
      const Batch superchunks = fetch(any_super, place(args_.superchunks), step);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float4 y = chain_piece(chunks.x[i], piece(o, i), end.inner);
        y = chain_piece(superchunks.x[i], y, end.outer);
        const float all[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int h = j / 2;
          x[i][j] = end.none[h] ? 0.0F : __fmul_rn(__fmul_rn(all[j], end.rescale[h]), end.inverse[h]);
        }
      }
      store(x, rows, at, step);
#pragma unroll
      for (int i = 0; i + 4 * kBatch < kOutputs; ++i) {
        o[i] = o[i + 4 * kBatch];
      }
    }
  }

  // A batch, or zeros.
  __device__ __forceinline__ static Batch fetch(bool any, const float4* memory, int step) {
    Batch batch;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch.x[i] = load_if(any, memory + (step * kBatch + i) * 128);
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

  // The chunks in memory join the superchunks before them, if there are `any`.
  __device__ __forceinline__ void close_superchunk(bool any) const {
    const float4* const memory = place(args_.chains);
    float4* const all = place(args_.superchunks);
    const float4 state = __ldcg(memory + kPieces * 128);
    StateRows chunks{{state.x, state.y}, {state.z, state.w}};
    const ChainWeights w = chain_before(any, all, chunks);
#pragma unroll 4
    for (int i = 0; i < kPieces; ++i) {
      __stcg(all + i * 128, chain_piece(load_if(any, all + i * 128), __ldcg(memory + i * 128), w));
    }
    store_state(all, chunks);
  }

  __device__ __forceinline__ void store_scalars(float m, float l, bool empty, const RowPlace& rows, int h) const {
    if (thread_index() % 4 != 0 || rank_ != 0) {
      return;
    }
    const auto put = [&](const tessera_row_scalars& to, float value) {
      if (to.data != nullptr) {
        to.data[batch_of(rows) * to.stride_batch + token_of(rows, h) * to.stride_token +
                head_of(rows, h) * to.stride_head] = value;
      }
    };
    const float m_log2 = empty ? m : __fsub_rn(m, args_.bias);
    put(args_.lse, empty ? m : __fmul_rn(__fadd_rn(soft_log2(l), m_log2), kLn2));
    put(args_.row_max, m_log2);
    put(args_.row_sum, empty ? 0.0F : l);
  }

  // Both rows of a batch.
  __device__ __forceinline__ void store(const float (&x)[kBatch][4], const RowPlace& rows,
                                        const int64_t (&at)[kRowsPerThread], int step) const {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      if (args_.wide_output) {
        store_wide(x, h, at[h], step * kBatch, rows.stored(h));
      } else {
        store_narrow(x, h, at[h], step * kBatch, rows.stored(h));
      }
    }
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
