// What a multiplier does with its O at the end of a chunk (R8) and of a tile (R9). What chunks, superchunks and segments
// have been chained to lies in global scratch; each thread reads and writes only what it wrote itself. Of a tile that
// several blocks share every chunk's state goes there, and combine.cuh does the rest.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_mqa_512/outputs.cuh"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

// A multiplier's part of a state in global memory: float4 per thread, pieces of O and behind them m and l of both rows.
struct MqaState {
  static constexpr int kPieces = MqaTiling::kColumns / 8;
  static constexpr int64_t kStride = int64_t{kPieces + 1} * 128;  // of multipliers, each of which has 128 threads

  static __device__ __forceinline__ float4* at(float4* states, int64_t state, int multiplier) {
    return states + (state * MqaTiling::kMultipliers + multiplier) * kStride + thread_index() % 128;
  }
};

template <class Tag>
class MqaChain {
  using Layout = MqaLayout<Tag::kHeadDim>;
  using Words = MqaTileWords;
  using Outputs = MqaOutputs<Tag>;
  static constexpr int kOutputs = Layout::kColumns / 2;
  static constexpr int kPieces = MqaState::kPieces;
  static constexpr int kBatch = 2;  // pieces on their way
  static constexpr int kSteps = kPieces / kBatch;

 public:
  __device__ __forceinline__ MqaChain(const MqaArguments& args, int multiplier)
      : args_(args), multiplier_(multiplier) {}

  // A chunk ends. Its state is chained behind those of the levels up to `to` that are in `used` (bits), and goes to
  // level `to`, which is then used instead of them; or it becomes rows of O. If the tile is shared, it goes to a place
  // of its own, and `used` counts these.
  __device__ __forceinline__ void close(float (&o)[kOutputs], StateRows& rows, int to, uint32_t& used,
                                        const MqaTile& tile) const {
    const int first_state = uniform(tile.get(Words::kState));
    if (first_state >= 0) {
      store_state(o, rows, MqaState::at(args_.states, int64_t{first_state} + used, multiplier_));
      ++used;
      return;
    }
    uint32_t sources = used & ((2U << to) - 1);
    used = (used & ~sources) | (to == kMqaFinish ? 0U : 1U << to);
#pragma unroll 1
    for (; sources != 0; sources &= sources - 1) {
      chain(o, rows, place(__ffs(static_cast<int>(sources)) - 1));
    }
    if (to == kMqaFinish) {
      Outputs(args_, multiplier_).template finish<kPieces>(o, 0, rows, multiplier_ == 0, tile);
    } else {
      store_state(o, rows, place(to));
    }
  }

 private:
  // (rows, o) := chain(the state in memory, (rows, o)). O turns by some pieces in every step: a loop that is not unrolled
  // cannot index registers, and ptxas spills in one that is.
  __device__ __forceinline__ static void chain(float (&o)[kOutputs], StateRows& rows, const float4* memory) {
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
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        o[4 * i] = chain_output(ahead[i].x, o[4 * i], w, 0);
        o[4 * i + 1] = chain_output(ahead[i].y, o[4 * i + 1], w, 1);
        o[4 * i + 2] = chain_output(ahead[i].z, o[4 * i + 2], w, 2);
        o[4 * i + 3] = chain_output(ahead[i].w, o[4 * i + 3], w, 3);
      }
      memory += kBatch * 128;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        ahead[i] = load_if(step + 1 < kSteps, memory + i * 128);
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
  __device__ __forceinline__ static void store_state(const float (&o)[kOutputs], const StateRows& rows,
                                                     float4* memory) {
    __stcg(memory + kPieces * 128, make_float4(rows.m[0], rows.m[1], rows.l[0], rows.l[1]));
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      __stcg(memory + i * 128, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    }
  }
  __device__ __forceinline__ float4* place(int level) const {
    return MqaState::at(args_.levels[level], blockIdx.x, multiplier_);
  }

  const MqaArguments& args_;
  int multiplier_;
};

}  // namespace tessera::sm90
