// The output warps: O^T = V^T P^T over all keys of the unit for the block's columns (R6), and row sums (R7). The
// finished state goes to the finishing warp of the same number.
//
// The warpgroup's product has 64 rows, of which a narrow slice of V fills fewer: the descriptor repeats the slice, and
// warps beyond it hold copies that nobody stores. A lane holds columns 16 w + e + 8 h of the slice and rows
// 8 i + 2 q + r: o[4 i + 2 h + r], e = lane / 4, q = lane mod 4; and of l the class e of its rows.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/cluster.cuh"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/finish.cuh"
#include "kernels/sm90/fmha_decode/narrow_wgmma.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/scores.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

inline constexpr uint32_t kOutputBarrier = 2;  // named barrier of the output warps
inline constexpr int kOutputThreads = 32 * kDecodeOutputWarps;

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

 public:
  __device__ __forceinline__ OutputRole(const DecodeArguments& args, uint32_t smem, int warp, uint32_t rank)
      : args_(args), smem_(smem), warp_(warp), rank_(static_cast<int>(rank)) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    lane_ = lane;
    e_ = lane / 4;
    q_ = lane % 4;
  }

  __device__ __forceinline__ void run() {
    if constexpr (kCluster > 1) {
      cluster_wait();
    }
    UnitReader<Tag> units(smem_);
    Unit unit;
    while (units.next(unit)) {
      const UnitKeys<Tag> keys(unit);
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
#pragma unroll 1
      for (int first = 0; first < granules; first += kCluster) {
        const int count = uniform(granules - first < kCluster ? granules - first : kCluster);
        pass(count, uniform(keys.end - keys.begin - first * Layout::kGranule),
             uniform(unit.seen - keys.begin - first * Layout::kGranule), o, m, l);
      }
#pragma unroll
      for (float& x : l) {  // R7: the classes
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
          x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, lanes));
        }
      }
      if (warp_ < Layout::kUsefulWarps) {
        hand_over(o, m, l);
      }
    }
  }

 private:
  // `keys`: from the pass's first one to the end of the unit; `unseen`: to the first one that any token sees.
  __device__ __forceinline__ void pass(int count, int keys, int unseen, float (&o)[kPanels][kRows / 2],
                                       float (&m)[2 * kEights], float (&l)[2 * kEights]) {
    const uint32_t slot = at_.stage;
    const uint32_t info = smem_ + Layout::kInfo + slot * Layout::kInfoBytes;
    const uint32_t values = smem_ + Layout::kV + v_at_.stage * Layout::kVBytes;
    barrier_wait(smem_ + Layout::kVFull + 8 * v_at_.stage, v_at_.parity);
    if constexpr (!Tag::kSchedule.paged) {
      const int behind = max(0, count * Layout::kGranule - keys);
      if (behind > 0 || unseen > 0) {
        clear_rows(values, keys, behind);
        clear_rows(values, 0, unseen);
        fence_async_proxy();
        __syncwarp();
        named_barrier_sync(kOutputBarrier, kOutputThreads);
      }
    }
    barrier_wait(smem_ + Layout::kPFull + 8 * slot, at_.parity);
    __syncwarp();
    fence_async_proxy();
    const auto moved = static_cast<uint32_t>(uniform(load_shared(info + Layout::kRescaleBytes + 4 * kRows)));
    const uint64_t a = narrow_flags(0, 8 * Layout::kPanelRow, Layout::kPanelRow) | uniform(descriptor_address(values));
    const uint64_t b =
        narrow_flags(128, 256, 0) | uniform(descriptor_address(smem_ + Layout::kP + slot * Layout::kPBytes));
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
    if constexpr (kCluster > 1) {
      if (lane_ < kCluster) {
        arrive_at(in_block(smem_ + Layout::kPEmpty + 8 * slot, static_cast<uint32_t>(lane_)));
      }
    } else if (lane_ == 0) {
      barrier_arrive(smem_ + Layout::kPEmpty + 8 * slot);
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
      for (int step = 0; step < Layout::kGranule / kBlockKeys; ++step) {
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

  // Rows of V behind the last key and before the first one, in their granules, are other bytes: they meet P = +0 and
  // must be finite.
  __device__ __forceinline__ void clear_rows(uint32_t values, int first, int rows) const {
    constexpr int kPieces = Layout::kPanelRow / 16;
    const int thread = 32 * warp_ + lane_;
#pragma unroll 1
    for (int row = first + thread / kPieces; row < first + rows; row += kOutputThreads / kPieces) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        store_piece(values + static_cast<uint32_t>(panel * Layout::kPanelGranule * kCluster + row * Layout::kPanelRow +
                                                   thread % kPieces * 16),
                    {0, 0, 0, 0});
      }
    }
  }

  __device__ __forceinline__ void hand_over(const float (&o)[kPanels][kRows / 2], const float (&m)[2 * kEights],
                                            const float (&l)[2 * kEights]) {
    barrier_wait(smem_ + Layout::kPartEmpty + 8 * static_cast<uint32_t>(warp_), parts_ ^ 1U);
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const uint32_t part =
            smem_ + Layout::kParts + static_cast<uint32_t>(((warp_ * kPanels + p) * kEights + i) * kPartBytes);
        store_floats(part + 16 * static_cast<uint32_t>(lane_),
                     {o[p][4 * i], o[p][4 * i + 1], o[p][4 * i + 2], o[p][4 * i + 3]});
        if (e_ == 0) {
          store_floats(part + kPartOutputBytes + 16 * static_cast<uint32_t>(q_),
                       {m[2 * i], l[2 * i], m[2 * i + 1], l[2 * i + 1]});
        }
      }
    }
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive(smem_ + Layout::kPartFull + 8 * static_cast<uint32_t>(warp_));
    }
    parts_ ^= 1U;
  }

  // R7.
  __device__ __forceinline__ void add_sums(int count, uint32_t slot, uint32_t info, float (&l)[2 * kEights]) const {
    barrier_wait(smem_ + Layout::kSumsFull + 8 * slot, at_.parity);
    const uint32_t sums = smem_ + Layout::kSums + slot * kCluster * Layout::kSumsGranule;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float2 a[kCluster];
      float2 sum[kCluster];
#pragma unroll
      for (int g = 0; g < kCluster; ++g) {
        a[g] = load_pair(info + 4 * (g * kRows + 8 * i + 2 * q_));
        sum[g] = load_pair(sums + 4 * ((g * kDecodeClasses + e_) * kRows + 8 * i + 2 * q_));
      }
#pragma unroll
      for (int g = 0; g < kCluster; ++g) {
        // Beyond the round's granules the slots hold older numbers.
        l[2 * i] = g < count ? __fmaf_rn(l[2 * i], a[g].x, sum[g].x) : l[2 * i];
        l[2 * i + 1] = g < count ? __fmaf_rn(l[2 * i + 1], a[g].y, sum[g].y) : l[2 * i + 1];
      }
    }
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int warp_, rank_, lane_, e_, q_;
  StageAt<Layout::kVStages> v_at_;
  StageAt<kSlots> at_;
  uint32_t parts_ = 0;  // parity of the part that is handed over next
};

}  // namespace tessera::sm90
