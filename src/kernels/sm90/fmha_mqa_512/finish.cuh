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
  static_assert(kPlaces * kBatchBytes == Layout::kOwnGroups * Layout::kGroupBytes);
  // Where a batch arrives, from the multiplier's first group on.
  static constexpr int place_of_batch(int batch) {
    constexpr int kGroupPlaces = kPlaces / Layout::kOwnGroups;
    const int i = batch % kPlaces;
    return Layout::group_of_part(0, i / kGroupPlaces) * Layout::kGroupBytes + i % kGroupPlaces * kBatchBytes;
  }

 public:
  __device__ __forceinline__ MqaChain(const MqaArguments& args, int multiplier)
      : args_(args), multiplier_(multiplier) {}

  // A chunk ends. Its state is chained behind those of the levels up to `to` that are in `used` (bits), and goes to
  // level `to`, which is then used instead of them; or it becomes rows of O. If the tile is shared, it goes to a place
  // of its own, and `used` counts these. If the tile `has_keys`, the own columns of the last granule, at the shared
  // address `room`, have been read by the thread; release() gives them back.
  template <class Release>
  __device__ __forceinline__ void close(float (&o)[kOutputs], StateRows& rows, int to, uint32_t& used,
                                        const MqaTile& tile, bool has_keys, uint32_t room,
                                        const Release& release) const {
    const int first_state = uniform(tile.get(Words::kState));
    const bool shared = first_state >= 0;
    const uint32_t behind = shared ? 0U : (2U << to) - 1;  // levels
    if ((used & behind) != 0) {
      sync();  // by the others, too
    }
    bool stored = false;
#pragma unroll 1
    while ((used & behind) != 0) {
      const int level = __ffs(static_cast<int>(used)) - 1;
      used &= used - 1;
      stored = (used & behind) == 0 && to != kMqaFinish;
      chain(o, rows, level, stored ? to : kMqaFinish, room + thread_index() % 128 * 16);
    }
    if (shared || to != kMqaFinish) {
      release();
      if (!stored) {
        store_state(o, rows, shared ? MqaState::at(args_.states, int64_t{first_state} + used, multiplier_) : place(to));
      }
      used = shared ? used + 1 : used | 1U << to;
      return;
    }
    const Outputs outputs(args_, multiplier_);
    outputs.template finish<kPieces>(o, 0, rows, multiplier_ == 0, tile);
    if (args_.boxed_output && has_keys) {
      sync();  // by the others, too
      outputs.template store_boxes<kPieces>(o, tile, room, Layout::group_of_part(0, 1) * Layout::kGroupBytes,
                                            kBarrier + static_cast<uint32_t>(multiplier_));
      release();
    } else {
      release();
      outputs.template store<kPieces>(o, 0, tile);
    }
  }

 private:
  static constexpr uint32_t kBarrier = 1 + Layout::kScorers;  // named barrier of the first multiplier

  // The multiplier's threads. (Two numbers of barriers rather than one that would be kept in a register.)
  __device__ __forceinline__ void sync() const {
    if (multiplier_ == 0) {
      named_barrier_sync(kBarrier, 128);
    } else {
      named_barrier_sync(kBarrier + 1, 128);
    }
  }

  // (rows, o) := chain(the state of a level, (rows, o)), which goes to level `to`, if that is one, as it comes to be.
  // The state's pieces come by way of shared memory: registers have no room for enough of them on their way. Every
  // thread gets what it has written itself.
  __device__ __forceinline__ void chain(float (&o)[kOutputs], StateRows& rows, int level, int to, uint32_t room) const {
    const float4* const memory = place(level);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      ask(room + place_of_batch(i), memory + i * kBatch * 128);
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
    if (to != kMqaFinish) {
      store_rows(rows, place(to));
    }
    chain_batches<0>(o, w, level, to, room);
  }
  // The batches from kNumber on. A branch after each, which is always taken and nobody knows it: ptxas would begin with
  // many of them at once.
  template <int kNumber>
  __device__ __forceinline__ void chain_batches(float (&o)[kOutputs], const ChainWeights& w, int level, int to,
                                                uint32_t room) const {
    if constexpr (kNumber < kBatches) {
      wait_copies<kNumber + kPlaces <= kBatches ? kPlaces - 1 : 0>();
      const uint32_t at = room + place_of_batch(kNumber);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float4 piece = load_quad(at + i * kPieceBytes);
        float* const own = &o[4 * (kNumber * kBatch + i)];
        own[0] = __fmaf_rn(piece.x, w.first[0], own[0]);
        own[1] = __fmaf_rn(piece.y, w.first[0], own[1]);
        own[2] = __fmaf_rn(piece.z, w.first[1], own[2]);
        own[3] = __fmaf_rn(piece.w, w.first[1], own[3]);
      }
      if constexpr (kNumber + kPlaces < kBatches) {
        ask(at, place(opaque(level)) + (kNumber + kPlaces) * kBatch * 128);  // found again: few registers
      }
      if (opaque(to) != kMqaFinish) {
        store_batch<kNumber>(o, place(opaque(to)));
      }
      if (opaque(level) >= 0) {
        chain_batches<kNumber + 1>(o, w, level, to, room);
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
    store_rows(rows, memory);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      store_piece_of(o, i, memory);
    }
  }
  __device__ __forceinline__ static void store_rows(const StateRows& rows, float4* memory) {
    __stcg(memory + kPieces * 128, make_float4(rows.m[0], rows.m[1], rows.l[0], rows.l[1]));
  }
  template <int kNumber>
  __device__ __forceinline__ static void store_batch(const float (&o)[kOutputs], float4* memory) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      store_piece_of(o, kNumber * kBatch + i, memory);
    }
  }
  __device__ __forceinline__ static void store_piece_of(const float (&o)[kOutputs], int i, float4* memory) {
    __stcg(memory + i * 128, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
  }
  __device__ __forceinline__ float4* place(int level) const {
    return MqaState::at(args_.levels[level], blockIdx.x, multiplier_);
  }

  const MqaArguments& args_;
  int multiplier_;
};

}  // namespace tessera::sm90
