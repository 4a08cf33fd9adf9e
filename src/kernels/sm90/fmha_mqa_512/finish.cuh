// What a consumer does with its O at the end of a chunk (R8) and of a tile (R9). What chunks, superchunks and segments
// have been chained to lies in global scratch; each thread reads and writes only what it wrote itself. Of a tile that
// several blocks share every chunk's state goes there, and combine.cuh does the rest.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_mqa_512/outputs.cuh"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

// m of R3 and l of R7 of a thread's rows in the chunk that ends.
struct MqaClosed {
  float m[kRowsPerThread];
  float l[kRowsPerThread][kClassesPerThread];
};

// A consumer's part of a state in global memory: float4 per thread, pieces of O and behind them m and l of both rows.
struct MqaState {
  static constexpr int kPieces = MqaTiling::kColumns / 8;
  static constexpr int64_t kStride = int64_t{kPieces + 1} * 128;  // of consumers, each of which has 128 threads

  static __device__ __forceinline__ float4* at(float4* states, int64_t state, int consumer) {
    return states + (state * MqaTiling::kConsumers + consumer) * kStride + thread_index() % 128;
  }
};

template <class Tag>
class MqaChain {
  using Layout = MqaLayout<Tag::kHeadDim>;
  using Words = MqaTileWords;
  using Outputs = MqaOutputs<Tag>;
  using End = typename Outputs::End;
  using Place = typename Outputs::Place;
  static constexpr int kOutputs = Layout::kColumns / 2;
  static constexpr int kPieces = MqaState::kPieces;
  static constexpr int kBatch = 8;  // pieces at a time
  static constexpr int kSteps = kPieces / kBatch;
  static constexpr int kLevels = 3;

 public:
  static constexpr int kFinish = kLevels;  // where a tile's last chunk goes
  static constexpr int kNowhere = kLevels + 1;

  __device__ __forceinline__ MqaChain(const MqaArguments& args, uint32_t shared, int consumer)
      : args_(args), shared_(shared), consumer_(consumer) {}

  // A chunk ends. Its state is chained behind those of the levels up to `to` that are in `used` (bits), and goes to
  // level `to`, which is then used instead of them; or it becomes rows of O. If the tile is shared, it goes to a place
  // of its own, and `used` counts these.
  __device__ __forceinline__ void close(float (&o)[kOutputs], const MqaClosed& closed, int to, uint32_t& used,
                                        const MqaTile& tile) const {
    StateRows rows{{closed.m[0], closed.m[1]}, {sum_classes(closed.l[0]), sum_classes(closed.l[1])}};
    const int first_state = uniform(tile.get(Words::kState));
    const bool alone = first_state < 0;
    uint32_t sources = alone ? used & ((2U << to) - 1) : 0U;
    if (!alone || (sources == 0 && to != kFinish)) {
      float4* const memory = alone ? place(to) : MqaState::at(args_.states, int64_t{first_state} + used, consumer_);
      used = alone ? used | 1U << to : used + 1;
      store_state(memory, rows);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        __stcg(memory + i * 128, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
      }
      return;
    }
    used = (used & ~sources) | (to == kFinish ? 0U : 1U << to);
    // There seldom is more than one source.
#pragma unroll 1
    for (; (sources & (sources - 1)) != 0; sources &= sources - 1) {
      walk(o, rows, __ffs(static_cast<int>(sources)) - 1, kNowhere, tile);
    }
    walk(o, rows, __ffs(static_cast<int>(sources)) - 1, to, tile);
  }

  // A tile whose rows see no key.
  __device__ __forceinline__ void store_nothing(const MqaTile& tile) const {
    const Outputs outputs(args_, consumer_);
    const Place where = outputs.place_of(tile);
    StateRows none;
    none.clear();
    End end;
    outputs.finish_rows(none, where, consumer_ == 0, end);
    keep_outputs(where);
    float nothing[kOutputs] = {};
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      store_rows(nothing, step, end, tile);
    }
  }

 private:
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
      const Outputs outputs(args_, consumer_);
      const Place where = outputs.place_of(tile);
      outputs.finish_rows(rows, where, consumer_ == 0, end);
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
        store_rows(o, step, end, tile);
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

  __device__ __forceinline__ static void store_state(float4* memory, const StateRows& rows) {
    __stcg(memory + kPieces * 128, make_float4(rows.m[0], rows.m[1], rows.l[0], rows.l[1]));
  }
  __device__ __forceinline__ float4* place(int level) const {
    return MqaState::at(args_.levels[level], blockIdx.x, consumer_);
  }
  // Where a thread's rows are waits in shared memory, because registers have no room for it.
  __device__ __forceinline__ uint32_t outputs_at() const {
    return shared_ + Layout::kOutputsAt + (consumer_ * 128 + thread_index() % 128) * 16;
  }
  __device__ __forceinline__ void keep_outputs(const Place& where) const {
    const Outputs outputs(args_, consumer_);
    const int64_t at[kRowsPerThread] = {outputs.output_at(where, 0), outputs.output_at(where, 1)};
    store_piece(outputs_at(), make_uint4(static_cast<uint32_t>(at[0]), static_cast<uint32_t>(at[0] >> 32),
                                         static_cast<uint32_t>(at[1]), static_cast<uint32_t>(at[1] >> 32)));
  }
  // R9 of both rows of the first pieces of O.
  __device__ __forceinline__ void store_rows(const float (&o)[kOutputs], int step, const End& end,
                                             const MqaTile& tile) const {
    const uint4 x = load_piece(outputs_at());
    const int64_t at[kRowsPerThread] = {static_cast<int64_t>(x.x | static_cast<uint64_t>(x.y) << 32),
                                        static_cast<int64_t>(x.z | static_cast<uint64_t>(x.w) << 32)};
#pragma unroll
    for (int first = 0; first < kBatch; first += kMqaPieceGroup) {
      Outputs(args_, consumer_).store_group(&o[4 * first], step * kBatch + first, at, tile, end);
    }
  }

  const MqaArguments& args_;
  uint32_t shared_;
  int consumer_;
};

}  // namespace tessera::sm90
