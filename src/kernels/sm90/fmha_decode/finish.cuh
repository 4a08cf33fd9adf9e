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
#include "kernels/sm90/fmha_decode/counters.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/scores.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

// Eight rows and 16 columns of a state (R8): the lane's two rows and two columns of them. m = -Inf: empty.
struct StatePart {
  float m[2], l[2];
  float o[4];

  __device__ __forceinline__ void clear() {
    m[0] = m[1] = no_maximum();
    l[0] = l[1] = o[0] = o[1] = o[2] = o[3] = 0.0F;
  }

  // *this := chain(*this, next). An empty side has weight 0 and the other one 1.
  __device__ __forceinline__ void chain(const StatePart& next) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float highest = fmaxf(m[i], next.m[i]);
      const float w = drop_weight(__fsub_rn(highest, m[i]));  // a NaN (both empty) gives 0
      const float w_next = drop_weight(__fsub_rn(highest, next.m[i]));
      l[i] = __fmaf_rn(l[i], w, __fmul_rn(next.l[i], w_next));
      m[i] = highest;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        o[2 * h + i] = __fmaf_rn(o[2 * h + i], w, __fmul_rn(next.o[2 * h + i], w_next));
      }
    }
  }
};

template <class Tag>
class FinishRole {
  using Layout = DecodeLayout<Tag>;
  static constexpr int kEights = Layout::kRows / 8;
  static constexpr int kPanels = Layout::kPanels;
  static constexpr bool kBf16 = Tag::kNumbers.bf16;
  static constexpr int kColumnGroups = Layout::kHeadDim / kDecodeColumnGroup;

 public:
  __device__ __forceinline__ FinishRole(const DecodeArguments& args, uint32_t smem, int warp, uint32_t rank)
      : args_(args), smem_(smem), warp_(warp), rank_(static_cast<int>(rank)) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    lane_ = lane;
    e_ = lane / 4;
    q_ = lane % 4;
  }

  __device__ __forceinline__ void run() const {
    if (warp_ >= Layout::kUsefulWarps) {
      return;
    }
    UnitReader<Tag> units(smem_);
    Unit unit;
    uint32_t parity = 0;
    while (units.next(unit)) {
      if (chunks_of_unit(unit) > 1 && lane_ < kPanels) {
        claim_counter(counter_of(unit, group_of(lane_)));
      }
      __syncwarp();
      barrier_wait(smem_ + Layout::kPartFull + 8 * static_cast<uint32_t>(warp_), parity);
      close(unit);
      parity ^= 1U;
    }
  }

 private:
  // Chunks that the sequence's state is chained from.
  static __device__ __forceinline__ int chunks_of_unit(const Unit& unit) { return unit.chunks - unit.first_chunk; }

  __device__ __forceinline__ int group_of(int panel) const {
    return (rank_ * Layout::kSlice + panel * Layout::kPanel) / kDecodeColumnGroup + warp_;
  }
  __device__ __forceinline__ unsigned long long* counter_of(const Unit& unit, int group) const {
    const auto heads = static_cast<int>(args_.heads.value);
    return args_.counters + int64_t{unit.batch * heads + unit.head} * kColumnGroups + group;
  }

  // The state of the warp's columns of a unit is complete.
  __device__ __forceinline__ void close(const Unit& unit) const {
    const bool alone = chunks_of_unit(unit) == 1;
    const uint32_t mine = alone ? (1U << kPanels) - 1 : hand_in(unit);  // panels whose rows are this warp's to finish
#pragma unroll 1
    for (int i = 0; i < kPanels * kEights; ++i) {
      const int panel = i / kEights;
      if ((mine >> panel & 1U) != 0) {
        StatePart part;
        if (alone) {
          take(part, i);
        } else {
          chain_chunks(unit, group_of(panel), i % kEights, part);
        }
        finish(unit, group_of(panel), i % kEights, part);
      }
    }
    if (alone) {
      let_go();
    }
  }

  // Stores the state. Bit p of the answer: every other chunk's columns of panel p are there already.
  __device__ __forceinline__ uint32_t hand_in(const Unit& unit) const {
#pragma unroll 1
    for (int i = 0; i < kPanels * kEights; ++i) {
      StatePart part;
      take(part, i);
      store(state_of(unit, unit.chunk, group_of(i / kEights), i % kEights), part);
    }
    let_go();
    bool last = false;
    if (lane_ < kPanels) {
      unsigned long long* counter = counter_of(unit, group_of(lane_));
      last = count_up(counter) == static_cast<uint32_t>(chunks_of_unit(unit) - 1);
      if (last) {
        *counter = 0;
      }
    }
    const uint32_t panels = __ballot_sync(kAllLanes, last);
    __syncwarp();
    return panels;
  }

  // The part's place is the output warp's again.
  __device__ __forceinline__ void let_go() const {
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive(smem_ + Layout::kPartEmpty + 8 * static_cast<uint32_t>(warp_));
    }
  }

  // Number `index` of the warp's parts: panel by panel, eight rows by eight.
  __device__ __forceinline__ void take(StatePart& part, int index) const {
    const uint32_t from =
        smem_ + Layout::kParts + static_cast<uint32_t>((warp_ * kPanels * kEights + index) * kPartBytes);
    const float4 o = load_floats(from + 16 * static_cast<uint32_t>(lane_));
    const float4 rows = load_floats(from + kPartOutputBytes + 16 * static_cast<uint32_t>(q_));
    part = {{rows.x, rows.z}, {rows.y, rows.w}, {o.x, o.y, o.z, o.w}};
  }

  // The lane's outputs in the state of a chunk; the rows' m and l are 32 pieces further.
  __device__ __forceinline__ float4* state_of(const Unit& unit, int chunk, int group, int eight) const {
    const int64_t number = unit.first + (chunk - unit.first_chunk) * static_cast<int>(args_.heads.value);
    return args_.states + ((number * kColumnGroups + group) * kEights + eight) * kDecodeStatePieces + lane_;
  }

  static __device__ __forceinline__ void store(float4* to, const StatePart& part) {
    __stcg(to, make_float4(part.o[0], part.o[1], part.o[2], part.o[3]));
    __stcg(to + 32, make_float4(part.m[0], part.l[0], part.m[1], part.l[1]));
  }

  // R8: chunks ascending inside superchunks, superchunks ascending.
  __device__ __forceinline__ void chain_chunks(const Unit& unit, int group, int eight, StatePart& total) const {
    constexpr int kAhead = kEights == 1 ? 4 : 2;  // chunks in flight; more of 16 rows spill
    static_assert(kSuperchunkChunks % kAhead == 0);
    total.clear();
    StatePart inner;
    inner.clear();
#pragma unroll 1
    for (int c = unit.first_chunk / kAhead * kAhead; c < unit.chunks; c += kAhead) {
      float4 o[kAhead];
      float4 rows[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (c + i >= unit.first_chunk && c + i < unit.chunks) {
          const float4* from = state_of(unit, c + i, group, eight);
          o[i] = __ldcg(from);
          rows[i] = __ldcg(from + 32);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (c + i >= unit.first_chunk && c + i < unit.chunks) {
          inner.chain({{rows[i].x, rows[i].z}, {rows[i].y, rows[i].w}, {o[i].x, o[i].y, o[i].z, o[i].w}});
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
  __device__ __forceinline__ void finish(const Unit& unit, int group, int eight, const StatePart& part) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = unit.first_row + 8 * eight + 2 * q_ + i;
      const int token = divide(row, args_.group);
      if (token >= args_.seqlen_q) {
        continue;
      }
      const auto in_group = static_cast<int>(args_.group.value);
      const int64_t head = unit.kv_head * in_group + row - token * in_group;
      const bool empty = part.m[i] == no_maximum();
      if (group == 0 && e_ == 0) {
        store_scalars(unit.batch, token, head, part.m[i], part.l[i]);
      }
      bool none = empty;  // out = +0
      float rescale = 1.0F;
      float l = part.l[i];
      if (args_.sinks != nullptr) {
        const float sink = __fmul_rn(args_.sinks[head], kLog2E);
        none = empty || sink == -no_maximum();
        if (!none && sink != no_maximum()) {
          const float highest = fmaxf(part.m[i], ceilf(sink));
          rescale = drop_weight(__fsub_rn(highest, part.m[i]));
          l = __fadd_rn(__fmul_rn(l, rescale), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args_.bias)));
        }
      }
      const float inverse = args_.unnormalized != 0 ? 1.0F : __fdiv_rn(1.0F, l);
      const int64_t at = unit.batch * args_.o_strides.batch + token * args_.o_strides.token +
                         head * args_.o_strides.head + group * kDecodeColumnGroup + e_;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (group * kDecodeColumnGroup + e_ + 8 * h >= args_.dims) {
          continue;
        }
        const float o = part.o[2 * h + i];
        const float x = none ? 0.0F : __fmul_rn(__fmul_rn(o, rescale), inverse);
        if (args_.wide_output != 0) {
          static_cast<float*>(args_.o)[at + 8 * h] = __fadd_rn(x, 0.0F);  // -0 as +0
        } else {
          const auto bits = static_cast<uint16_t>(round_two<kBf16>(x, 0.0F));
          static_cast<uint16_t*>(args_.o)[at + 8 * h] = bits == 0x8000U ? uint16_t{0} : bits;
        }
      }
    }
  }

  // LSE, row maximum and row sum, where they are wanted.
  __device__ __forceinline__ void store_scalars(int batch, int token, int64_t head, float m, float l) const {
    const bool empty = m == no_maximum();
    const auto place = [&](const tessera_row_scalars& to) {
      return to.data + batch * to.stride_batch + token * to.stride_token + head * to.stride_head;
    };
    const float m_log2 = empty ? no_maximum() : __fsub_rn(m, args_.bias);
    if (args_.lse.data != nullptr) {
      *place(args_.lse) = empty ? no_maximum() : __fmul_rn(__fadd_rn(soft_log2(l), m_log2), kLn2);
    }
    if (args_.row_max.data != nullptr) {
      *place(args_.row_max) = m_log2;
    }
    if (args_.row_sum.data != nullptr) {
      *place(args_.row_sum) = empty ? 0.0F : l;
    }
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int warp_, rank_, lane_, e_, q_;
};

}  // namespace tessera::sm90
