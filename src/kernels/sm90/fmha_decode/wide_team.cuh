// The kernel in which a cluster of eight blocks takes a unit of head dim 512 at once: as team.cuh, scores by granules
// and outputs by columns, but K and V stream through rings.
//
// Block r scores granules r, r + 8, ..; half a granule per warp, which copies the keys itself, 64 dims at a time. Four
// more warps copy 64 columns of V, and add up row sums (R7) while the others sum outputs; one tells the other blocks.
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
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/fmha_decode/visible.cuh"
#include "kernels/sm90/fmha_decode/wide_team.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

template <class Tag>
class WideTeam {
  using Layout = WideTeamLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kEights = Layout::kEights;
  static constexpr int kTeam = Layout::kTeam;
  static constexpr int kTiles = Layout::kTiles;
  static constexpr int kWarpEights = Layout::kWarpEights;
  static constexpr int kPieces = kPanelRowBytes / 16;  // of a row of a panel
  static constexpr int kRowsAtOnce = 32 / kPieces;     // of a panel, by a warp
  static constexpr int kStepsOfPanel = kPanelColumns / 16;
  static constexpr bool kBf16 = Tag::kBf16;

  using Scores = float[kTiles][kEights][4];
  using Sums = float2[kTiles][kEights];

 public:
  __device__ __forceinline__ WideTeam(const DecodeArguments& args, uint32_t smem, const Unit& unit)
      : args_(args),
        smem_(smem),
        unit_(unit),
        keys_(unit),
        warp_(uniform(static_cast<int>(threadIdx.x) / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        e_(lane_ / 4),
        q_(lane_ % 4),
        rank_(static_cast<int>(cluster_rank())) {
    granules_ = uniform(keys_.granules());
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      init_barriers();
    }
    __syncwarp();
    cluster_arrive();
    __syncthreads();
    if (warp_ >= Layout::kScoreWarps) {
      if (warp_ == Layout::kSender) {
        tell_others();
      } else {
        copy_values();
        add_sums();
      }
      cluster_wait();
      cluster_arrive();  // what others send this warp has come
    } else {
      attend();
    }
    cluster_wait();  // what this block has sent has come
  }

 private:
  __device__ __forceinline__ int own_granule() const { return warp_ / Layout::kWarpsOfGranule; }
  __device__ __forceinline__ int part_of_granule() const { return warp_ % Layout::kWarpsOfGranule; }
  __device__ __forceinline__ int granule() const { return own_granule() * kTeam + rank_; }
  // First key of the warp's.
  __device__ __forceinline__ int first_key() const {
    return keys_.begin + granule() * Layout::kGranule + part_of_granule() * Layout::kWarpKeys;
  }
  // Granules begin .. begin + kTeam - 1 of the unit that other blocks score.
  __device__ __forceinline__ int others(int begin) const {
    return min(max(granules_ - begin, 0), kTeam) - (begin + rank_ < granules_ ? 1 : 0);
  }

  __device__ __forceinline__ void init_barriers() const {
    barrier_init(smem_ + Layout::kMaximaFull, 1);
    barrier_init(smem_ + Layout::kSumsFull, 1);
    barrier_init(smem_ + Layout::kSummed, Layout::kScoreThreads);
    barrier_init(smem_ + Layout::kEndFull, 32 * kEights);
#pragma unroll
    for (int own = 0; own < Layout::kOwn; ++own) {
      barrier_init(smem_ + Layout::kPFull + 8 * own, 1);
      barrier_init(smem_ + Layout::kWeighed + 8 * own, 32 * Layout::kWarpsOfGranule);
    }
#pragma unroll
    for (int stage = 0; stage < Layout::kVStages; ++stage) {
      barrier_init(smem_ + Layout::kVFull + 8 * stage, Layout::kCopyThreads);
      barrier_init(smem_ + Layout::kVEmpty + 8 * stage, Layout::kOutputThreads);
    }
    barrier_init_fence();
    barrier_arrive_expect(smem_ + Layout::kMaximaFull,
                          static_cast<uint32_t>(granules_ * Layout::kWarpsOfGranule * kRows * 4));
    int sums = 0;
#pragma unroll
    for (int own = 0; own < Layout::kOwn; ++own) {
      const int granules = others(own * kTeam);
      sums += granules;
      barrier_arrive_expect(smem_ + Layout::kPFull + 8 * own,
                            static_cast<uint32_t>(granules * Layout::kGranuleBlocks * Layout::kPBlock));
    }
    barrier_arrive_expect(smem_ + Layout::kSumsFull, static_cast<uint32_t>(sums * Layout::kSumsBlock));
  }

  __device__ __forceinline__ void attend() {
    Scores s;
    score(s);
    cluster_wait();
    send_maxima(s);
    barrier_wait(smem_ + Layout::kMaximaFull, 0);
    replay();
    named_barrier_sync(kAllScored, Layout::kScoreThreads);
    weigh(s);
    if (warp_ >= Layout::kOutputWarps) {
      cluster_arrive();
      return;
    }
    float o[kWarpEights][4] = {};
    add_outputs(o);
    cluster_arrive();
    finish(o);
  }

  // All of Q, by all of these warps. A block without granules does not wait for others before they send it sums, which
  // come into Q's place: it takes none.
  __device__ __forceinline__ void copy_queries() const {
    constexpr int kRowPieces = Layout::kQRow / 16;
    const auto group = static_cast<int>(args_.group.value);
#pragma unroll
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
#pragma unroll
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

  // Where a number for a row of the tile stands in a table.
  __device__ __forceinline__ uint32_t in_table(int table, int line, int row) const {
    return smem_ + static_cast<uint32_t>(table + line * Layout::kPitch + 4 * row);
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

  // R3 of some of the rows, a granule per lane.
  __device__ __forceinline__ void replay() const {
    constexpr int kWarpRows = kRows / Layout::kScoreWarps;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      const int row = warp_ * kWarpRows + i;
      float mu = minus_infinity();
      if (lane_ < granules_) {
#pragma unroll
        for (int part = 0; part < Layout::kWarpsOfGranule; ++part) {
          mu = fmaxf(mu, load_float(in_table(Layout::kMaxima, part * Layout::kGranules + lane_, row)));
        }
      }
      const float u = integer_above(mu, args_.c);
      // Mostly the first granule's maximum stays.
      float m = __shfl_sync(kAllLanes, u, 0);
      float behind = m;  // the lane's granule
      float a = 1.0F;
      if (__any_sync(kAllLanes, u > __fadd_rn(m, kLazyThreshold))) {
        float before = minus_infinity();
        m = minus_infinity();
#pragma unroll 4
        for (int g = 0; g < Layout::kGranules; ++g) {
          const float every = __shfl_sync(kAllLanes, u, g);
          before = g == lane_ ? m : before;
          m = every > __fadd_rn(m, kLazyThreshold) ? every : m;  // -Inf, of a granule that is not there, moves nothing
          behind = g == lane_ ? m : behind;
        }
        a = before == minus_infinity() ? 1.0F : drop_weight(__fsub_rn(behind, before));
      }
      store_shared(in_table(Layout::kFactors, lane_, row), __float_as_int(a));
      if (lane_ % kTeam == rank_) {
        store_shared(smem_ + Layout::kOffsets + static_cast<uint32_t>(4 * (lane_ / kTeam * kRows + row)),
                     __float_as_int(__fsub_rn(args_.bias, behind == minus_infinity() ? 0.0F : behind)));
      }
      if (lane_ == 0) {
        store_shared(smem_ + Layout::kRowMaxima + static_cast<uint32_t>(4 * row), __float_as_int(m));
      }
    }
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

  // The warp's columns and the first eight of its rows.
  __device__ __forceinline__ int column_group() const {
    return warp_ % Layout::kColumnGroups;
  }
  __device__ __forceinline__ int first_eight() const {
    return warp_ / Layout::kColumnGroups * kWarpEights;
  }

  // V and P of a granule.
  struct Values {
    uint32_t v[Layout::kGranuleBlocks][4];
    uint32_t p[Layout::kGranuleBlocks * kWarpEights / 2][4];
  };
  __device__ __forceinline__ void load(Values& to, int g) const {
    if (g >= granules_) {
      return;
    }
    if (g % kTeam == 0) {
      barrier_wait(smem_ + Layout::kPFull + static_cast<uint32_t>(8 * (g / kTeam)), 0);
    }
    const auto use = static_cast<uint32_t>(g);
    const uint32_t stage = use % Layout::kVStages;
    barrier_wait(smem_ + Layout::kVFull + 8 * stage, use / Layout::kVStages % 2);
    // Matrices: halves of the columns, then of the keys.
    const uint32_t values = smem_ + Layout::kV + stage * Layout::kVStageBytes +
                            static_cast<uint32_t>((lane_ % 8 + lane_ / 16 * 8) * kPanelRowBytes +
                                                  ((2 * column_group() + lane_ / 8 % 2) ^ lane_ % 8) * 16);
    // Halves of the keys, then of two eights or of two k16 blocks.
    const uint32_t weights = smem_ + Layout::kP +
                             static_cast<uint32_t>(g * Layout::kGranuleBlocks * Layout::kPBlock + 256 * first_eight() +
                                                   lane_ / 16 * (kWarpEights == 1 ? Layout::kPBlock : 256)) +
                             weights_row(lane_ % 8, lane_ / 8 % 2);
#pragma unroll
    for (int block = 0; block < Layout::kGranuleBlocks; ++block) {
      load_transposed(to.v[block], values + static_cast<uint32_t>(16 * block * kPanelRowBytes));
    }
#pragma unroll
    for (int i = 0; i < Layout::kGranuleBlocks * kWarpEights / 2; ++i) {
      load_matrices(to.p[i], weights + static_cast<uint32_t>(i * (kWarpEights == 1 ? 2 : 1) * Layout::kPBlock));
    }
    barrier_arrive(smem_ + Layout::kVEmpty + 8 * stage);
  }

  // R6 of a granule.
  __device__ __forceinline__ void multiply(float (&o)[kWarpEights][4], const Values& from, int g,
                                           uint32_t moved) const {
    if (g >= granules_) {
      return;
    }
    if ((moved >> g & 1U) != 0) {
#pragma unroll
      for (int i = 0; i < kWarpEights; ++i) {
        const float2 a = load_pair(in_table(Layout::kFactors, g, 8 * (first_eight() + i) + 2 * q_));
        o[i][0] = __fmul_rn(o[i][0], a.x);
        o[i][1] = __fmul_rn(o[i][1], a.y);
        o[i][2] = __fmul_rn(o[i][2], a.x);
        o[i][3] = __fmul_rn(o[i][3], a.y);
      }
    }
#pragma unroll
    for (int block = 0; block < Layout::kGranuleBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kWarpEights; ++i) {
        const uint32_t(&p)[4] = from.p[kWarpEights == 1 ? block / 2 : block];
        const int at = kWarpEights == 1 ? block % 2 * 2 : 2 * i;
        multiply_block<kBf16>(o[i], from.v[block], p[at], p[at + 1]);
      }
    }
  }

  __device__ __forceinline__ void add_outputs(float (&o)[kWarpEights][4]) const {
    // Bit g: some row of the warp's moves its maximum in granule g.
    bool moves = false;
#pragma unroll
    for (int row = 0; row < 8 * kWarpEights; row += 2) {
      const float2 a = load_pair(in_table(Layout::kFactors, lane_, 8 * first_eight() + row));
      moves |= a.x != 1.0F || a.y != 1.0F;
    }
    const uint32_t moved = __ballot_sync(kAllLanes, moves);
    Values values[2];
    load(values[0], 0);
#pragma unroll 1
    for (int g = 0; g < granules_; g += 2) {
      load(values[1], g + 1);
      multiply(o, values[0], g, moved);
      load(values[0], g + 2);
      multiply(o, values[1], g + 1, moved);
    }
  }

  __device__ __forceinline__ unsigned long long* counter() const {
    return args_.counters + (int64_t{unit_.batch} * args_.heads.value + unit_.head) * kTeam + rank_;
  }

  // The state of the block's columns: whoever hands in a sequence's last one chains them all.
  __device__ __forceinline__ void finish(const float (&o)[kWarpEights][4]) const {
    barrier_wait(smem_ + Layout::kEndFull, 0);
    const int chunks = unit_.chunks - unit_.first_chunk;
    const int group = rank_ * Layout::kColumnGroups + column_group();
    StatePart parts[kWarpEights];
#pragma unroll
    for (int i = 0; i < kWarpEights; ++i) {
      const auto row = static_cast<uint32_t>(4 * (8 * (first_eight() + i) + 2 * q_));
      const float2 m = load_pair(smem_ + Layout::kRowMaxima + row);
      const float2 l = load_pair(smem_ + Layout::kRowSums + row);
      parts[i] = {{m.x, m.y}, {l.x, l.y}, {o[i][0], o[i][1], o[i][2], o[i][3]}};
    }
    if (chunks > 1) {
#pragma unroll
      for (int i = 0; i < kWarpEights; ++i) {
        ChunkState<Tag>(args_, unit_, unit_.chunk - unit_.first_chunk, PartOfState(group, first_eight() + i))
            .store(parts[i]);
      }
      named_barrier_sync(kStored, Layout::kOutputThreads);
      if (threadIdx.x == 0) {
        const bool last = count_up(counter()) == static_cast<uint32_t>(chunks - 1);
        if (last) {
          *counter() = 0;
        }
        store_shared(smem_ + Layout::kLast, last ? 1 : 0);
      }
      named_barrier_sync(kCounted, Layout::kOutputThreads);
      if (uniform(load_shared(smem_ + Layout::kLast)) == 0) {
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < kWarpEights; ++i) {
      const PartOfState at(group, first_eight() + i);
      const RowPlaces<Tag> places(args_, unit_, at);
      finish_rows<Tag>(args_, unit_, at, places, chunks > 1 ? chain_chunks<Tag, 4>(args_, unit_, at, true) : parts[i]);
    }
  }

  // Weights and sums of the own granules to the same places of the other blocks, one per lane. One warp does nothing
  // else, because an exchange takes thousands of clocks and whoever asks for it waits.
  __device__ __forceinline__ void tell_others() const {
    const bool speaks = lane_ < kTeam && lane_ != rank_;
    const auto block = static_cast<uint32_t>(lane_ % kTeam);
#pragma unroll 1
    for (int own = 0; own * kTeam + rank_ < granules_; ++own) {
      constexpr uint32_t kBytes = Layout::kGranuleBlocks * Layout::kPBlock;
      const uint32_t from = smem_ + Layout::kP + static_cast<uint32_t>(own * kTeam + rank_) * kBytes;
      barrier_wait(smem_ + Layout::kWeighed + 8 * static_cast<uint32_t>(own), 0);
      if (speaks) {
        copy_to_block(in_block(from, block), from, kBytes,
                      in_block(smem_ + Layout::kPFull + 8 * static_cast<uint32_t>(own), block));
      }
      __syncwarp();
    }
    barrier_wait(smem_ + Layout::kSummed, 0);
#pragma unroll 1
    for (int g = rank_; g < granules_; g += kTeam) {
      const uint32_t from = smem_ + Layout::kSums + static_cast<uint32_t>(g * Layout::kSumsBlock);
      if (speaks) {
        copy_to_block(in_block(from, block), from, Layout::kSumsBlock, in_block(smem_ + Layout::kSumsFull, block));
      }
      __syncwarp();
    }
  }

  // The block's 64 columns of V: 16 rows of a granule per warp. A lane finds where a row of the next two granules lies
  // and tells the others.
  __device__ __forceinline__ void copy_values() const {
    const int number = warp_ - Layout::kScoreWarps;
    if (number == 0 && lane_ == 0 && unit_.chunks - unit_.first_chunk > 1) {
      claim_counter(counter());
    }
    __syncwarp();
    if (granules_ == 0) {
      return;
    }
    constexpr int kWarpRows = Layout::kGranule / Layout::kCopyWarps;
    constexpr int kCopies = kWarpRows / kRowsAtOnce;
    static_assert(2 * kWarpRows == 32, "rows of two granules: allowed one per lane");
    const Pages pages(args_, unit_);
    const int piece = lane_ % kPieces;
    const int column = rank_ * kPanelColumns + 8 * piece;
    const bool wanted = column < args_.dims;
    const uint16_t* data = args_.v + unit_.kv_head * args_.v_strides.head + column;
    const int first = kWarpRows * number + lane_ / kPieces;
    const uint32_t place =
        smem_ + Layout::kV + static_cast<uint32_t>(first * kPanelRowBytes + (piece ^ first % kSwizzleRows) * 16);
    static_assert(kSwizzleRows == 2 * kRowsAtOnce, "rows of a lane: allowed two swizzles in turns");
    int key = keys_.begin + lane_ / kWarpRows * Layout::kGranule + kWarpRows * number + lane_ % kWarpRows;
    int32_t entry = pages.ask(key);
    uint32_t stage = 0;
    uint32_t parity = 1;  // the first time a stage is free
#pragma unroll 1
    for (int pair = 0; pair < granules_; pair += 2) {
      const int page = pages.page(key, entry);
      const uint32_t there = __ballot_sync(kAllLanes, page >= 0);
      const int64_t offset = pages.offset(key, page, args_.v_strides);
      key += 2 * Layout::kGranule;
      entry = pages.ask(key);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (pair + half >= granules_) {
          break;
        }
        int64_t rows[kCopies];
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          rows[i] = __shfl_sync(kAllLanes, offset, half * kWarpRows + kRowsAtOnce * i + lane_ / kPieces);
        }
        barrier_wait(smem_ + Layout::kVEmpty + 8 * stage, parity);
        const uint32_t to = place + stage * Layout::kVStageBytes;
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          const int row = half * kWarpRows + kRowsAtOnce * i + lane_ / kPieces;
          copy_piece((to ^ static_cast<uint32_t>(i % 2 * kRowsAtOnce * 16)) +
                         static_cast<uint32_t>(i * kRowsAtOnce * kPanelRowBytes),
                     data + rows[i], wanted && (there >> row & 1U) != 0);
        }
        arrive_after_copies(smem_ + Layout::kVFull + 8 * stage);
        parity ^= stage + 1 == Layout::kVStages ? 1U : 0U;
        stage = stage + 1 == Layout::kVStages ? 0 : stage + 1;
      }
    }
  }

  // R7 of eight rows per warp.
  __device__ __forceinline__ void add_sums() const {
    const int eight = warp_ - Layout::kScoreWarps;
    if (eight >= kEights) {
      return;
    }
    barrier_wait(smem_ + Layout::kSummed, 0);
    barrier_wait(smem_ + Layout::kSumsFull, 0);
    const int row = 8 * eight + 2 * q_;
    float2 l = {0.0F, 0.0F};
#pragma unroll 4
    for (int g = 0; g < granules_; ++g) {
      const float2 a = load_pair(in_table(Layout::kFactors, g, row));
      const float2 sum = load_pair(smem_ + Layout::kSums +
                                   static_cast<uint32_t>(g * Layout::kSumsBlock + e_ * Layout::kPitch + 4 * row));
      l = {__fmaf_rn(l.x, a.x, sum.x), __fmaf_rn(l.y, a.y, sum.y)};
    }
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      l.x = __fadd_rn(l.x, __shfl_xor_sync(kAllLanes, l.x, lanes));
      l.y = __fadd_rn(l.y, __shfl_xor_sync(kAllLanes, l.y, lanes));
    }
    if (e_ == 0) {
      store_pair(smem_ + Layout::kRowSums + static_cast<uint32_t>(4 * row), l);
    }
    barrier_arrive(smem_ + Layout::kEndFull);
  }

  // Named barriers.
  static constexpr uint32_t kQueries = 1;     // Q is there
  static constexpr uint32_t kAllScored = 2;   // R3 is replayed
  static constexpr uint32_t kFirstParts = 3;  // of granules: weights and sums
  static constexpr uint32_t kStored = 4;      // the state
  static constexpr uint32_t kCounted = 5;

  const DecodeArguments& args_;
  uint32_t smem_;
  Unit unit_;
  UnitKeys<Tag> keys_;
  int warp_, lane_;
  int e_, q_;
  int rank_;
  int granules_;  // of the unit
};

template <class Tag>
__global__ void __launch_bounds__(WideTeamLayout<Tag>::kThreads, WideTeamLayout<Tag>::kResident)
    fmha_decode_wide_team_sm90(const __grid_constant__ DecodeArguments args) {
  extern __shared__ __align__(1024) uint8_t wide_team_shared[];
  fetch_arguments(args);
  UnitFinder<Tag> finder(args);
  const Unit unit = finder.find(static_cast<int>(blockIdx.x) / WideTeamLayout<Tag>::kTeam);
  if (uniform(unit.batch) >= 0) {
    WideTeam<Tag>(args, shared_address(wide_team_shared), unit).run();
  }
}

}  // namespace tessera::sm90
