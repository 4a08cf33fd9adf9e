// The finishing warps: what happens to a unit's state once its keys are through, beside the next unit's products: it is
// stored, the sequence's chunks are chained by whoever finishes last (R8), and rows are finished (R9).
//
// Warp w takes the columns of output warp w, with the same lanes for rows and columns.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/scores.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

// Adds one to a counter, after everything the warp has written and before everything it reads next.
__device__ __forceinline__ int count_up(int* counter) {
  __syncwarp();
  int before = 0;
  if (threadIdx.x % 32 == 0) {
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  }
  return __shfl_sync(kAllLanes, before, 0);
}

// One warp's part of a state (R8): rows and columns as above. m = -Inf: empty.
template <int kEights>
struct StatePart {
  float m[2 * kEights];
  float l[2 * kEights];
  float o[4 * kEights];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      m[i] = no_maximum();
      l[i] = 0.0F;
    }
#pragma unroll
    for (float& x : o) {
      x = 0.0F;
    }
  }

  // Rows 8 i ..: outputs and (m, l) pairs.
  __device__ __forceinline__ void set(int i, const float4& outputs, const float4& rows) {
    o[4 * i] = outputs.x;
    o[4 * i + 1] = outputs.y;
    o[4 * i + 2] = outputs.z;
    o[4 * i + 3] = outputs.w;
    m[2 * i] = rows.x;
    l[2 * i] = rows.y;
    m[2 * i + 1] = rows.z;
    l[2 * i + 1] = rows.w;
  }

  // *this := chain(*this, next). An empty side has weight 0 and the other one 1.
  __device__ __forceinline__ void chain(const StatePart& next) {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const float highest = fmaxf(m[i], next.m[i]);
      const float w = drop_weight(__fsub_rn(highest, m[i]));  // a NaN (both empty) gives 0
      const float w_next = drop_weight(__fsub_rn(highest, next.m[i]));
      l[i] = __fmaf_rn(l[i], w, __fmul_rn(next.l[i], w_next));
      m[i] = highest;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = 4 * (i / 2) + 2 * h + i % 2;
        o[at] = __fmaf_rn(o[at], w, __fmul_rn(next.o[at], w_next));
      }
    }
  }
};

template <class Tag>
class FinishRole {
  using Layout = DecodeLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kEights = kRows / 8;
  static constexpr int kPanels = Layout::kPanels;
  static constexpr bool kBf16 = Tag::kNumbers.bf16;
  static constexpr int kChunk = Tag::kNumbers.chunk_keys;
  static constexpr int kColumnGroups = Layout::kHeadDim / kDecodeColumnGroup;
  using Part = StatePart<kEights>;

 public:
  __device__ __forceinline__ FinishRole(const DecodeArguments& args, uint32_t smem, int warp, uint32_t rank)
      : args_(args), smem_(smem), warp_(warp), rank_(static_cast<int>(rank)) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    lane_ = lane;
    e_ = lane / 4;
    q_ = lane % 4;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const int row = 8 * (i / 2) + 2 * q_ + i % 2;
      token_[i] = row / args.group;
      head_[i] = row % args.group;
    }
  }

  __device__ __forceinline__ void run(int64_t first_unit, int64_t step) const {
    if (kDecodeColumnGroup * warp_ >= Layout::kPanel) {
      return;  // its output warp holds copies
    }
    UnitWalker<kChunk> walker(args_);
    Unit unit;
    uint32_t parity = 0;
    for (int64_t number = first_unit; walker.find(number, unit); number += step) {
      barrier_wait(smem_ + Layout::kPartFull + 8 * static_cast<uint32_t>(warp_), parity);
#pragma unroll 1
      for (int p = 0; p < kPanels; ++p) {
        Part part;
        take(part, p);
        __syncwarp();
        if (p == kPanels - 1 && lane_ == 0) {
          barrier_arrive(smem_ + Layout::kPartEmpty + 8 * static_cast<uint32_t>(warp_));
        }
        close(unit, (rank_ * Layout::kSlice + p * Layout::kPanel) / kDecodeColumnGroup + warp_, part);
      }
      parity ^= 1U;
    }
  }

 private:
  __device__ __forceinline__ void take(Part& part, int panel) const {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const uint32_t from =
          smem_ + Layout::kParts + static_cast<uint32_t>(((warp_ * kPanels + panel) * kEights + i) * kPartBytes);
      part.set(i, load_floats(from + 16 * static_cast<uint32_t>(lane_)),
               load_floats(from + kPartOutputBytes + 16 * static_cast<uint32_t>(q_)));
    }
  }

  // The unit's state of one column group is complete.
  __device__ __forceinline__ void close(const Unit& unit, int group, Part& part) const {
    if (unit.chunks > 1) {
      store(unit.first + int64_t{unit.chunk} * args_.heads_kv, group, part);
      int* counter = args_.counters + (int64_t{unit.batch} * args_.heads_kv + unit.head) * kColumnGroups + group;
      if (count_up(counter) != unit.chunks - 1) {
        return;
      }
      if (lane_ == 0) {
        *counter = 0;
      }
      chain_chunks(unit, group, part);
    }
    finish(unit, group, part);
  }

  __device__ __forceinline__ void store(int64_t unit, int group, const Part& part) const {
    const int64_t at = (unit * kColumnGroups + group) * kEights;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      __stcg(args_.state_outputs + (at + i) * 32 + lane_,
             make_float4(part.o[4 * i], part.o[4 * i + 1], part.o[4 * i + 2], part.o[4 * i + 3]));
      if (e_ == 0) {
        __stcg(args_.state_rows + (at + i) * 4 + q_,
               make_float4(part.m[2 * i], part.l[2 * i], part.m[2 * i + 1], part.l[2 * i + 1]));
      }
    }
  }

  __device__ __forceinline__ void load(int64_t unit, int group, Part& part) const {
    const int64_t at = (unit * kColumnGroups + group) * kEights;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      part.set(i, __ldcg(args_.state_outputs + (at + i) * 32 + lane_), __ldcg(args_.state_rows + (at + i) * 4 + q_));
    }
  }

  // R8: chunks ascending inside superchunks, superchunks ascending.
  __device__ __forceinline__ void chain_chunks(const Unit& unit, int group, Part& total) const {
    constexpr int kAhead = 4 / kEights;  // loads in flight
    total.clear();
    Part inner;
    inner.clear();
    for (int c = 0; c < unit.chunks; c += kAhead) {
      Part next[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (c + i < unit.chunks) {
          load(unit.first + int64_t{c + i} * args_.heads_kv, group, next[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (c + i < unit.chunks) {
          inner.chain(next[i]);
        }
      }
      if ((c + kAhead) % kSuperchunkChunks == 0) {
        total.chain(inner);
        inner.clear();
      }
    }
    total.chain(inner);
  }

  // R9.
  __device__ __forceinline__ void finish(const Unit& unit, int group, const Part& part) const {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      if (token_[i] >= args_.seqlen_q) {
        continue;
      }
      const int64_t head = unit.head * args_.group + head_[i];
      const bool empty = part.m[i] == no_maximum();
      const float inverse = empty ? 0.0F : __fdiv_rn(1.0F, part.l[i]);
      uint16_t* out = args_.o + unit.batch * args_.o_strides.batch + token_[i] * args_.o_strides.token +
                      head * args_.o_strides.head + group * kDecodeColumnGroup + e_;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float x = empty ? 0.0F : __fmul_rn(part.o[4 * (i / 2) + 2 * h + i % 2], inverse);
        const auto bits = static_cast<uint16_t>(round_two<kBf16>(x, 0.0F));
        out[8 * h] = bits == 0x8000U ? uint16_t{0} : bits;
      }
      if (args_.lse.data != nullptr && group == 0 && e_ == 0) {
        const float lse =
            empty ? no_maximum() : __fmul_rn(__fadd_rn(soft_log2(part.l[i]), __fsub_rn(part.m[i], args_.bias)), kLn2);
        args_.lse.data[unit.batch * args_.lse.stride_batch + token_[i] * args_.lse.stride_token +
                       head * args_.lse.stride_head] = lse;
      }
    }
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int warp_, rank_, lane_, e_, q_;
  int token_[2 * kEights], head_[2 * kEights];  // of the lane's rows; the head inside its group
};

}  // namespace tessera::sm90
