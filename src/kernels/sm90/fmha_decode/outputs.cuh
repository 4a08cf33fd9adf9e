// The output warps: O^T = V^T P^T over all keys of the unit for the block's columns (R6), row sums (R7), and at the
// unit's end the chain of the sequence's chunks by whoever finishes last (R8), and R9.
//
// The warpgroup's product has 64 rows, of which a narrow slice of V fills fewer: the descriptor repeats the slice, and
// warps beyond it hold copies that nobody stores. A lane holds columns 16 w + e + 8 h of the slice and rows
// 8 i + 2 q + r: o[4 i + 2 h + r], e = lane / 4, q = lane mod 4; and of l the class e of its rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/host_device.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/cluster.cuh"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/narrow_wgmma.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/scores.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

inline constexpr uint32_t kOutputBarrier = 2;  // named barrier of the output warps
inline constexpr int kOutputThreads = 32 * kDecodeOutputWarps;

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
class OutputRole {
  using Layout = DecodeLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kEights = kRows / 8;
  static constexpr int kCluster = Layout::kCluster;
  static constexpr int kPanels = Layout::kPanels;
  static constexpr bool kBf16 = Tag::kNumbers.bf16;
  static constexpr Element kElement = kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kChunk = Tag::kNumbers.chunk_keys;
  static constexpr int kColumnGroups = Layout::kHeadDim / kDecodeColumnGroup;
  using Part = StatePart<kEights>;

 public:
  __device__ __forceinline__ OutputRole(const DecodeArguments& args, uint32_t smem, int warp, uint32_t rank)
      : args_(args), smem_(smem), warp_(warp), rank_(static_cast<int>(rank)) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    lane_ = lane;
    e_ = lane / 4;
    q_ = lane % 4;
  }

  __device__ __forceinline__ void run(int64_t first_unit, int64_t step) {
    cluster_wait();
    UnitWalker<kChunk> walker(args_);
    Unit unit;
    for (int64_t number = first_unit; walker.find(number, unit); number += step) {
      const UnitKeys<kChunk> keys(unit);
      float o[kPanels][kRows / 2];
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
#pragma unroll
        for (float& x : o[p]) {
          x = 0.0F;
        }
      }
      float m[2 * kEights];
      float l[2 * kEights];
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
        m[i] = no_maximum();
        l[i] = 0.0F;
      }
      const int granules = keys.granules();
      for (int first = 0; first < granules; first += kCluster) {
        const int count = uniform(granules - first < kCluster ? granules - first : kCluster);
        round(count, uniform(keys.end - keys.begin - first * kDecodeGranule), o, m, l);
      }
#pragma unroll
      for (float& x : l) {  // R7: the classes
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
          x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, lanes));
        }
      }
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        if (kDecodeColumnGroup * warp_ < Layout::kPanel) {
          Part part;
#pragma unroll
          for (int i = 0; i < 2 * kEights; ++i) {
            part.m[i] = m[i];
            part.l[i] = l[i];
          }
#pragma unroll
          for (int i = 0; i < kRows / 2; ++i) {
            part.o[i] = o[p][i];
          }
          close(unit, (rank_ * Layout::kSlice + p * Layout::kPanel) / kDecodeColumnGroup + warp_, part);
        }
      }
    }
  }

 private:
  // `keys`: from the round's first one to the end of the unit.
  __device__ __forceinline__ void round(int count, int keys, float (&o)[kPanels][kRows / 2], float (&m)[2 * kEights],
                                        float (&l)[2 * kEights]) {
    const uint32_t slot = at_.stage;
    const uint32_t info = smem_ + Layout::kInfo + slot * Layout::kInfoBytes;
    const uint32_t values = smem_ + Layout::kV + v_at_.stage * Layout::kVBytes;
    barrier_wait(smem_ + Layout::kVFull + 8 * v_at_.stage, v_at_.parity);
    if (!Tag::kSchedule.paged && keys < count * kDecodeGranule) {
      clear_rows(values, keys, count * kDecodeGranule - keys);
    }
    barrier_wait_cluster(smem_ + Layout::kPFull + 8 * slot, at_.parity);
    fence_async_proxy();
    const auto moved = static_cast<uint32_t>(uniform(load_shared(info + Layout::kRescaleBytes + 4 * kRows)));
    const uint64_t a = narrow_flags(0, 8 * Layout::kPanelRow, Layout::kPanelRow) | uniform(values >> 4);
    const uint64_t b = narrow_flags(128, 256, 0) | uniform((smem_ + Layout::kP + slot * Layout::kPBytes) >> 4);
    for (int g = 0; g < count;) {
      if ((moved >> (4 * g) & 15U) != 0) {
        rescale(info + 4 * g * kRows, o);
      }
      // On to the next granule that moves a maximum.
      int end = g + 1;
      while (end < count && (moved >> (4 * end) & 15U) == 0) {
        ++end;
      }
      multiply(a + static_cast<uint64_t>(g * Layout::kPanelGranule >> 4),
               b + static_cast<uint64_t>(g * Layout::kPGranule >> 4), end - g, o);
      g = end;
    }
    add_sums(count, slot, info, l);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float2 pair = load_pair(info + Layout::kRescaleBytes + 4 * (8 * i + 2 * q_));
      m[2 * i] = pair.x;
      m[2 * i + 1] = pair.y;
    }
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive(smem_ + Layout::kVEmpty + 8 * v_at_.stage);
    }
    if (lane_ < kCluster) {
      arrive_at(in_block(smem_ + Layout::kPEmpty + 8 * slot, static_cast<uint32_t>(lane_)));
    }
    v_at_.advance();
    at_.advance();
  }

  // R6 over some granules, at least one; blocks without any P but +0 change nothing.
  __device__ __forceinline__ void multiply(uint64_t a, uint64_t b, int granules, float (&o)[kPanels][kRows / 2]) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      pin_registers(o[p]);
    }
#pragma unroll 1
    do {
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kDecodeGranule / kBlockKeys; ++step) {
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          narrow_next<kElement, true>(o[p], a + static_cast<uint64_t>(p * Layout::kPanelGranule * kCluster >> 4), b);
        }
        a += static_cast<uint64_t>(kBlockKeys * Layout::kPanelRow >> 4);
        b += static_cast<uint64_t>(kBlockKeys * kRows * 2 >> 4);
      }
      wgmma_commit();
    } while (--granules > 0);
    wgmma_wait<0>();
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      pin_registers(o[p]);
    }
  }

  __device__ __forceinline__ void rescale(uint32_t factors, float (&o)[kPanels][kRows / 2]) const {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float2 a = load_pair(factors + 4 * (8 * i + 2 * q_));
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          o[p][4 * i + n] = __fmul_rn(o[p][4 * i + n], n % 2 == 0 ? a.x : a.y);
        }
      }
    }
  }

  // Rows of V behind the last key, to the end of its granule, are other bytes: they meet P = +0 and must be finite.
  __device__ __forceinline__ void clear_rows(uint32_t values, int keys, int rows) const {
    const int thread = 32 * warp_ + lane_;
    constexpr int kPieces = Layout::kPanelRow / 16;
    for (int i = thread; i < rows * kPieces * kPanels; i += kOutputThreads) {
      const int panel = i / (rows * kPieces);
      const int row = keys + i % (rows * kPieces) / kPieces;
      store_piece(values + static_cast<uint32_t>(panel * Layout::kPanelGranule * kCluster + row * Layout::kPanelRow +
                                                 i % kPieces * 16),
                  {0, 0, 0, 0});
    }
    fence_async_proxy();
    named_barrier_sync(kOutputBarrier, kOutputThreads);
  }

  // R7.
  __device__ __forceinline__ void add_sums(int count, uint32_t slot, uint32_t info, float (&l)[2 * kEights]) const {
    barrier_wait_cluster(smem_ + Layout::kSumsFull + 8 * slot, at_.parity);
    const uint32_t sums = smem_ + Layout::kSums + slot * kCluster * Layout::kSumsGranule;
    for (int g = 0; g < count; ++g) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const float2 a = load_pair(info + 4 * (g * kRows + 8 * i + 2 * q_));
        const float2 sum = load_pair(sums + 4 * ((g * kDecodeClasses + e_) * kRows + 8 * i + 2 * q_));
        l[2 * i] = __fmaf_rn(l[2 * i], a.x, sum.x);
        l[2 * i + 1] = __fmaf_rn(l[2 * i + 1], a.y, sum.y);
      }
    }
  }

  // The unit's state of one column group is complete.
  __device__ __forceinline__ void close(const Unit& unit, int group, Part& part) const {
    if (unit.chunks > 1) {
      store(unit.first + int64_t{unit.chunk} * args_.heads_kv, group, part);
      __threadfence();
      __syncwarp();
      int* counter = args_.counters + (int64_t{unit.batch} * args_.heads_kv + unit.head) * kColumnGroups + group;
      int before = 0;
      if (lane_ == 0) {
        before = atomicAdd(counter, 1);
      }
      before = __shfl_sync(kAllLanes, before, 0);
      if (before != unit.chunks - 1) {
        return;
      }
      __threadfence();
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
      const float4 o = __ldcg(args_.state_outputs + (at + i) * 32 + lane_);
      const float4 rows = __ldcg(args_.state_rows + (at + i) * 4 + q_);
      part.o[4 * i] = o.x;
      part.o[4 * i + 1] = o.y;
      part.o[4 * i + 2] = o.z;
      part.o[4 * i + 3] = o.w;
      part.m[2 * i] = rows.x;
      part.l[2 * i] = rows.y;
      part.m[2 * i + 1] = rows.z;
      part.l[2 * i + 1] = rows.w;
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
      const int row = 8 * (i / 2) + 2 * q_ + i % 2;
      const int token = row / args_.group;
      if (token >= args_.seqlen_q) {
        continue;
      }
      const int head = unit.head * args_.group + row % args_.group;
      const bool empty = part.m[i] == no_maximum();
      const float inverse = empty ? 0.0F : __fdiv_rn(1.0F, part.l[i]);
      uint16_t* out = args_.o + unit.batch * args_.o_strides.batch + token * args_.o_strides.token +
                      head * args_.o_strides.head + group * kDecodeColumnGroup + e_;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float x = empty ? 0.0F : __fmul_rn(part.o[4 * (i / 2) + 2 * h + i % 2], inverse);
        const auto bits = static_cast<uint16_t>(round_two<kBf16>(x, 0.0F));
        out[8 * h] = bits == 0x8000U ? uint16_t{0} : bits;
      }
      if (args_.lse.data != nullptr && group == 0 && e_ == 0) {
        const float lse =
            empty ? no_maximum()
                  : __fmul_rn(__fadd_rn(soft_log2(part.l[i]), __fsub_rn(part.m[i], args_.bias)), kLn2);
        args_.lse.data[unit.batch * args_.lse.stride_batch + token * args_.lse.stride_token +
                       head * args_.lse.stride_head] = lse;
      }
    }
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int warp_, rank_, lane_, e_, q_;
  StageAt<Layout::kVStages> v_at_;
  StageAt<kSlots> at_;
};

}  // namespace tessera::sm90
