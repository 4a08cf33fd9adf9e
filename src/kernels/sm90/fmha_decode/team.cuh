// The kernel in which a cluster takes a unit at once, for the shortest time that a single unit can take: every block
// scores its share of the granules (R1), all tell one another maxima (R3), weights (R5) and class sums (R7), and every
// block sums 16 output columns over all keys (R6). Nothing is done twice, so there are no rings: all of K and V that
// the block needs is asked for at once.
//
// Block r scores granules r, r + n, ... Its k16 blocks are dealt to the warps: number w + 8 t is tile t of warp w.
// Lanes hold scores as in alone_scores.cuh, outputs as in alone_outputs.cuh.
#pragma once

#include <cstdint>

#include "contract/exp2.h"
#include "contract/plan.h"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/combine.cuh"
#include "kernels/sm90/fmha_decode/counters.cuh"
#include "kernels/sm90/fmha_decode/fragments.cuh"
#include "kernels/sm90/fmha_decode/rows.cuh"
#include "kernels/sm90/fmha_decode/softmax_steps.cuh"
#include "kernels/sm90/fmha_decode/state.cuh"
#include "kernels/sm90/fmha_decode/team.h"
#include "kernels/sm90/fmha_decode/team_unit.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/fmha_decode/visible.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

template <class Tag>
class Team : private TeamUnit<Tag> {
  using Layout = TeamLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kEights = Layout::kEights;
  static constexpr int kTeam = Layout::kTeam;
  static constexpr int kTiles = Layout::kTiles;
  static constexpr int kOwn = Layout::kOwn;
  static constexpr int kSteps = Layout::kHeadDim / 16;
  static constexpr int kEightGranules = Layout::kGranules / 8;
  static constexpr bool kBf16 = Tag::kBf16;

  using TeamUnit<Tag>::args_;
  using TeamUnit<Tag>::smem_;
  using TeamUnit<Tag>::unit_;
  using TeamUnit<Tag>::warp_;
  using TeamUnit<Tag>::lane_;
  using TeamUnit<Tag>::rank_;
  using TeamUnit<Tag>::granules_;
  using TeamUnit<Tag>::there_;
  using TeamUnit<Tag>::rows;
  using TeamUnit<Tag>::number_of;
  using TeamUnit<Tag>::granule_of;
  using TeamUnit<Tag>::first_key;
  using TeamUnit<Tag>::block_of;
  using TeamUnit<Tag>::copy_keys;
  using TeamUnit<Tag>::touch_pages;
  using TeamUnit<Tag>::drop;

 public:
  __device__ __forceinline__ Team(const DecodeArguments& args, uint32_t smem, const Unit& unit)
      : TeamUnit<Tag>(args, smem, unit), e_(lane_ / 4), q_(lane_ % 4) {}

  __device__ __forceinline__ void run() {
    const int32_t entry = touch_pages();
    copy_keys();
    if (threadIdx.x == 0) {
      init_barriers();
    }
    __syncwarp();
    cluster_arrive();
    load_queries();
    // Every thread arrives at V's barriers, which the first one has to set up before.
    __syncthreads();
    this->template copy_values<0, kTeamThreads, 0, 4>();  // the others fill a later wait
    float s[kTiles][kEights][4];
    score(s);
    drop(entry);
    __syncwarp();
    cluster_wait();
    send_maxima(s);
    this->template copy_values<0, kTeamThreads, 4, 8>();
    barrier_wait(smem_ + Layout::kMaximaFull, 0);
    __syncwarp();
    Moves moves;
    replay(moves);
    __syncthreads();  // all have read the maxima, in whose place sums come
    weigh(s, moves);
    __syncthreads();
    if (warp_ >= kTeamWarps / 2) {
      this->template copy_values<1, kTeamThreads / 2, 0, 16>();  // every block has scored all keys: their place is free
      wait_for_copies<0>();
      return;
    }
    if (warp_ >= 2) {
      send_sums();
    }
    if (warp_ == 1) {
      add_sums(moves);
    }
    if (warp_ == 3) {
      claim();
    }
    if (warp_ == 0) {
      add_outputs(moves);
    }
    // Meanwhile another warp goes through the end of the work with nothing to store, so that the instructions are
    // there.
    if (warp_ == 0 || warp_ == 2) {
      finish(warp_ == 0);
    }
  }

 private:
  // Of R3, for granule e + 8 h: a; and RN(b - m') of the block's own granules.
  struct Moves {
    float a[kEightGranules][2 * kEights];
    float offset[kOwn][2 * kEights];
  };

  __device__ __forceinline__ void init_barriers() const {
    const int first_half = min(granules_, Layout::kGranules / 2);
    const auto p_granule = static_cast<uint32_t>(Layout::kGranuleBlocks * 32 * rows());
    barrier_init(smem_ + Layout::kMaximaFull, 1);
    barrier_init(smem_ + Layout::kSumsFull, 1);
    barrier_init(smem_ + Layout::kEndFull, 32 + 1);  // a warp with row sums, and the claim
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      barrier_init(smem_ + Layout::kPFull + 8 * half, 1);
      barrier_init(smem_ + Layout::kVFull + 8 * half, half == 1 ? kTeamThreads / 2 : kTeamThreads);
    }
    barrier_init_fence();
    barrier_arrive_expect(smem_ + Layout::kMaximaFull,
                          static_cast<uint32_t>(granules_ * Layout::kGranuleBlocks * kRows * 4));
    barrier_arrive_expect(smem_ + Layout::kSumsFull, static_cast<uint32_t>(granules_ * Layout::kSumsBlock));
    barrier_arrive_expect(smem_ + Layout::kPFull, static_cast<uint32_t>(first_half) * p_granule);
    if (granules_ > first_half) {  // else nobody waits for it
      barrier_arrive_expect(smem_ + Layout::kPFull + 8, static_cast<uint32_t>(granules_ - first_half) * p_granule);
    }
  }

  __device__ __forceinline__ void load_queries() {
    const auto group = static_cast<int>(args_.group.value);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const int row = unit_.first_row + 8 * i + e_;
      const int token = divide(row, args_.group);
      const int64_t head = unit_.kv_head * group + row - token * group;
      const uint16_t* from = args_.q + unit_.batch * args_.q_strides.batch + token * args_.q_strides.token +
                             head * args_.q_strides.head + 2 * q_;
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        const bool wanted = token < args_.seqlen_q && 8 * n < args_.dims;
        queries_[i][n] = wanted ? *reinterpret_cast<const uint32_t*>(from + 8 * n) : 0;
      }
    }
  }

  // Where finish() will put rows, while there is time. The compiler would compute it where it is used.
  __device__ __forceinline__ void find_places() {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      places_[i] = RowPlaces<Tag>(args_, unit_, PartOfState(rank_, i));
#pragma unroll
      for (int64_t& first : places_[i].first) {
        asm volatile("" : "+l"(first));
      }
    }
  }

  // R1 and R2.
  __device__ __forceinline__ void score(float (&s)[kTiles][kEights][4]) {
    const VisibleKeys<kRows> visible(args_, unit_);
    find_places();
    wait_for_copies<1>();
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (auto& eight : s[t]) {
#pragma unroll
        for (float& x : eight) {
          x = 0.0F;
        }
      }
    }
    const uint32_t row = smem_ + Layout::kK + static_cast<uint32_t>((16 * warp_ + lane_ % 16) * Layout::kKRow);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto piece = static_cast<uint32_t>(((2 * step + lane_ / 16) ^ lane_ % 8) * 16);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint32_t a[4];
        load_matrices(a, row + static_cast<uint32_t>(16 * kTeamWarps * t * Layout::kKRow) + piece);
#pragma unroll
        for (int i = 0; i < kEights; ++i) {
          multiply_block<kBf16>(s[t][i], a, queries_[i][2 * step], queries_[i][2 * step + 1]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool there = (there_[t] >> (e_ + 8 * h) & 1U) != 0;
        const int key = first_key(t) + e_ + 8 * h;
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) {
          float& x = s[t][i / 2][2 * h + i % 2];
          x = there && visible.sees(i, key) ? x : minus_infinity();
        }
      }
    }
  }

  // Largest score of every k16 block per row, to every block of the cluster.
  __device__ __forceinline__ void send_maxima(const float (&s)[kTiles][kEights][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (granule_of(t) >= granules_) {
        continue;
      }
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float2 mu = {fmaxf(s[t][i][0], s[t][i][2]), fmaxf(s[t][i][1], s[t][i][3])};
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
          mu.x = fmaxf(mu.x, __shfl_xor_sync(kAllLanes, mu.x, lanes));
          mu.y = fmaxf(mu.y, __shfl_xor_sync(kAllLanes, mu.y, lanes));
        }
        const uint32_t to = smem_ + Layout::kMaxima + static_cast<uint32_t>(4 * (block_of(t) * kRows + 8 * i + 2 * q_));
#pragma unroll
        for (int block = e_; block < kTeam; block += 8) {
          send(in_block(to, static_cast<uint32_t>(block)),
               in_block(smem_ + Layout::kMaximaFull, static_cast<uint32_t>(block)), mu);
        }
      }
    }
  }

  // R3 over the unit's granules, by every warp for itself.
  __device__ __forceinline__ void replay(Moves& moves) {
    float u[kEightGranules][2 * kEights];
#pragma unroll
    for (int h = 0; h < kEightGranules; ++h) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float2 mu = {minus_infinity(), minus_infinity()};
        if (e_ + 8 * h < granules_) {
#pragma unroll
          for (int w = 0; w < Layout::kGranuleBlocks; ++w) {
            const int block = (e_ + 8 * h) * Layout::kGranuleBlocks + (w + e_) % Layout::kGranuleBlocks;  // other banks
            const float2 part =
                load_pair(smem_ + Layout::kMaxima + static_cast<uint32_t>(4 * (block * kRows + 8 * i + 2 * q_)));
            mu = {fmaxf(mu.x, part.x), fmaxf(mu.y, part.y)};
          }
        }
        u[h][2 * i] = integer_above(mu.x, args_.c);
        u[h][2 * i + 1] = integer_above(mu.y, args_.c);
      }
    }
    // Mostly the first granule's maximum stays.
    bool moves_later = false;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      m_[i] = __shfl_sync(kAllLanes, u[0][i], q_);
      const float bound = __fadd_rn(m_[i], kLazyThreshold);
      const float offset = __fsub_rn(args_.bias, m_[i] == minus_infinity() ? 0.0F : m_[i]);
#pragma unroll
      for (int h = 0; h < kEightGranules; ++h) {
        moves_later |= u[h][i] > bound && e_ + 8 * h > 0;
        moves.a[h][i] = 1.0F;
      }
#pragma unroll
      for (int g = 0; g < kOwn; ++g) {
        moves.offset[g][i] = offset;
      }
    }
    if (__any_sync(kAllLanes, moves_later)) {
      replay_moves(u, moves);
    }
  }

  __device__ __forceinline__ void replay_moves(const float (&u)[kEightGranules][2 * kEights], Moves& moves) {
    const int own = warp_ / Layout::kGranuleBlocks;  // with small granules a warp has one of the own ones
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      float before[kEightGranules];
      float after[kEightGranules];
      float m = minus_infinity();
#pragma unroll
      for (int g = 0; g < Layout::kGranules; ++g) {
        const float every = __shfl_sync(kAllLanes, u[g / 8][i], 4 * (g % 8) + q_);
        const float old = m;
        // -Inf, of a granule that is not there, moves nothing
        m = every > __fadd_rn(old, kLazyThreshold) ? every : old;
        before[g / 8] = g % 8 == 0 || g % 8 == e_ ? old : before[g / 8];
        after[g / 8] = g % 8 == 0 || g % 8 == e_ ? m : after[g / 8];
        const float offset = __fsub_rn(args_.bias, m == minus_infinity() ? 0.0F : m);
        moves.offset[g / kTeam][i] = g % kTeam == 0 || g % kTeam == rank_ ? offset : moves.offset[g / kTeam][i];
      }
      if (Layout::kGranuleBlocks < kTeamWarps) {
        moves.offset[0][i] = own == 0 ? moves.offset[0][i] : moves.offset[kOwn - 1][i];
      }
#pragma unroll
      for (int h = 0; h < kEightGranules; ++h) {
        moves.a[h][i] = before[h] == minus_infinity() ? 1.0F : drop_weight(__fsub_rn(after[h], before[h]));
      }
      m_[i] = m;
    }
  }

  // Where a row of eight of a k16 block's weights lies, for 8 of the keys: rows one after another, so that those that
  // exist are sent as one, and eight of them in different banks.
  static __device__ __forceinline__ uint32_t weights_row(int row, int half) {
    return static_cast<uint32_t>(32 * row + (half ^ row / 4) * 16);
  }

  // R4, R5 to every block of the cluster, and t of R7.
  __device__ __forceinline__ void weigh(const float (&s)[kTiles][kEights][4], const Moves& moves) const {
    const uint32_t staging = smem_ + Layout::kStaging + static_cast<uint32_t>(warp_ * Layout::kPBlock);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (granule_of(t) >= granules_) {
        continue;
      }
      const uint32_t sums = smem_ + Layout::kBlockSums +
                            static_cast<uint32_t>(number_of(t) * Layout::kSumsBlock + 4 * (e_ * kRows + 2 * q_));
      __syncwarp();  // the last tile's weights are read
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float p[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          p[n] = exp2_approx(__fmaf_rn(s[t][i][n], args_.c, moves.offset[t % kOwn][2 * i + n % 2]));
        }
        store_pair(sums + static_cast<uint32_t>(32 * i), {__fadd_rn(p[0], p[2]), __fadd_rn(p[1], p[3])});
        store_transposed(staging + static_cast<uint32_t>(256 * i) + weights_row(lane_ % 8, lane_ / 8 % 2),
                         round_pair<kElementOf<kBf16>>(p[0], p[1]), round_pair<kElementOf<kBf16>>(p[2], p[3]));
      }
      __syncwarp();
      const uint32_t to = smem_ + Layout::kP + static_cast<uint32_t>(block_of(t) * Layout::kPBlock);
      const uint32_t full = smem_ + Layout::kPFull + (granule_of(t) < Layout::kGranules / 2 ? 0 : 8);
      // Only rows that exist: they lie together, up to 4, 8 or 16 of them.
      const int shift = rows() <= 4 ? 3 : rows() <= 8 ? 4 : 5;
#pragma unroll 2
      for (int index = lane_; index < kTeam << shift; index += 32) {
        const auto block = static_cast<uint32_t>(index >> shift);
        const int piece = index & ((1 << shift) - 1);
        if (piece < 2 * rows()) {
          const auto at = static_cast<uint32_t>(16 * piece);
          send(in_block(to + at, block), in_block(full, block), load_piece(staging + at));
        }
      }
      __syncwarp();
    }
  }

  // g of R7 of the block's granules, to every block, by warps 2 and 3.
  __device__ __forceinline__ void send_sums() const {
    constexpr int kValues = kDecodeClasses * kRows;
#pragma unroll 1
    for (int index = static_cast<int>(threadIdx.x) - 64; index < kOwn * kValues; index += 64) {
      const int granule = index / kValues * kTeam + rank_;
      if (granule < granules_) {
        const uint32_t from =
            smem_ + Layout::kBlockSums +
            static_cast<uint32_t>(index / kValues * Layout::kGranuleBlocks * Layout::kSumsBlock + index % kValues * 4);
        float g = load_float(from);
#pragma unroll
        for (int w = 1; w < Layout::kGranuleBlocks; ++w) {
          g = __fadd_rn(g, load_float(from + w * Layout::kSumsBlock));
        }
        const uint32_t to =
            smem_ + Layout::kSums + static_cast<uint32_t>(granule * Layout::kSumsBlock + index % kValues * 4);
#pragma unroll
        for (uint32_t block = 0; block < kTeam; ++block) {
          send(in_block(to, block), in_block(smem_ + Layout::kSumsFull, block), g);
        }
      }
    }
    __syncwarp();
  }

  // a of a granule for the lane's rows; all lanes call.
  template <int kAny>
  static __device__ __forceinline__ float factor(const float (&a)[kEightGranules][kAny], int granule, int row, int q) {
    float x = 0.0F;
#pragma unroll
    for (int h = 0; h < kEightGranules; ++h) {
      const float theirs = __shfl_sync(kAllLanes, a[h][row], 4 * (granule % 8) + q);
      x = granule / 8 == h ? theirs : x;
    }
    return x;
  }

  // R7, by warp 1.
  __device__ __forceinline__ void add_sums(const Moves& moves) const {
    float l[2 * kEights] = {};
    bool moved = false;
#pragma unroll
    for (int h = 0; h < kEightGranules; ++h) {
#pragma unroll
      for (const float a : moves.a[h]) {
        moved |= a != 1.0F;
      }
    }
    moved = __any_sync(kAllLanes, moved);
    barrier_wait(smem_ + Layout::kSumsFull, 0);
    __syncwarp();
#pragma unroll 4
    for (int g = 0; g < granules_; ++g) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const float2 sum = load_pair(smem_ + Layout::kSums +
                                     static_cast<uint32_t>(g * Layout::kSumsBlock + 4 * (e_ * kRows + 8 * i + 2 * q_)));
        float2 a = {1.0F, 1.0F};  // which it mostly is
        if (moved) {
          a = {factor(moves.a, g, 2 * i, q_), factor(moves.a, g, 2 * i + 1, q_)};
        }
        l[2 * i] = __fmaf_rn(l[2 * i], a.x, sum.x);
        l[2 * i + 1] = __fmaf_rn(l[2 * i + 1], a.y, sum.y);
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        l[i] = __fadd_rn(l[i], __shfl_xor_sync(kAllLanes, l[i], lanes));
      }
      if (e_ == 0) {
        store_shared(smem_ + Layout::kRowSums + static_cast<uint32_t>(4 * (i / 2 * 8 + 2 * q_ + i % 2)),
                     __float_as_int(l[i]));
      }
    }
    barrier_arrive(smem_ + Layout::kEndFull);
  }

  // R6, by warp 0.
  __device__ __forceinline__ void add_outputs(const Moves& moves) {
    // Bit g: some row moves its maximum in granule g.
    uint32_t moved = 0;
#pragma unroll
    for (int h = 0; h < kEightGranules; ++h) {
      bool moves_here = false;
#pragma unroll
      for (const float a : moves.a[h]) {
        moves_here |= a != 1.0F;
      }
      const uint32_t lanes = __ballot_sync(kAllLanes, moves_here);
#pragma unroll
      for (int g = 0; g < 8; ++g) {
        moved |= (lanes >> (4 * g) & 15U) != 0 ? 1U << (8 * h + g) : 0;
      }
    }
    const auto in_values =
        static_cast<uint32_t>((lane_ % 8 + lane_ / 16 * 8) * Layout::kVRow + (lane_ / 8 % 2 ^ lane_ / 4 % 2) * 16);
    // Matrices: halves of the keys, then of two k16 blocks or two eights.
    uint32_t weights =
        smem_ + Layout::kP + static_cast<uint32_t>(lane_ / 16 * 256) + weights_row(lane_ % 8, lane_ / 8 % 2);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      constexpr int kHalfGranules = Layout::kGranules / 2;
      const int end = min(granules_, (half + 1) * kHalfGranules);
      if (half * kHalfGranules >= end) {
        break;
      }
      barrier_wait(smem_ + Layout::kVFull + 8 * static_cast<uint32_t>(half), 0);
      barrier_wait(smem_ + Layout::kPFull + 8 * static_cast<uint32_t>(half), 0);
      __syncwarp();
      uint32_t values = smem_ + (half == 0 ? Layout::kV : Layout::kV2) + in_values;
      Operands operands[2];
      load(operands[0], values, weights);
#pragma unroll 1
      for (int g = half * kHalfGranules; g < end; ++g) {
        if ((moved >> g & 1U) != 0) {
#pragma unroll
          for (int i = 0; i < 2 * kEights; ++i) {
            const float a = factor(moves.a, g, i, q_);
            o_[i / 2][i % 2] = __fmul_rn(o_[i / 2][i % 2], a);
            o_[i / 2][2 + i % 2] = __fmul_rn(o_[i / 2][2 + i % 2], a);
          }
        }
#pragma unroll
        for (int part = 0; part < Layout::kGranuleBlocks / kAhead; ++part) {
          values += static_cast<uint32_t>(16 * kAhead * Layout::kVRow);
          weights += static_cast<uint32_t>(kAhead * Layout::kPBlock);
          load(operands[(part + 1) % 2], values, weights);  // behind the end they are other bytes that nobody uses
          multiply(operands[part % 2]);
        }
      }
    }
  }

  // V and P of the next k16 blocks of the chain.
  static constexpr int kAhead = kEights == 1 && Layout::kGranuleBlocks == 8 ? 4 : 2;  // an even part of a granule
  struct Operands {
    uint32_t v[kAhead][4];
    uint32_t p[kAhead * kEights / 2][4];
  };
  __device__ __forceinline__ void load(Operands& to, uint32_t values, uint32_t weights) const {
#pragma unroll
    for (int block = 0; block < kAhead; ++block) {
      load_transposed(to.v[block], values + static_cast<uint32_t>(16 * block * Layout::kVRow));
      if (kEights == 2 || block % 2 == 0) {
        load_matrices(to.p[block * kEights / 2], weights + static_cast<uint32_t>(block * Layout::kPBlock));
      }
    }
  }
  __device__ __forceinline__ void multiply(const Operands& from) {
#pragma unroll
    for (int block = 0; block < kAhead; ++block) {
      if constexpr (kEights == 1) {
        multiply_block<kBf16>(o_[0], from.v[block], from.p[block / 2][block % 2 * 2],
                              from.p[block / 2][block % 2 * 2 + 1]);
      } else {
        multiply_block<kBf16>(o_[0], from.v[block], from.p[block][0], from.p[block][1]);
        multiply_block<kBf16>(o_[kEights - 1], from.v[block], from.p[block][2], from.p[block][3]);
      }
    }
  }

  __device__ __forceinline__ void claim() const {
    if (lane_ == 0) {
      if (unit_.chunks - unit_.first_chunk > 1) {
        claim_counter(counter());
      }
      barrier_arrive(smem_ + Layout::kEndFull);
    }
    __syncwarp();
  }
  __device__ __forceinline__ unsigned long long* counter() const {
    return args_.counters + (int64_t{unit_.batch} * args_.heads.value + unit_.head) * kTeam + rank_;
  }

  // The state of the block's columns: whoever hands in a sequence's last one chains them all. Nothing is waited for nor
  // stored unless it is `real`.
  __device__ __forceinline__ void finish(bool real) const {
    if (real) {
      barrier_wait(smem_ + Layout::kEndFull, 0);
    }
    __syncwarp();
    const int chunks = unit_.chunks - unit_.first_chunk;
    StatePart parts[kEights];
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float2 l = {};
      if (real) {  // else warp 1 may be storing them
        l = load_pair(smem_ + Layout::kRowSums + static_cast<uint32_t>(4 * (8 * i + 2 * q_)));
      }
      parts[i] = {{m_[2 * i], m_[2 * i + 1]}, {l.x, l.y}, {o_[i][0], o_[i][1], o_[i][2], o_[i][3]}};
    }
    if (real && chunks > 1) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        ChunkState<Tag>(args_, unit_, unit_.chunk - unit_.first_chunk, PartOfState(rank_, i)).store(parts[i]);
      }
      __syncwarp();
      bool last = false;
      if (lane_ == 0) {
        last = count_up(counter()) == static_cast<uint32_t>(chunks - 1);
        if (last) {
          *counter() = 0;
        }
      }
      if (!uniform(last)) {
        return;
      }
      __syncwarp();
    }
#pragma unroll 1
    for (int i = 0; i < kEights; ++i) {
      const PartOfState at(rank_, i);
      const RowPlaces<Tag> places = i == 0 ? places_[0] : places_[kEights - 1];
      StatePart part = i == 0 ? parts[0] : parts[kEights - 1];
      if (chunks > 1) {
        part = chain_chunks<Tag, 4>(args_, unit_, at, real);
      }
      finish_rows<Tag>(args_, unit_, at, places, part, real);
    }
  }

  int e_, q_;
  uint32_t queries_[kEights][2 * kSteps];
  float m_[2 * kEights];
  float o_[kEights][4] = {};
  RowPlaces<Tag> places_[kEights];
};

template <class Tag>
__global__ void __launch_bounds__(kTeamThreads, TeamLayout<Tag>::kResident)
    fmha_decode_team_sm90(const __grid_constant__ DecodeArguments args) {
  extern __shared__ __align__(128) uint8_t team_shared[];
  fetch_arguments(args);
  UnitFinder<Tag> finder(args);
  const Unit unit = finder.find(static_cast<int>(blockIdx.x) / TeamLayout<Tag>::kTeam);
  if (uniform(unit.batch) >= 0) {
    Team<Tag>(args, shared_address(team_shared), unit).run();
  }
}

}  // namespace tessera::sm90
