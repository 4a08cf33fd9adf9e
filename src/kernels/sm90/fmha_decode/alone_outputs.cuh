// The warps of a block alone that sum: O^T = V^T P^T over all keys of the unit (R6), a quarter of the columns per warp,
// and row sums (R7), by every warp for itself. The unit's state goes to memory, where the kernel of combine.cuh chains
// it (R8), or is finished here if it is its sequence's only one.
//
// A lane holds columns e and e + 8 of 16, e = lane / 4, of the rows 2 q and 2 q + 1 of every eight, q = lane mod 4.
#pragma once

#include <cstdint>

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/alone.h"
#include "kernels/sm90/fmha_decode/combine.cuh"
#include "kernels/sm90/fmha_decode/fragments.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/softmax_steps.cuh"
#include "kernels/sm90/fmha_decode/state.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

template <class Tag>
class AloneOutputs {
  using Layout = AloneLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kEights = Layout::kEights;
  static constexpr int kColumnTiles = Layout::kColumnTiles;
  static constexpr bool kBf16 = Tag::kBf16;

 public:
  __device__ __forceinline__ AloneOutputs(const DecodeArguments& args, uint32_t smem, int warp)
      : args_(args), smem_(smem), warp_(warp), lane_(static_cast<int>(threadIdx.x % 32)) {
    e_ = lane_ / 4;
    q_ = lane_ % 4;
  }

  // Of warp `warp` of the block among all that have the unit's columns.
  static __device__ __forceinline__ int number_of(int warp) {
    return Layout::kShare == 1 ? warp : static_cast<int>(cluster_rank()) * kAloneWarps + warp;
  }

  __device__ __forceinline__ void run() {
    UnitFinder<Tag> finder(args_);
#pragma unroll 1
    for (int number = static_cast<int>(blockIdx.x) / Layout::kShare;; number += static_cast<int>(gridDim.x)) {
      const Unit unit = finder.find(number);
      if (uniform(unit.batch) < 0) {
        return;
      }
      begin();
      const UnitKeys<Tag> keys(unit);
      const int own = Layout::kShare == 1 ? 0 : static_cast<int>(cluster_rank()) * Layout::kGranule;
      if (keys.begin + own < keys.end) {
        skip_keys();
      }
#pragma unroll 1
      for (int first = keys.begin; first < keys.end; first += Layout::kRound) {
        if (first + Layout::kRound + own < keys.end) {
          skip_keys();
        }
#pragma unroll 1
        for (int i = 0; i < Layout::kShare && first + i * Layout::kGranule < keys.end; ++i) {
          granule();
        }
      }
      close(unit);
      if (Layout::kShare > 1) {
        return;
      }
    }
  }

 private:
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      m_[i] = minus_infinity();
      l_[i] = 0.0F;
    }
#pragma unroll
    for (auto& tile : o_) {
#pragma unroll
      for (auto& eight : tile) {
#pragma unroll
        for (float& x : eight) {
          x = 0.0F;
        }
      }
    }
  }

  // K of the first granule, or of the next one (alone_copy.cuh).
  __device__ __forceinline__ void skip_keys() {
#pragma unroll
    for (int i = 0; i < Layout::kGranuleStages; ++i) {
      at_.advance();
    }
  }

  __device__ __forceinline__ void granule() {
    barrier_wait(smem_ + Layout::kSlotFull + 8 * slot_.stage, slot_.parity);
    __syncwarp();
    float a[2 * kEights];
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const uint32_t rows = slot() + static_cast<uint32_t>(4 * (8 * i + 2 * q_));
      const float2 factors = load_pair(rows + Layout::kFactors);
      const float2 maxima = load_pair(rows + Layout::kMaximum);
      a[2 * i] = factors.x;
      a[2 * i + 1] = factors.y;
      m_[2 * i] = maxima.x;
      m_[2 * i + 1] = maxima.y;
    }
    add_outputs(a);
    add_sums(a);
    barrier_arrive(smem_ + Layout::kSlotEmpty + 8 * slot_.stage);
    slot_.advance();
  }
  __device__ __forceinline__ uint32_t slot() const {
    return smem_ + Layout::kSlots + slot_.stage * Layout::kSlotBytes;
  }

  // R6.
  __device__ __forceinline__ void add_outputs(const float (&a)[2 * kEights]) {
    bool moved = false;
#pragma unroll
    for (const float factor : a) {
      moved |= factor != 1.0F;
    }
    if (__any_sync(kAllLanes, moved)) {
#pragma unroll
      for (auto& tile : o_) {
#pragma unroll
        for (int i = 0; i < 4 * kEights; ++i) {
          tile[i / 4][i % 4] = __fmul_rn(tile[i / 4][i % 4], a[2 * (i / 4) + i % 2]);
        }
      }
    }
    constexpr int kSteps = Layout::kValueStageKeys / 16;
    uint32_t b[4];  // P of the step; with eight rows of two steps
    const uint32_t weights = slot() + Layout::kP + static_cast<uint32_t>(16 * lane_);
    const auto in_stage = static_cast<uint32_t>((lane_ % 8 + lane_ / 16 * 8) * Layout::kValueRowBytes +
                                                ((warp_ * kColumnTiles * 2 + lane_ / 8 % 2) ^ lane_ % 8) * 16);
#pragma unroll
    for (int stage = 0; stage < Layout::kValueStages; ++stage) {
      barrier_wait(smem_ + Layout::kFull + 8 * at_.stage, at_.parity);
      __syncwarp();
      const uint32_t values = smem_ + Layout::kRing + at_.stage * Layout::kStageBytes + in_stage;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int from = kEights == 1 ? step % 2 * 2 : 0;
        if (from == 0) {
          load_matrices(b, weights + static_cast<uint32_t>((stage * kSteps + step) * 32 * kRows));
        }
        [[maybe_unused]] int seen[2];
        if constexpr (Tag::kModified) {
          const uint32_t keys = slot() + Layout::kSeen + static_cast<uint32_t>(32 * (stage * kSteps + step) + 4 * q_);
          seen[0] = load_shared(keys);
          seen[1] = load_shared(keys + 16);
        }
#pragma unroll
        for (int tile = 0; tile < kColumnTiles; ++tile) {
          uint32_t v[4];
          load_transposed(v, (values ^ static_cast<uint32_t>(32 * tile)) +
                                 static_cast<uint32_t>(16 * step * Layout::kValueRowBytes));
          if constexpr (Tag::kModified) {  // V of keys that nobody sees may be NaN
            v[0] &= static_cast<uint32_t>(seen[0]);
            v[1] &= static_cast<uint32_t>(seen[0]);
            v[2] &= static_cast<uint32_t>(seen[1]);
            v[3] &= static_cast<uint32_t>(seen[1]);
          }
          multiply_block<kBf16>(o_[tile][0], v, b[from], b[from + 1]);
          if constexpr (kEights == 2) {
            multiply_block<kBf16>(o_[tile][kEights - 1], v, b[2], b[3]);
          }
        }
      }
      barrier_arrive(smem_ + Layout::kEmpty + 8 * at_.stage);
      at_.advance();
    }
  }

  // R7.
  __device__ __forceinline__ void add_sums(const float (&a)[2 * kEights]) {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const uint32_t sums = slot() + Layout::kSums + static_cast<uint32_t>(4 * (e_ * kRows + 8 * i + 2 * q_));
      float2 g = load_pair(sums);
#pragma unroll
      for (int block = 1; block < Layout::kBlocks; ++block) {
        const float2 t = load_pair(sums + static_cast<uint32_t>(4 * block * kDecodeClasses * kRows));
        g = {__fadd_rn(g.x, t.x), __fadd_rn(g.y, t.y)};
      }
      l_[2 * i] = __fmaf_rn(l_[2 * i], a[2 * i], g.x);
      l_[2 * i + 1] = __fmaf_rn(l_[2 * i + 1], a[2 * i + 1], g.y);
    }
  }

  // The unit's keys are through.
  __device__ __forceinline__ void close(const Unit& unit) {
#pragma unroll
    for (float& x : l_) {  // R7: the classes
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, lanes));
      }
    }
    const bool only = !has_segments<Tag>() && unit.chunks - unit.first_chunk == 1;
    bool folded = false;
    if constexpr (kEights == 1 && kColumnTiles > 1) {
      if (only && is_half_empty(int64_t{args_.seqlen_q} * args_.group.value)) {
        folded = true;
        fold();
      }
    }
    // Registers cannot be indexed: the loop works on the first ones, and the others move up.
#pragma unroll 1
    for (int i = 0; i < (folded ? kColumnTiles / 2 : kColumnTiles * kEights); ++i) {
      const StatePart part{{m_[0], m_[1]}, {l_[0], l_[1]}, {o_[0][0][0], o_[0][0][1], o_[0][0][2], o_[0][0][3]}};
      PartOfState at(number_of(warp_) * kColumnTiles + (folded ? 2 * i : i / kEights), i % kEights);
      if (folded) {
        at.group += at.q / 2;
        at.q %= 2;
      }
      if (only) {
        finish_rows<Tag>(args_, unit, at, RowPlaces<Tag>(args_, unit, at), part);
      } else {
        ChunkState<Tag>(args_, unit, unit.chunk - unit.first_chunk, at).store(part);
      }
      if constexpr (kEights == 2) {
        rotate(m_);
        rotate(l_);
      }
#pragma unroll
      for (int n = 0; n + 1 < kColumnTiles * kEights; ++n) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          o_[n / kEights][n % kEights][x] = o_[(n + 1) / kEights][(n + 1) % kEights][x];
        }
      }
    }
  }
  // With up to four rows half of the lanes have none: they take every other tile of columns, so that rows are finished
  // in half of the time.
  __device__ __forceinline__ void fold() {
    const int from = lane_ & ~2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      m_[i] = __shfl_sync(kAllLanes, m_[i], from);
      l_[i] = __shfl_sync(kAllLanes, l_[i], from);
    }
#pragma unroll
    for (int t = 0; t < kColumnTiles / 2; ++t) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float second = __shfl_sync(kAllLanes, o_[2 * t + 1][0][x], from);
        o_[t][0][x] = q_ < 2 ? o_[2 * t][0][x] : second;
      }
    }
  }
  static __device__ __forceinline__ void rotate(float (&rows)[2 * kEights]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float first = rows[r];
      rows[r] = rows[r + 2 * kEights - 2];
      rows[r + 2 * kEights - 2] = first;
    }
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int warp_, lane_, e_, q_;
  StageAt<Layout::kStages> at_;
  StageAt<Layout::kSlotCount> slot_;
  float m_[2 * kEights];
  float l_[2 * kEights];
  float o_[kColumnTiles][kEights][4];
};

}  // namespace tessera::sm90
