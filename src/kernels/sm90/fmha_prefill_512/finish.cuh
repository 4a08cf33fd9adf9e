// What a consumer does with its O at the end of a chunk (R8) and of a tile (R9). The chained O of chunks and
// superchunks lies in global scratch; each thread reads and writes only what it wrote itself.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_prefill_512/config.h"
#include "kernels/sm90/fmha_prefill_512/copies.cuh"
#include "kernels/sm90/fmha_prefill_512/tiles.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

// Lane q of four gets element q of each lane's four, ordered by lane. Of several such fours.
template <int kCount>
__device__ __forceinline__ void transpose_quads(uint4 (&v)[kCount]) {
  const bool odd = (threadIdx.x & 1U) != 0;
  const bool high = (threadIdx.x & 2U) != 0;
  const auto swap = [](bool upper, uint32_t& low, uint32_t& other, int lanes) {
    const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? low : other, lanes);
    (upper ? low : other) = got;
  };
#pragma unroll
  for (uint4& x : v) {
    swap(odd, x.x, x.y, 1);
    swap(odd, x.z, x.w, 1);
  }
#pragma unroll
  for (uint4& x : v) {
    swap(high, x.x, x.z, 2);
    swap(high, x.y, x.w, 2);
  }
}

template <class Tag>
class Chain512 {
  using Layout = Layout512;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kOutputs = Layout::kColumns / 2;
  static constexpr int kPieces = kOutputs / 4;  // float4 per thread
  static constexpr int kBatch = 4;              // pieces at a time: with 16-bit O what a lane's 16 bytes are made of
  static constexpr int kSteps = kPieces / kBatch;
  static constexpr int kStepsOfTurn = 4;  // of R9
  // Pieces of the chained O on their way while one is worked on, at the end of a chunk: as many as there are registers
  // for. One at a time would wait for memory 32 times.
  static constexpr int kAhead = 8;
  // Pieces that are read from shared memory at a time, at the end of a tile: else ptxas reads all of them first.
  static constexpr int kGroup = 8;

 public:
  // Chunk `index` of a tile whose first one is `first`, as it ended: m of R3, l of R7.
  struct Closed {
    float m[kRowsPerThread];
    float l[kRowsPerThread][kClassesPerThread];
    int index, first;
  };

  __device__ __forceinline__ Chain512(const Arguments512& args, uint32_t shared, int warpgroup, int rank)
      : args_(args), shared_(shared), warpgroup_(warpgroup), rank_(rank) {}

  // Q is not needed any more in this tile, whose last chunk is `index`, by any warp of the warpgroup: the chained O
  // comes to where it was, while the last products run.
  __device__ __forceinline__ void fetch_ahead(int index, int first) const {
    if (any_chunk(index, first)) {
      begin_fetch(place(args_.chains));
    } else if (!any_superchunk(index, first)) {
      give_query_back();
    }
  }

  // Q of the next tile may come: all of the warp have read what fetch_ahead() had copied, if it had.
  __device__ __forceinline__ void give_query_back() const {
    if (args_.packed == 1) {
      __syncwarp();
      if (thread_index() % 32 == 0) {
        barrier_arrive(shared_ + Layout::kQEmpty + 8 * warpgroup_);
      }
    }
  }

  // A chunk has ended that is not the rows' last one.
  __device__ __forceinline__ void put_away(const float (&o)[kOutputs], const Closed& closed) const {
    StateRows rows = rows_of(closed);
    float4* const memory = place(args_.chains);
    const bool any = any_chunk(closed.index, closed.first);
    const ChainWeights w = chain_before(any, memory, rows);
    store_state(memory, rows);
    float4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ahead[i] = load_if(any, memory + i * 128);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 before = ahead[i % kAhead];
      if (i + kAhead < kPieces) {
        ahead[i % kAhead] = load_if(any, memory + (i + kAhead) * 128);
      }
      __stcg(memory + i * 128, chain_piece(before, piece(o, i), w));
    }
    if ((closed.index + 1) % kSuperchunkChunks == 0) {
      close_superchunk(any_superchunk(closed.index, closed.first));
    }
  }

  // R9 of a consumer's rows of the tile, whose last chunk is `last`. O, which no one needs any more, changes.
  __device__ __forceinline__ void finish(float (&o)[kOutputs], const Closed& last, const Tile512& tile) const {
    StateRows closed = rows_of(last);
    if (any_chunk(last.index, last.first)) {
      chain_fetched(place(args_.chains), closed, o);
    }
    if (any_superchunk(last.index, last.first)) {
      begin_fetch(place(args_.superchunks));
      chain_fetched(place(args_.superchunks), closed, o);
    }
    if (any_chunk(last.index, last.first) || any_superchunk(last.index, last.first)) {
      fence_async_proxy();  // what the thread has copied there, before what the copy engine will write
      give_query_back();
    }
    TileEnd end;
    const RowPlace rows = place_of(tile);
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const bool empty = closed.m[h] == minus_infinity();
      if (rows.stored(h)) {
        store_scalars(closed.m[h], closed.l[h], empty, rows, h);
      }
      end.none[h] = empty;
      float sum = closed.l[h];
      if (args_.sinks != nullptr) {
        const float sink = __fmul_rn(args_.sinks[rows.stored(h) ? head_of(rows, h) : rows.head], kLog2E);
        end.none[h] = empty || sink == -minus_infinity();
        if (!end.none[h] && sink != minus_infinity()) {
          const float highest = fmaxf(closed.m[h], ceilf(sink));
          const float rescale = drop_weight(__fsub_rn(highest, closed.m[h]));
          sum = __fadd_rn(__fmul_rn(sum, rescale), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args_.bias)));
#pragma unroll
          for (int i = 0; i < kOutputs; ++i) {
            o[i] = i / 2 % 2 == h ? __fmul_rn(o[i], rescale) : o[i];
          }
        }
      }
      end.inverse[h] = args_.unnormalized ? 1.0F : __frcp_rn(sum);
    }
    finish_outputs(o, end, rows);
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
    const float zeros[4 * kBatch] = {};
    const TileEnd end{{}, {true, true}};
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      store(zeros, end, rows, at, step);
    }
  }

 private:
  __device__ __forceinline__ static StateRows rows_of(const Closed& closed) {
    return {{closed.m[0], closed.m[1]}, {sum_classes(closed.l[0]), sum_classes(closed.l[1])}};
  }
  // Whether chunks of the same superchunk, or superchunks, are in memory.
  __device__ __forceinline__ static bool any_chunk(int index, int first) {
    return index % kSuperchunkChunks != 0 && index != first;
  }
  __device__ __forceinline__ static bool any_superchunk(int index, int first) {
    return index / kSuperchunkChunks != first / kSuperchunkChunks;
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
  // The thread's part of the space of Q.
  __device__ __forceinline__ uint32_t fetched_at() const {
    return shared_ + Layout::kQ + warpgroup_ * Layout::kQBytes + thread_index() % 128 * 16;
  }
  // O in memory to there.
  __device__ __forceinline__ void begin_fetch(const float4* memory) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      copy_piece(fetched_at() + i * 2048, memory + i * 128);
    }
  }
  __device__ __forceinline__ float4* place(float4* scratch) const {
    return scratch + static_cast<int64_t>(blockIdx.x * Layout::kConsumers + warpgroup_) * (kPieces + 1) * 128 +
           thread_index() % 128;
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
  // O := chain(O that begin_fetch() has had copied, O), and its scalars.
  __device__ __forceinline__ void chain_fetched(const float4* memory, StateRows& state, float (&o)[kOutputs]) const {
    const ChainWeights w = chain_before(true, memory, state);
    copies_wait();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 chained = chain_piece(load_quad(fetched_at() + i * 2048), piece(o, i), w);
      o[4 * i] = chained.x;
      o[4 * i + 1] = chained.y;
      o[4 * i + 2] = chained.z;
      o[4 * i + 3] = chained.w;
      if (i % kGroup == kGroup - 1) {
        __syncwarp();
      }
    }
  }

  // What R9 needs beside O.
  struct TileEnd {
    float inverse[kRowsPerThread];
    bool none[kRowsPerThread];
  };
  // In two turns of a loop: code that runs once per tile misses the instruction cache all the way.
  __device__ __forceinline__ void finish_outputs(float (&o)[kOutputs], const TileEnd& end, const RowPlace& rows) const {
    const int64_t at[kRowsPerThread] = {output_at(rows, 0), output_at(rows, 1)};
    constexpr int kTurn = kStepsOfTurn * 4 * kBatch;
#pragma unroll 1
    for (int first = 0; first < kSteps; first += kStepsOfTurn) {
#pragma unroll
      for (int step = 0; step < kStepsOfTurn; ++step) {
        store(&o[step * 4 * kBatch], end, rows, at, first + step);
      }
#pragma unroll
      for (int i = 0; i + kTurn < kOutputs; ++i) {
        o[i] = o[i + kTurn];
      }
    }
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
  __device__ __forceinline__ void store(const float* o, const TileEnd& end, const RowPlace& rows,
                                        const int64_t (&at)[kRowsPerThread], int step) const {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      if (args_.wide_output) {
        store_wide(o + 2 * h, end.inverse[h], end.none[h], at[h], step * kBatch, rows.stored(h));
      } else {
        store_narrow(o + 2 * h, end.inverse[h], end.none[h], at[h], step * kBatch, rows.stored(h));
      }
    }
  }
  // A row of four pieces: a lane's columns are 8 i + 2 q and the next of piece i.
  __device__ __forceinline__ void store_wide(const float* o, float inverse, bool none, int64_t at, int first,
                                             bool stored) const {
    float* const to = static_cast<float*>(args_.o) + at;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int column = rank_ * Layout::kColumns + 8 * (first + i) + thread_index() % 4 * 2;
      if (stored && column < args_.dims_v) {
        const auto value = [&](float x) { return none ? 0.0F : __fadd_rn(__fmul_rn(x, inverse), 0.0F); };  // -0 as +0
        *reinterpret_cast<float2*>(to + column) = make_float2(value(o[4 * i]), value(o[4 * i + 1]));
      }
    }
  }
  __device__ __forceinline__ void store_narrow(const float* o, float inverse, bool none, int64_t at, int first,
                                               bool stored) const {
    uint32_t pair[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t both = finish_pair<kElement>(__fmul_rn(o[4 * i], inverse), __fmul_rn(o[4 * i + 1], inverse));
      pair[i] = none ? 0 : both;
    }
    uint4 row[] = {make_uint4(pair[0], pair[1], pair[2], pair[3])};
    transpose_quads(row);
    const int column = rank_ * Layout::kColumns + 8 * (first + thread_index() % 4);
    if (stored && column < args_.dims_v) {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(args_.o) + at + column) = row[0];
    }
  }

  const Arguments512& args_;
  uint32_t shared_;
  int warpgroup_, rank_;
};

}  // namespace tessera::sm90
