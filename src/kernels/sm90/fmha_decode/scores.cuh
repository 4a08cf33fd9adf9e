// The score warps: S^T = K Q^T of the block's granule of every round (R1), masks (R2), the maxima of all granules of
// the round (R3), weights (R4, R5) to every block of the cluster, class sums (R7).
//
// Warp w of the eight holds k16 block w of the granule; a lane the keys e and e + 8 of it, e = lane / 4, which are of
// class e (R7), and the rows 8 i + 2 q and the next, q = lane mod 4: s[4 i + 2 h + r] is key e + 8 h, row 8 i + 2 q +
// r.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "contract/ceil_product.h"
#include "contract/exp2.h"
#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/cluster.cuh"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/narrow_wgmma.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"
#include "kernels/sm90/smem_tile.cuh"

namespace tessera::sm90 {

inline constexpr uint32_t kAllLanes = 0xffffffffU;
inline constexpr uint32_t kScoreBarrier = 1;  // named barrier of the score warps
inline constexpr int kScoreThreads = 32 * kDecodeScoreWarps;

__device__ __forceinline__ float no_maximum() {
  return __uint_as_float(0xff800000U);
}

// u of R3: the cheap form below 2^22 (contract/ceil_product.h).
__device__ __forceinline__ float integer_above(float mu, float c) {
  const float u = __fadd_rn(__fmaf_ru(mu, c, kRoundMagic), -kRoundMagic);
  return fabsf(u) < 0x1p22F ? u : ceil_product(mu, c);
}

template <bool kBf16>
__device__ __forceinline__ uint32_t round_two(float low, float high) {
  uint32_t pair;
  if constexpr (kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// Two 8 x 8 matrices of 16-bit elements, transposed, to the rows whose addresses lanes 0..7 and 8..15 give.
__device__ __forceinline__ void store_transposed(uint32_t row, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(first), "r"(second)
               : "memory");
}

template <class Tag>
class ScoreRole {
  using Layout = DecodeLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kEights = kRows / 8;
  static constexpr int kCluster = Layout::kCluster;
  static constexpr bool kBf16 = Tag::kNumbers.bf16;
  static constexpr Element kElement = kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kChunk = Tag::kNumbers.chunk_keys;
  static constexpr bool kPaged = Tag::kSchedule.paged;

 public:
  __device__ __forceinline__ ScoreRole(const DecodeArguments& args, uint32_t smem, int warp, uint32_t rank)
      : args_(args), smem_(smem), warp_(warp), rank_(static_cast<int>(rank)) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    lane_ = lane;
    e_ = lane / 4;
    q_ = lane % 4;
  }

  __device__ __forceinline__ void run(int64_t first_unit, int64_t step) {
    UnitWalker<kChunk> walker(args_);
    Unit unit;
    bool met = false;
    StageAt<kSlots> q_at;
    for (int64_t number = first_unit; walker.find(number, unit); number += step) {
      const UnitKeys<kChunk> keys(unit);
      set_limits(unit);
#pragma unroll
      for (float& m : m_) {
        m = no_maximum();
      }
      barrier_wait(smem_ + Layout::kQFull + 8 * q_at.stage, q_at.parity);
      const int granules = keys.granules();
      for (int first = 0; first < granules; first += kCluster) {
        const int count = uniform(granules - first < kCluster ? granules - first : kCluster);
        round(count, keys.begin + (first + rank_) * kDecodeGranule, q_at.stage, met);
      }
      if (lane_ == 0) {
        barrier_arrive(smem_ + Layout::kQEmpty + 8 * q_at.stage);
      }
      q_at.advance();
    }
    if (!met) {
      cluster_wait();
    }
  }

 private:
  // R2: keys of a row end here.
  __device__ __forceinline__ void set_limits(const Unit& unit) {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const int row = 8 * (i / 2) + 2 * q_ + i % 2;
      const int token = row / args_.group;
      int limit = token < args_.seqlen_q ? unit.keys : 0;
      if (args_.causal != 0) {
        limit = min(limit, max(0, unit.keys - args_.seqlen_q + token + 1));
      }
      limit_[i] = limit;
    }
  }

  __device__ __forceinline__ void round(int count, int first_key, int q_stage, bool& met) {
    const uint32_t slot = at_.stage;
    const bool own = rank_ < count;  // the last round of a chunk may have fewer granules than blocks
    const uint32_t maxima_full = smem_ + Layout::kMaximaFull + 8 * slot;
    if (warp_ == 0 && lane_ == 0) {
      barrier_arrive_expect(maxima_full, static_cast<uint32_t>(count * Layout::kMaximaGranule));
    }
    float s[kRows / 2];
    if (own) {
      multiply(s, q_stage);
      mask(s, first_key);
    }
    if (!met) {
      cluster_wait();
      met = true;
    }
    if (own) {
      send_maxima(s, slot);
    }
    barrier_wait(maxima_full, at_.parity);
    float offset[2 * kEights];
    replay(count, slot, offset);
    if (own) {
      weigh(s, slot, offset);
    }
    at_.advance();
  }

  // R1.
  __device__ __forceinline__ void multiply(float (&s)[kRows / 2], int q_stage) {
    barrier_wait(smem_ + Layout::kKFull + 8 * k_at_.stage, k_at_.parity);
    const uint32_t keys = smem_ + Layout::kK + k_at_.stage * Layout::kKBytes + warp_ / 4 * 64 * kPanelRowBytes;
    const uint64_t a = KMajorTile::kFlags | uniform(descriptor_address(keys));
    const uint64_t b = KMajorTile::kFlags | uniform(descriptor_address(smem_ + Layout::kQ + q_stage * Layout::kQBytes));
    if constexpr (kPaged) {
      fence_async_proxy();
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Layout::kHeadDim / 16; ++step) {
      const uint64_t a_step = KMajorTile::step(a, kDecodeGranule, step);
      const uint64_t b_step = KMajorTile::step(b, kRows, step);
      if (step == 0) {
        narrow_first<kElement, false>(s, a_step, b_step);
      } else {
        narrow_next<kElement, false>(s, a_step, b_step);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin_registers(s);
    if constexpr (kPaged) {
      mask_absent(s);
    }
    if (lane_ == 0) {
      barrier_arrive(smem_ + Layout::kKEmpty + 8 * k_at_.stage);
    }
    k_at_.advance();
  }

  __device__ __forceinline__ void mask(float (&s)[kRows / 2], int first_key) const {
    const int key = first_key + 16 * warp_ + e_;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const int row = 2 * (i / 4) + i % 2;
      s[i] = key + i / 2 % 2 * 8 < limit_[row] ? s[i] : no_maximum();
    }
  }

  // Keys of pages that the pool does not have.
  __device__ __forceinline__ void mask_absent(float (&s)[kRows / 2]) const {
    const uint32_t present =
        smem_ + Layout::kPresent + k_at_.stage * kDecodeGranule + static_cast<uint32_t>(16 * warp_ + e_);
    const bool there[2] = {load_shared_byte(present) != 0, load_shared_byte(present + 8) != 0};
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      s[i] = there[i / 2 % 2] ? s[i] : no_maximum();
    }
    __syncwarp();
  }

  // Largest score of the warp's block per row, to block e of the cluster.
  __device__ __forceinline__ void send_maxima(const float (&s)[kRows / 2], uint32_t slot) const {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float2 mu = {fmaxf(s[4 * i], s[4 * i + 2]), fmaxf(s[4 * i + 1], s[4 * i + 3])};
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        mu.x = fmaxf(mu.x, __shfl_xor_sync(kAllLanes, mu.x, lanes));
        mu.y = fmaxf(mu.y, __shfl_xor_sync(kAllLanes, mu.y, lanes));
      }
      if (e_ < kCluster) {
        const int offset =
            ((static_cast<int>(slot) * kCluster + rank_) * kDecodeScoreWarps + warp_) * kRows + 8 * i + 2 * q_;
        send(in_block(smem_ + Layout::kMaxima + 4 * offset, e_), in_block(smem_ + Layout::kMaximaFull + 8 * slot, e_),
             mu);
      }
    }
  }

  // R3 over the round's granules; `offset` receives RN(b - m') of the own one. Warp 0 leaves what the output warps
  // need.
  __device__ __forceinline__ void replay(int count, uint32_t slot, float (&offset)[2 * kEights]) {
    float u[2 * kEights];  // of granule e
    float a[2 * kEights];  // the a of R3 of granule e; 1 without a maximum before it, when O and l are zero
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float2 mu = {no_maximum(), no_maximum()};
      if (e_ < count) {
        const int granule = (static_cast<int>(slot) * kCluster + e_) * kDecodeScoreWarps;
#pragma unroll
        for (int w = 0; w < kDecodeScoreWarps; ++w) {
          const int from = (w + e_) % kDecodeScoreWarps;  // other banks for every granule
          const float2 part = load_pair(smem_ + Layout::kMaxima + 4 * ((granule + from) * kRows + 8 * i + 2 * q_));
          mu.x = fmaxf(mu.x, part.x);
          mu.y = fmaxf(mu.y, part.y);
        }
      }
      u[2 * i] = integer_above(mu.x, args_.c);
      u[2 * i + 1] = integer_above(mu.y, args_.c);
    }
    // All granules' u first, so that the shuffles wait for nobody; a granule that does not exist has -Inf and moves
    // nothing.
    float every_u[kCluster][2 * kEights];
#pragma unroll
    for (int g = 0; g < kCluster; ++g) {
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
        every_u[g][i] = __shfl_sync(kAllLanes, u[i], 4 * g + q_);
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      float before = no_maximum();  // of granule e
      float after = no_maximum();
      float own = no_maximum();
#pragma unroll
      for (int g = 0; g < kCluster; ++g) {
        const float old = m_[i];
        const float m = every_u[g][i] > __fadd_rn(old, kLazyThreshold) ? every_u[g][i] : old;
        before = g == e_ ? old : before;
        after = g == e_ ? m : after;
        own = g == rank_ ? m : own;
        m_[i] = m;
      }
      a[i] = before == no_maximum() ? 1.0F : drop_weight(__fsub_rn(after, before));
      offset[i] = __fsub_rn(args_.bias, own == no_maximum() ? 0.0F : own);
    }
    if (warp_ == 0) {
      hand_over(count, slot, a);
    }
  }

  __device__ __forceinline__ void hand_over(int count, uint32_t slot, const float (&a)[2 * kEights]) const {
    barrier_wait(smem_ + Layout::kPEmpty + 8 * slot, at_.parity ^ 1U);
    const uint32_t info = smem_ + Layout::kInfo + slot * Layout::kInfoBytes;
    bool moved = false;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      moved |= a[2 * i] != 1.0F || a[2 * i + 1] != 1.0F;
      if (e_ < kCluster) {
        store_pair(info + 4 * (e_ * kRows + 8 * i + 2 * q_), {a[2 * i], a[2 * i + 1]});
      }
      if (e_ == 0) {
        store_pair(info + Layout::kRescaleBytes + 4 * (8 * i + 2 * q_), {m_[2 * i], m_[2 * i + 1]});
      }
    }
    const uint32_t lanes = __ballot_sync(kAllLanes, moved);  // bits 4 g .. 4 g + 3: granule g
    if (lane_ == 0) {
      store_shared(info + Layout::kRescaleBytes + 4 * kRows, static_cast<int>(lanes));
    }
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive_expect(smem_ + Layout::kSumsFull + 8 * slot, static_cast<uint32_t>(count * Layout::kSumsGranule));
      barrier_arrive_expect(smem_ + Layout::kPFull + 8 * slot, static_cast<uint32_t>(count * Layout::kPGranule));
    }
  }

  // R4, R5 to every block, then R7's sums of the granule.
  __device__ __forceinline__ void weigh(const float (&s)[kRows / 2], uint32_t slot,
                                        const float (&offset)[2 * kEights]) {
    constexpr int kWarpBytes = 32 * kRows;  // (16 keys, rows) of P
    const uint32_t staging = smem_ + Layout::kStaging + static_cast<uint32_t>(warp_ * kWarpBytes);
    const uint32_t sums = smem_ + Layout::kBlockSums + 4 * ((warp_ * kDecodeClasses + e_) * kRows + 2 * q_);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float p[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        p[n] = exp2_approx(__fmaf_rn(s[4 * i + n], args_.c, offset[2 * i + n % 2]));
      }
      store_pair(sums + 32 * i, {__fadd_rn(p[0], p[2]), __fadd_rn(p[1], p[3])});
      store_transposed(staging + static_cast<uint32_t>(256 * i + lane_ % 16 * 16), round_two<kBf16>(p[0], p[1]),
                       round_two<kBf16>(p[2], p[3]));
    }
    __syncwarp();
    barrier_wait(smem_ + Layout::kPEmpty + 8 * slot, at_.parity ^ 1U);
    const uint32_t target = smem_ + Layout::kP + slot * Layout::kPBytes +
                            static_cast<uint32_t>(rank_ * Layout::kPGranule + warp_ * kWarpBytes);
    constexpr int kPieces = kWarpBytes / 16;
    const uint32_t own_piece = 16U * static_cast<uint32_t>(lane_ % kPieces);  // the same for every block
    const uint4 piece = load_piece(staging + own_piece);
    const uint32_t full = smem_ + Layout::kPFull + 8 * slot;
#pragma unroll
    for (int n = 0; n < (kPieces * kCluster + 31) / 32; ++n) {
      const auto block = static_cast<uint32_t>((32 * n + lane_) / kPieces);
      if (block < kCluster) {
        send(in_block(target + own_piece, block), in_block(full, block), piece);
      }
    }
    // The sums below are read before their warps send the next maxima, without which nobody gets here again.
    named_barrier_sync(kScoreBarrier, kScoreThreads);
    const int index = 32 * warp_ + lane_;  // class, row
    if (index < kDecodeClasses * kRows) {
      const uint32_t from = smem_ + Layout::kBlockSums + 4 * index;
      float g = load_float(from);
#pragma unroll
      for (int w = 1; w < kDecodeScoreWarps; ++w) {
        g = __fadd_rn(g, load_float(from + w * Layout::kSumsGranule));
      }
      const uint32_t to = smem_ + Layout::kSums + (slot * kCluster + rank_) * Layout::kSumsGranule + 4 * index;
#pragma unroll
      for (uint32_t block = 0; block < kCluster; ++block) {
        send(in_block(to, block), in_block(smem_ + Layout::kSumsFull + 8 * slot, block), g);
      }
    }
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int warp_, rank_, lane_, e_, q_;
  StageAt<Layout::kKStages> k_at_;
  StageAt<kSlots> at_;
  float m_[2 * kEights];
  int limit_[2 * kEights];
};

}  // namespace tessera::sm90
