// What a multiplier does with its O at the end of a chunk (R8) and of a tile (R9). What chunks, superchunks and
// segments have been chained to lies in global scratch; each thread reads and writes only what it wrote itself. Of a
// tile that several blocks share every chunk's state goes there, and combine.cuh does the rest.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/fmha_mqa_512/copies.cuh"
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
  static constexpr int kBatch = 4;  // pieces that arrive together
  static constexpr int kBatches = kPieces / kBatch;
  static constexpr int kPlaces = 4;  // of batches in the own columns of a granule
  static constexpr int kPieceBytes = 128 * 16;
  static constexpr int kBatchBytes = kBatch * kPieceBytes;
  static_assert(kPlaces * kBatchBytes == Layout::kOwnGroups * Layout::kGroupPanels * panel_bytes(Layout::kGranule));

 public:
  __device__ __forceinline__ MqaChain(const MqaArguments& args, int multiplier)
      : args_(args), multiplier_(multiplier) {}

  // A chunk ends. Its state is chained behind those of the levels up to `to` that are in `used` (bits), and goes to
  // level `to`, which is then used instead of them; or it becomes rows of O. If the tile is shared, it goes to a place
  // of its own, and `used` counts these. The own columns of the last granule, at the shared address `room`, have been
  // read by the thread; release() gives them back.
  template <class Release>
  __device__ __forceinline__ void close(float (&o)[kOutputs], StateRows& rows, int to, uint32_t& used,
                                        const MqaTile& tile, uint32_t room, const Release& release) const {
    const int first_state = uniform(tile.get(Words::kState));
    const bool shared = first_state >= 0;
    const uint32_t behind = shared ? 0U : (2U << to) - 1;  // levels
    if ((used & behind) != 0) {
      // By the others, too. (Two numbers of barriers rather than one that would be kept in a register.)
      if (multiplier_ == 0) {
        named_barrier_sync(kBarrier, 128);
      } else {
        named_barrier_sync(kBarrier + 1, 128);
      }
    }
#pragma unroll 1
    while ((used & behind) != 0) {
      chain(o, rows, __ffs(static_cast<int>(used)) - 1, room + thread_index() % 128 * 16);
      used &= used - 1;
    }
    release();
    if (!shared && to == kMqaFinish) {
      Outputs(args_, multiplier_).template finish<kPieces>(o, 0, rows, multiplier_ == 0, tile);
      return;
    }
    store_state(o, rows, shared ? MqaState::at(args_.states, int64_t{first_state} + used, multiplier_) : place(to));
    used = shared ? used + 1 : used | 1U << to;
  }

 private:
  static constexpr uint32_t kBarrier = 1 + Layout::kScorers;  // named barrier of the first multiplier

  // (rows, o) := chain(the state of a level, (rows, o)), whose pieces come by way of shared memory: registers have no
  // room for enough of them on their way. Every thread gets what it has written itself. O turns by a batch in every
  // step: a loop that is not unrolled cannot index registers, and ptxas spills in one that is.
  __device__ __forceinline__ void chain(float (&o)[kOutputs], StateRows& rows, int level, uint32_t room) const {
    const float4* const memory = place(level);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      ask(room + i * kBatchBytes, memory + i * kBatch * 128);
    }
    const float4 x = __ldcg(memory + kPieces * 128);
    StateRows first{{x.x, x.y}, {x.z, x.w}};
    const ChainWeights w = chain_scalars(first, rows);
    rows = first;
    // What chain_output() does, in two passes: otherwise ptxas begins with half of the products, and has no registers
    // for them.
    if (__any_sync(kAllLanes, w.second[0] != 1.0F || w.second[1] != 1.0F)) {
      rescale_output(o, w.second);
    }
    chain_batches<0>(o, w, level, room);
  }
  // The batches from kNumber on. A branch after each, which is always taken and nobody knows it: ptxas would begin with
  // many of them at once.
  template <int kNumber>
  __device__ __forceinline__ void chain_batches(float (&o)[kOutputs], const ChainWeights& w, int level,
                                                uint32_t room) const {
    if constexpr (kNumber < kBatches) {
      wait_copies<kNumber + kPlaces <= kBatches ? kPlaces - 1 : 0>();
      const uint32_t to = room + kNumber % kPlaces * kBatchBytes;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float4 piece = load_quad(to + i * kPieceBytes);
        float* const own = &o[4 * (kNumber * kBatch + i)];
        own[0] = __fmaf_rn(piece.x, w.first[0], own[0]);
        own[1] = __fmaf_rn(piece.y, w.first[0], own[1]);
        own[2] = __fmaf_rn(piece.z, w.first[1], own[2]);
        own[3] = __fmaf_rn(piece.w, w.first[1], own[3]);
      }
      if constexpr (kNumber + kPlaces < kBatches) {
        ask(to, place(opaque(level)) + (kNumber + kPlaces) * kBatch * 128);  // found again: few registers
      }
      if (opaque(level) >= 0) {
        chain_batches<kNumber + 1>(o, w, level, room);
      }
    }
  }
  __device__ __forceinline__ static void ask(uint32_t to, const float4* from) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      copy_state_piece(to + i * kPieceBytes, from + i * 128);
    }
    commit_copies();
  }
  __device__ __forceinline__ static void copy_state_piece(uint32_t to, const float4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
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
