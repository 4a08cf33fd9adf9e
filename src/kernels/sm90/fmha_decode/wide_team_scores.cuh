// Scores and weights of the wide team: a block scores granules r, r + 8, .., half a granule per warp, which copies the
// keys itself, 64 dims at a time.
#pragma once

#include <cstdint>

#include "contract/exp2.h"
#include "contract/plan.h"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/fragments.cuh"
#include "kernels/sm90/fmha_decode/rows.cuh"
#include "kernels/sm90/fmha_decode/softmax_steps.cuh"
#include "kernels/sm90/fmha_decode/visible.cuh"
#include "kernels/sm90/fmha_decode/wide_team_member.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

template <class Tag>
class WideTeamScores : public WideTeamMember<Tag> {
 protected:
  using Member = WideTeamMember<Tag>;
  using Member::args_, Member::smem_, Member::unit_, Member::keys_, Member::warp_, Member::lane_, Member::e_,
      Member::q_, Member::rank_, Member::granules_;
  using Member::in_table, Member::kQueries, Member::kFirstParts;
  using Member::kRows, Member::kEights, Member::kTeam, Member::kBf16;
  using typename Member::Layout;
  static constexpr int kTiles = Layout::kTiles;
  static constexpr int kPieces = kPanelRowBytes / 16;  // of a row of a panel
  static constexpr int kRowsAtOnce = 32 / kPieces;     // of a panel, by a warp
  static constexpr int kStepsOfPanel = kPanelColumns / 16;

  using Scores = float[kTiles][kEights][4];
  using Sums = float2[kTiles][kEights];

 public:
  using Member::Member;

 protected:
  __device__ __forceinline__ int own_granule() const { return warp_ / Layout::kWarpsOfGranule; }
  __device__ __forceinline__ int part_of_granule() const { return warp_ % Layout::kWarpsOfGranule; }
  __device__ __forceinline__ int granule() const { return own_granule() * kTeam + rank_; }
  // First key of the warp's.
  __device__ __forceinline__ int first_key() const {
    return keys_.begin + granule() * Layout::kGranule + part_of_granule() * Layout::kWarpKeys;
  }

  // All of Q, by all of these warps. A block without granules does not wait for others before they send it sums, which
  // come into Q's place: it takes none.
  __device__ __forceinline__ void copy_queries() const {
    constexpr int kRowPieces = Layout::kQRow / 16;
    const auto group = static_cast<int>(args_.group.value);
#pragma unroll 1
    for (int row = warp_; row < kRows; row += Layout::kScoreWarps) {
      const int in_unit = unit_.first_row + row;
      const int token = divide(in_unit, args_.group);
      const int64_t head = unit_.kv_head * group + in_unit - token * group;
      const bool exists = token < args_.seqlen_q;
      const uint16_t* from = args_.q;
      if (exists) {
        from += unit_.batch * args_.q_strides.batch + token * args_.q_strides.token + head * args_.q_strides.head;
      }
#pragma unroll
      for (int piece = lane_; piece < kRowPieces; piece += 32) {
        copy_piece(smem_ + Layout::kQ + static_cast<uint32_t>(row * Layout::kQRow + (piece ^ row % 8) * 16),
                   from + 8 * piece, exists && 8 * piece < args_.qk_dims);
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ uint32_t key_ring() const {
    return smem_ + Layout::kK + static_cast<uint32_t>(warp_ * Layout::kKRingBytes);
  }
  // 64 dims of the warp's keys to a stage of its ring; rows[i] is where row 4 i + lane / 8 begins.
  __device__ __forceinline__ void copy_panel(int panel, int stage, const int64_t (&rows)[kPieces],
                                             uint32_t there) const {
    const int piece = lane_ % kPieces;
    const int column = panel * kPanelColumns + 8 * piece;
    const uint16_t* data = args_.k + unit_.kv_head * args_.k_strides.head + column;
    const uint32_t to = key_ring() + static_cast<uint32_t>(stage * Layout::kKStageBytes);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int row = kRowsAtOnce * i + lane_ / kPieces;
      copy_piece(to + static_cast<uint32_t>(row * kPanelRowBytes + (piece ^ row % kSwizzleRows) * 16), data + rows[i],
                 (there >> row & 1U) != 0 && column < args_.qk_dims);
    }
  }

  // K and Q of a k16 step.
  struct Operands {
    uint32_t k[kTiles][4];
    uint32_t q[kEights == 1 ? 1 : kEights / 2][4];
  };
  __device__ __forceinline__ void load(Operands& to, uint32_t stage, int panel, int step) const {
    const auto piece = static_cast<uint32_t>(((2 * step + lane_ / 16) ^ lane_ % 8) * 16);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      load_matrices(to.k[t], stage + static_cast<uint32_t>((16 * t + lane_ % 16) * kPanelRowBytes) + piece);
    }
    // Matrices: halves of the dims of one eight, then of the next one; a single eight stands for both.
    const auto half = static_cast<uint32_t>((kPieces * panel + ((2 * step + lane_ / 8 % 2) ^ lane_ % 8)) * 16);
#pragma unroll
    for (int pair = 0; pair < (kEights + 1) / 2; ++pair) {
      const int eight = kEights == 1 ? 0 : 2 * pair + lane_ / 16;
      load_matrices(to.q[pair],
                    smem_ + Layout::kQ + static_cast<uint32_t>((8 * eight + lane_ % 8) * Layout::kQRow) + half);
    }
  }
  static __device__ __forceinline__ void multiply(Scores& s, const Operands& from) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        multiply_block<kBf16>(s[t][i], from.k[t], from.q[i / 2][i % 2 * 2], from.q[i / 2][i % 2 * 2 + 1]);
      }
    }
  }

  // R1 and R2.
  __device__ __forceinline__ void score(Scores& s) const {
    const bool mine = granule() < granules_;
    if (rank_ < granules_) {
      copy_queries();
    }
    int64_t rows[kPieces] = {};
    uint32_t there = 0;
    if (mine) {
      const Pages pages(args_, unit_);
      const int key = first_key() + lane_;
      const int page = pages.page(key, pages.ask(key));
      there = __ballot_sync(kAllLanes, page >= 0);
      const int64_t offset = pages.offset(key, page, args_.k_strides);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        rows[i] = __shfl_sync(kAllLanes, offset, kRowsAtOnce * i + lane_ / kPieces);
      }
    }
#pragma unroll 1
    for (int panel = 0; panel < Layout::kKStages; ++panel) {
      if (mine) {
        copy_panel(panel, panel, rows, there);
      }
      commit_copies();
    }
    wait_for_copies<Layout::kKStages>();
    named_barrier_sync(kQueries, Layout::kScoreThreads);
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
    if (!mine) {
      return;
    }
    const bool all_seen = there == kAllLanes && __all_sync(kAllLanes, sees_all(VisibleKeys<kRows>(args_, unit_)));
    int stage = 0;
#pragma unroll 1
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      wait_for_copies<Layout::kKStages - 1>();
      __syncwarp();
      const uint32_t from = key_ring() + static_cast<uint32_t>(stage * Layout::kKStageBytes);
      Operands operands[2];
      load(operands[0], from, panel, 0);
#pragma unroll
      for (int step = 0; step < kStepsOfPanel; ++step) {
        if (step + 1 < kStepsOfPanel) {
          load(operands[(step + 1) % 2], from, panel, step + 1);
        }
        multiply(s, operands[step % 2]);
      }
      __syncwarp();
      if (panel + Layout::kKStages < Layout::kPanels) {
        copy_panel(panel + Layout::kKStages, stage, rows, there);
      }
      commit_copies();
      stage = stage + 1 == Layout::kKStages ? 0 : stage + 1;
    }
    if (all_seen) {
      return;
    }
    const VisibleKeys<kRows> visible(args_, unit_);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = 16 * t + e_ + 8 * h;
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) {
          float& x = s[t][i / 2][2 * h + i % 2];
          x = (there >> row & 1U) != 0 && visible.sees(i, first_key() + row) ? x : minus_infinity();
        }
      }
    }
  }

  // Whether the lane's rows see all keys of the warp: what a row sees has no holes.
  __device__ __forceinline__ bool sees_all(const VisibleKeys<kRows>& visible) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      all &= visible.sees(i, first_key()) && visible.sees(i, first_key() + Layout::kWarpKeys - 1);
    }
    return all;
  }

  // Largest score of the warp's keys per row, to every block of the cluster.
  __device__ __forceinline__ void send_maxima(const Scores& s) const {
    if (granule() >= granules_) {
      return;
    }
    static_assert(kTeam == 8, "blocks: one for each lane of a column");
    const int line = part_of_granule() * Layout::kGranules + granule();
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float2 mu = {minus_infinity(), minus_infinity()};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        mu.x = fmaxf(mu.x, fmaxf(s[t][i][0], s[t][i][2]));
        mu.y = fmaxf(mu.y, fmaxf(s[t][i][1], s[t][i][3]));
      }
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        mu.x = fmaxf(mu.x, __shfl_xor_sync(kAllLanes, mu.x, lanes));
        mu.y = fmaxf(mu.y, __shfl_xor_sync(kAllLanes, mu.y, lanes));
      }
      const auto block = static_cast<uint32_t>(e_);
      send(in_block(in_table(Layout::kMaxima, line, 8 * i + 2 * q_), block),
           in_block(smem_ + Layout::kMaximaFull, block), mu);
    }
  }

  // R3 of some of the rows, a granule per lane. Mostly the first granule's maximum stays.
  __device__ __forceinline__ void replay() const {
    constexpr int kWarpRows = kRows / Layout::kScoreWarps;
    float u[kWarpRows];
    bool moves = false;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      float mu = minus_infinity();
      if (lane_ < granules_) {
#pragma unroll
        for (int part = 0; part < Layout::kWarpsOfGranule; ++part) {
          mu =
              fmaxf(mu, load_float(in_table(Layout::kMaxima, part * Layout::kGranules + lane_, warp_ * kWarpRows + i)));
        }
      }
      u[i] = integer_above(mu, args_.c);
      moves |= u[i] > __fadd_rn(__shfl_sync(kAllLanes, u[i], 0), kLazyThreshold);
    }
    uint32_t moved = 0;
    if (!__any_sync(kAllLanes, moves)) {
      // Lane kWarpRows n + i: row i and the n-th of the own granules.
      float m = 0.0F;
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) {
        const float first = __shfl_sync(kAllLanes, u[i], 0);
        m = lane_ % kWarpRows == i ? first : m;
      }
      const int row = warp_ * kWarpRows + lane_ % kWarpRows;
      if (lane_ < kWarpRows * Layout::kOwn) {
        store_offset(lane_ / kWarpRows, row, m);
      }
      if (lane_ < kWarpRows) {
        store_shared(smem_ + Layout::kRowMaxima + static_cast<uint32_t>(4 * row), __float_as_int(m));
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kWarpRows; ++i) {
        const int row = warp_ * kWarpRows + i;
        float before = minus_infinity();
        float m = minus_infinity();
        float behind = m;  // the lane's granule
#pragma unroll 4
        for (int g = 0; g < Layout::kGranules; ++g) {
          const float every = __shfl_sync(kAllLanes, u[0], g);
          before = g == lane_ ? m : before;
          m = every > __fadd_rn(m, kLazyThreshold) ? every : m;  // -Inf, of a granule that is not there, moves nothing
          behind = g == lane_ ? m : behind;
        }
#pragma unroll
        for (int later = 1; later < kWarpRows; ++later) {
          u[later - 1] = u[later];
        }
        const float a = before == minus_infinity() ? 1.0F : drop_weight(__fsub_rn(behind, before));
        moved |= __ballot_sync(kAllLanes, a != 1.0F);
        store_shared(in_table(Layout::kFactors, lane_, row), __float_as_int(a));
        if (lane_ % kTeam == rank_) {
          store_offset(lane_ / kTeam, row, behind);
        }
        if (lane_ == 0) {
          store_shared(smem_ + Layout::kRowMaxima + static_cast<uint32_t>(4 * row), __float_as_int(m));
        }
      }
    }
    if (lane_ == 0) {
      store_shared(smem_ + Layout::kMoves + static_cast<uint32_t>(4 * warp_), static_cast<int>(moved));
    }
  }
  // RN(b - m') of R4 in an own granule.
  __device__ __forceinline__ void store_offset(int own, int row, float m) const {
    store_shared(smem_ + Layout::kOffsets + static_cast<uint32_t>(4 * (own * kRows + row)),
                 __float_as_int(__fsub_rn(args_.bias, m == minus_infinity() ? 0.0F : m)));
  }
  // Where a row of eight of a k16 block's weights lies, for 8 of the keys: eight rows in different banks.
  static __device__ __forceinline__ uint32_t weights_row(int row, int half) {
    return static_cast<uint32_t>(32 * row + (half ^ row / 4) * 16);
  }

  // R4, R5 and R7's sums of the warp's keys, to their places.
  __device__ __forceinline__ void weigh(const Scores& s) const {
    const bool mine = granule() < granules_;
    Sums sums;
    if (mine) {
      const uint32_t to =
          smem_ + Layout::kP +
          static_cast<uint32_t>((granule() * Layout::kGranuleBlocks + part_of_granule() * kTiles) * Layout::kPBlock);
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const float2 offset =
            load_pair(smem_ + Layout::kOffsets + static_cast<uint32_t>(4 * (own_granule() * kRows + 8 * i + 2 * q_)));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float p[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            p[n] = exp2_approx(__fmaf_rn(s[t][i][n], args_.c, n % 2 == 0 ? offset.x : offset.y));
          }
          sums[t][i] = {__fadd_rn(p[0], p[2]), __fadd_rn(p[1], p[3])};
          store_transposed(
              to + static_cast<uint32_t>(t * Layout::kPBlock + 256 * i) + weights_row(lane_ % 8, lane_ / 8 % 2),
              round_pair<kElementOf<kBf16>>(p[0], p[1]), round_pair<kElementOf<kBf16>>(p[2], p[3]));
        }
      }
      fence_async_proxy();
      barrier_arrive(smem_ + Layout::kWeighed + 8 * static_cast<uint32_t>(own_granule()));
    }
    const uint32_t sums_at = smem_ + Layout::kSums + static_cast<uint32_t>(granule() * Layout::kSumsBlock);
    const auto place = [&](int i) {
      return sums_at + static_cast<uint32_t>(e_ * Layout::kPitch + 4 * (8 * i + 2 * q_));
    };
    if (mine && part_of_granule() == 0) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        store_pair(place(i), {__fadd_rn(sums[0][i].x, sums[1][i].x), __fadd_rn(sums[0][i].y, sums[1][i].y)});
      }
    }
    named_barrier_sync(kFirstParts, Layout::kScoreThreads);
    if (mine && part_of_granule() == 1) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float2 g = load_pair(place(i));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          g = {__fadd_rn(g.x, sums[t][i].x), __fadd_rn(g.y, sums[t][i].y)};
        }
        store_pair(place(i), g);
      }
      fence_async_proxy();
    }
    barrier_arrive(smem_ + Layout::kSummed);
  }
};

}  // namespace tessera::sm90
