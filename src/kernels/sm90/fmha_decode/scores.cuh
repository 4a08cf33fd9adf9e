// The score warps: S^T = K Q^T of the block's granules of a round (R1), masks (R2), the maxima of all granules of the
// round (R3), then pass by pass the weights (R4, R5) to every block of the cluster and class sums (R7). A pass is one
// granule per block.
//
// Warp w holds k16 block w of the granule; a lane the keys e and e + 8 of it, e = lane / 4, which are of
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
// Named barriers of the score warps.
inline constexpr uint32_t kScoreBarrier = 1;
inline constexpr uint32_t kMaximaBarrier = 3;

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
  static constexpr int kOwn = Layout::kOwn;
  static constexpr int kRound = Layout::kRound;
  static constexpr int kHalves = (kRound + 7) / 8;
  static constexpr uint32_t kScoreThreads = 32 * Layout::kScoreWarps;
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

  __device__ __forceinline__ void run() {
    UnitReader<Tag> units(smem_);
    Unit unit;
    bool met = false;
    StageAt<kSlots> q_at;
    while (units.next(unit)) {
      const UnitKeys<Tag> keys(unit);
      set_limits(unit);
#pragma unroll
      for (float& m : m_) {
        m = no_maximum();
      }
      barrier_wait(smem_ + Layout::kQFull + 8 * q_at.stage, q_at.parity);
      const int granules = keys.granules();
#pragma unroll 1
      for (int first = 0; first < granules; first += kRound) {
        const int count = uniform(granules - first < kRound ? granules - first : kRound);
        round(count, keys.begin + (first + rank_) * Layout::kGranule, q_at.stage, met);
      }
      if (lane_ == 0) {
        barrier_arrive(smem_ + Layout::kQEmpty + 8 * q_at.stage);
      }
      q_at.advance();
    }
    meet(met);
    drain();
  }

 private:
  // Blocks may send once all have set up their barriers.
  __device__ __forceinline__ void meet(bool& met) const {
    if (kCluster > 1 && !met) {
      __syncwarp();
      cluster_wait();
    }
    met = true;
  }

  // Nobody leaves while others may still arrive at its barriers; whatever else they send has been waited for.
  __device__ __forceinline__ void drain() {
    if constexpr (kCluster > 1) {
#pragma unroll 1
      for (int i = 0; i < kSlots; ++i) {
        barrier_wait(smem_ + Layout::kPEmpty + 8 * pass_.stage, pass_.parity ^ 1U);
        pass_.advance();
      }
    }
  }

  // R2: the keys that a row sees, as the first one and their number.
  __device__ __forceinline__ void set_limits(const Unit& unit) {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const int row = unit.first_row + 8 * (i / 2) + 2 * q_ + i % 2;
      const int token = divide(row, args_.group);
      const int position = unit.keys - args_.seqlen_q + token;
      int end = unit.keys;
      if (args_.causal != 0) {
        end = min(end, position + 1);
      }
      if (args_.window_right >= 0) {
        end = min(end, position + 1 + args_.window_right);
      }
      first_[i] = args_.window < 0 ? 0 : max(0, position - args_.window);
      count_[i] = token < args_.seqlen_q ? static_cast<uint32_t>(max(0, end - first_[i])) : 0;
    }
  }

  // `count` granules; the block's own ones are the rank-th of every pass.
  __device__ __forceinline__ void round(int count, int first_key, int q_stage, bool& met) {
    const uint32_t slot = round_.stage;
    const uint32_t maxima_full = smem_ + Layout::kMaximaFull + 8 * slot;
    if (kCluster > 1 && warp_ == 0 && lane_ == 0) {
      barrier_arrive_expect(maxima_full, static_cast<uint32_t>(count * Layout::kMaximaGranule));
    }
    float s[kOwn][kRows / 2];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int granule = i * kCluster + rank_;
      if (granule < count) {
        multiply(s[i], q_stage);
        mask(s[i], first_key + i * kCluster * Layout::kGranule);
        meet(met);
        send_maxima(s[i], slot, granule);
      }
    }
    meet(met);
    if constexpr (kCluster > 1) {
      barrier_wait(maxima_full, round_.parity);
    } else {
      __syncwarp();
      named_barrier_sync(kMaximaBarrier, kScoreThreads);
    }
    Moves moves;
    replay(count, slot, moves);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int left = count - i * kCluster;
      if (left > 0) {
        barrier_wait(smem_ + Layout::kPEmpty + 8 * pass_.stage, pass_.parity ^ 1U);
        if (warp_ == 0) {
          hand_over(i, left < kCluster ? left : kCluster, moves);
        }
        if (rank_ < left) {
          weigh(s[i], moves.offset[i]);
        }
        pass_.advance();
      }
    }
    round_.advance();
  }

  // R1.
  __device__ __forceinline__ void multiply(float (&s)[kRows / 2], int q_stage) {
    barrier_wait(smem_ + Layout::kKFull + 8 * k_at_.stage, k_at_.parity);
    __syncwarp();  // wgmma and named barriers want whole warps
    const uint32_t keys = smem_ + Layout::kK + k_at_.stage * Layout::kKBytes + warp_ / 4 * 64 * kPanelRowBytes;
    const uint64_t a = KMajorTile::kFlags | uniform(descriptor_address(keys));
    const uint64_t b = KMajorTile::kFlags | uniform(descriptor_address(smem_ + Layout::kQ + q_stage * Layout::kQBytes));
    if constexpr (kPaged) {
      fence_async_proxy();
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Layout::kHeadDim / 16; ++step) {
      const uint64_t a_step = KMajorTile::step(a, Layout::kGranule, step);
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
      s[i] = static_cast<uint32_t>(key + i / 2 % 2 * 8 - first_[row]) < count_[row] ? s[i] : no_maximum();
    }
  }

  // Keys of pages that the pool does not have.
  __device__ __forceinline__ void mask_absent(float (&s)[kRows / 2]) const {
    const uint32_t present =
        smem_ + Layout::kPresent + k_at_.stage * Layout::kGranule + static_cast<uint32_t>(16 * warp_ + e_);
    const bool there[2] = {load_shared_byte(present) != 0, load_shared_byte(present + 8) != 0};
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      s[i] = there[i / 2 % 2] ? s[i] : no_maximum();
    }
    __syncwarp();
  }

  // Largest score of the warp's block per row, to block e of the cluster.
  __device__ __forceinline__ void send_maxima(const float (&s)[kRows / 2], uint32_t slot, int granule) const {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float2 mu = {fmaxf(s[4 * i], s[4 * i + 2]), fmaxf(s[4 * i + 1], s[4 * i + 3])};
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        mu.x = fmaxf(mu.x, __shfl_xor_sync(kAllLanes, mu.x, lanes));
        mu.y = fmaxf(mu.y, __shfl_xor_sync(kAllLanes, mu.y, lanes));
      }
      if (e_ < kCluster) {
        const int index = ((static_cast<int>(slot) * kRound + granule) * Layout::kScoreWarps + warp_) * kRows;
        const uint32_t to = smem_ + Layout::kMaxima + 4 * static_cast<uint32_t>(index + 8 * i + 2 * q_);
        if constexpr (kCluster > 1) {
          send(in_block(to, e_), in_block(smem_ + Layout::kMaximaFull + 8 * slot, e_), mu);
        } else {
          store_pair(to, mu);
        }
      }
    }
  }

  // What R3 gives for a round.
  struct Moves {
    float a[kHalves][2 * kEights];    // of granule e + 8 h; 1 without a maximum before it, when O and l are zero
    float offset[kOwn][2 * kEights];  // RN(b - m') of the block's own granules
  };

  // R3 over the round's granules.
  __device__ __forceinline__ void replay(int count, uint32_t slot, Moves& moves) {
    float u[kHalves][2 * kEights];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float2 mu = {no_maximum(), no_maximum()};
        if (e_ + 8 * h < count) {
          const int granule = (static_cast<int>(slot) * kRound + e_ + 8 * h) * Layout::kScoreWarps;
#pragma unroll
          for (int w = 0; w < Layout::kScoreWarps; ++w) {
            const int from = (w + e_) % Layout::kScoreWarps;  // other banks for every granule
            const float2 part = load_pair(smem_ + Layout::kMaxima + 4 * ((granule + from) * kRows + 8 * i + 2 * q_));
            mu.x = fmaxf(mu.x, part.x);
            mu.y = fmaxf(mu.y, part.y);
          }
        }
        u[h][2 * i] = integer_above(mu.x, args_.c);
        u[h][2 * i + 1] = integer_above(mu.y, args_.c);
      }
    }
    // All granules' u first, so that the shuffles wait for nobody; a granule that does not exist has -Inf and moves
    // nothing.
    float every_u[kRound][2 * kEights];
#pragma unroll
    for (int g = 0; g < kRound; ++g) {
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
        every_u[g][i] = __shfl_sync(kAllLanes, u[g / 8][i], 4 * (g % 8) + q_);
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      float before[kHalves];
      float after[kHalves];
      float own[kOwn];
#pragma unroll
      for (int g = 0; g < kRound; ++g) {
        const float old = m_[i];
        const float m = every_u[g][i] > __fadd_rn(old, kLazyThreshold) ? every_u[g][i] : old;
        before[g / 8] = g % 8 == 0 || g % 8 == e_ ? old : before[g / 8];
        after[g / 8] = g % 8 == 0 || g % 8 == e_ ? m : after[g / 8];
        own[g / kCluster] = g % kCluster == 0 || g % kCluster == rank_ ? m : own[g / kCluster];
        m_[i] = m;
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        moves.a[h][i] = before[h] == no_maximum() ? 1.0F : drop_weight(__fsub_rn(after[h], before[h]));
      }
#pragma unroll
      for (int g = 0; g < kOwn; ++g) {
        moves.offset[g][i] = __fsub_rn(args_.bias, own[g] == no_maximum() ? 0.0F : own[g]);
      }
    }
  }

  // What the output warps need of pass i of the round: a of its granules, m, and which granules move a maximum.
  __device__ __forceinline__ void hand_over(int pass, int count, const Moves& moves) const {
    const uint32_t slot = pass_.stage;
    const uint32_t info = smem_ + Layout::kInfo + slot * Layout::kInfoBytes;
    const int half = pass * kCluster / 8;
    const int first = pass * kCluster % 8;
    bool moved = false;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float2 a = {moves.a[half][2 * i], moves.a[half][2 * i + 1]};
      moved |= a.x != 1.0F || a.y != 1.0F;
      if (e_ >= first && e_ < first + kCluster) {
        store_pair(info + 4 * static_cast<uint32_t>((e_ - first) * kRows + 8 * i + 2 * q_), a);
      }
      if (e_ == 0) {
        store_pair(info + Layout::kRescaleBytes + 4 * (8 * i + 2 * q_), {m_[2 * i], m_[2 * i + 1]});
      }
    }
    const uint32_t lanes = __ballot_sync(kAllLanes, moved);
    if (lane_ == 0) {  // bits 4 g .. 4 g + 3: granule g of the pass
      store_shared(info + Layout::kRescaleBytes + 4 * kRows, static_cast<int>(lanes >> (4 * first)));
    }
    __syncwarp();
    if (kCluster > 1 && lane_ == 0) {
      barrier_arrive_expect(smem_ + Layout::kSumsFull + 8 * slot, static_cast<uint32_t>(count * Layout::kSumsGranule));
      barrier_arrive_expect(smem_ + Layout::kPFull + 8 * slot, static_cast<uint32_t>(count * Layout::kPGranule));
    }
  }

  // R4, R5 to every block, then R7's sums of the granule.
  __device__ __forceinline__ void weigh(const float (&s)[kRows / 2], const float (&offset)[2 * kEights]) {
    constexpr int kWarpBytes = 32 * kRows;  // (16 keys, rows) of P
    const uint32_t slot = pass_.stage;
    const uint32_t target = smem_ + Layout::kP + slot * Layout::kPBytes +
                            static_cast<uint32_t>(rank_ * Layout::kPGranule + warp_ * kWarpBytes);
    const uint32_t full = smem_ + Layout::kPFull + 8 * slot;
    const uint32_t staging =
        kCluster > 1 ? smem_ + Layout::kStaging + static_cast<uint32_t>(warp_ * kWarpBytes) : target;
    const uint32_t block_sums = smem_ + Layout::kBlockSums + slot % Layout::kBlockSumSlots * Layout::kBlockSumBytes;
    const uint32_t sums = block_sums + 4 * static_cast<uint32_t>((warp_ * kDecodeClasses + e_) * kRows + 2 * q_);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float p[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        p[n] = exp2_approx(__fmaf_rn(s[4 * i + n], args_.c, offset[2 * i + n % 2]));
      }
      store_pair(sums + 32 * static_cast<uint32_t>(i), {__fadd_rn(p[0], p[2]), __fadd_rn(p[1], p[3])});
      store_transposed(staging + static_cast<uint32_t>(256 * i + lane_ % 16 * 16), round_two<kBf16>(p[0], p[1]),
                       round_two<kBf16>(p[2], p[3]));
    }
    if constexpr (kCluster > 1) {
      __syncwarp();
      send_weights(staging, target, full);
    } else {
      fence_async_proxy();
      __syncwarp();
      if (lane_ == 0) {
        barrier_arrive(full);
      }
    }
    // The sums below are read before their warps get to the next pass but one, behind another such barrier.
    __syncwarp();
    named_barrier_sync(kScoreBarrier, kScoreThreads);
    send_sums(block_sums, slot);
  }

  __device__ __forceinline__ void send_weights(uint32_t staging, uint32_t target, uint32_t full) const {
    constexpr int kPieces = 2 * kRows;                                        // of 16 bytes
    const uint32_t own_piece = 16U * static_cast<uint32_t>(lane_ % kPieces);  // the same for every block
    const uint4 piece = load_piece(staging + own_piece);
#pragma unroll
    for (int n = 0; n < (kPieces * kCluster + 31) / 32; ++n) {
      const auto block = static_cast<uint32_t>((32 * n + lane_) / kPieces);
      if (block < kCluster) {
        send(in_block(target + own_piece, block), in_block(full, block), piece);
      }
    }
  }

  __device__ __forceinline__ void send_sums(uint32_t block_sums, uint32_t slot) const {
    const int index = 32 * warp_ + lane_;  // class, row
    if (index >= kDecodeClasses * kRows) {
      return;
    }
    const uint32_t from = block_sums + 4 * static_cast<uint32_t>(index);
    float g = load_float(from);
#pragma unroll
    for (int w = 1; w < Layout::kScoreWarps; ++w) {
      g = __fadd_rn(g, load_float(from + w * Layout::kSumsGranule));
    }
    const uint32_t to = smem_ + Layout::kSums +
                        (slot * kCluster + static_cast<uint32_t>(rank_)) * Layout::kSumsGranule +
                        4 * static_cast<uint32_t>(index);
    const uint32_t full = smem_ + Layout::kSumsFull + 8 * slot;
    if constexpr (kCluster > 1) {
#pragma unroll
      for (uint32_t block = 0; block < kCluster; ++block) {
        send(in_block(to, block), in_block(full, block), g);
      }
    } else {
      store_shared(to, __float_as_int(g));
      __syncwarp();
      if (lane_ == 0) {
        barrier_arrive(full);
      }
    }
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int warp_, rank_, lane_, e_, q_;
  StageAt<Layout::kKStages> k_at_;
  StageAt<kSlots> round_;  // slot of maxima
  StageAt<kSlots> pass_;   // slot of P, of sums and of what goes with them
  float m_[2 * kEights];
  int first_[2 * kEights];
  uint32_t count_[2 * kEights];
};

}  // namespace tessera::sm90
