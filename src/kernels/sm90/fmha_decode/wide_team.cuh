// The kernel in which a cluster of eight blocks takes a unit of head dim 512 at once: as team.cuh, scores by granules
// and outputs by columns, but K and V stream through rings.
//
// Block r scores granules r, r + 8, ..; half a granule per warp, which copies the keys itself, 64 dims at a time. Four
// more warps copy 64 columns of V, and add up row sums (R7) while the others sum outputs; one tells the other blocks.
#pragma once

#include <cstdint>

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/counters.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/rows.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/fmha_decode/wgmma_columns.cuh"
#include "kernels/sm90/fmha_decode/wide_team.h"
#include "kernels/sm90/fmha_decode/wide_team_member.cuh"
#include "kernels/sm90/fmha_decode/wide_team_rows.cuh"
#include "kernels/sm90/fmha_decode/wide_team_scores.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

template <class Tag>
class WideTeam : public WideTeamScores<Tag> {
  using Base = WideTeamScores<Tag>;
  using Member = typename Base::Member;
  using Base::in_table, Base::moves_of, Base::factor;
  using Base::kAllScored, Base::kSummedUp, Base::kStored, Base::kCounted, Base::kReady, Base::kAddressMask;
  using Base::kRows, Base::kEights, Base::kTeam, Base::kBf16, Base::kPieces, Base::kRowsAtOnce;
  using Member::args_, Member::smem_, Member::unit_, Member::keys_, Member::warp_, Member::lane_, Member::e_,
      Member::q_, Member::rank_, Member::granules_;
  using typename Base::Layout;
  using typename Base::Scores;

  using Outputs = float[4 * kEights];  // of wgmma_columns()

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    if (warp_ == Layout::kSender) {
      if (lane_ == 0) {
        init_barriers();
      }
      __syncwarp();
      // The first round passes the late stages over.
      for (int stage = 0; stage < Layout::kLateStages; ++stage) {
#pragma unroll
        for (int arrival = 0; arrival < Layout::kCopyWarps; ++arrival) {
          barrier_arrive(smem_ + Layout::kVFull + static_cast<uint32_t>(8 * stage));
        }
      }
    }
    cluster_arrive();
    if (warp_ >= Layout::kScoreWarps) {
      named_barrier_sync(kReady, Layout::kThreads - Layout::kScoreThreads);  // score warps wait for the cluster
      if (warp_ == Layout::kSender) {
        tell_others();
      } else {
        copy_values();
      }
      cluster_wait();
      cluster_arrive();  // what others send this warp has come
    } else {
      attend();
    }
    cluster_wait();  // what this block has sent has come
  }

 private:
  // Granules begin .. begin + kTeam - 1 of the unit that other blocks score.
  __device__ __forceinline__ int others(int begin) const {
    return min(max(granules_ - begin, 0), kTeam) - (begin + rank_ < granules_ ? 1 : 0);
  }

  __device__ __forceinline__ void init_barriers() const {
    barrier_init(smem_ + Layout::kMaximaFull, 1);
    barrier_init(smem_ + Layout::kSumsFull, 1);
    barrier_init(smem_ + Layout::kSummed, Layout::kScoreThreads);
    barrier_init(smem_ + Layout::kEndFull, 32 * (kEights + 1));
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
    this->score(s);
    cluster_wait();
    this->send_maxima(s);
    barrier_wait(smem_ + Layout::kMaximaFull, 0);
    this->replay();
    named_barrier_sync(kAllScored, Layout::kScoreThreads);
    if (warp_ < Layout::kOutputWarps) {
#pragma unroll
      for (int stage = 0; stage < Layout::kLateStages; ++stage) {
        barrier_arrive(smem_ + Layout::kVEmpty + 8 * stage);
      }
    }
    this->weigh(s);
    if (warp_ < Layout::kOutputWarps) {
      Outputs o = {};
      add_outputs(o);
      hand_over(o);
    } else {
      add_sums();
    }
    cluster_arrive();  // what others send this warp has come
    constexpr int kThreads = 32 * (Layout::kRowWarps > Layout::kOutputWarps ? Layout::kRowWarps : Layout::kOutputWarps);
    if (32 * warp_ < kThreads) {
      named_barrier_sync(kSummedUp, kThreads);
    }
    if (warp_ < Layout::kRowWarps) {
      finish();
    }
  }

  // R6, from one granule in which a row moves its maximum to the next one: products follow each other without a wait,
  // and a stage of V is free when the next granule's have been asked for and its own are through.
  __device__ __forceinline__ void add_outputs(Outputs& o) const {
    const uint32_t operands = smem_ & kAddressMask;
    const uint64_t v = tile_descriptor<MnMajorTile<Layout::kGranule>>(operands + Layout::kV);
    const uint64_t p = tile_descriptor<StepTile>(operands + Layout::kP);
    uint32_t moves = 0;
#pragma unroll
    for (int warp = 0; warp < Layout::kScoreWarps; ++warp) {
      moves |= static_cast<uint32_t>(load_shared(smem_ + Layout::kMoves + static_cast<uint32_t>(4 * warp)));
    }
    moves = uniform(moves);
    StageAt<Layout::kVStages> at{Layout::kLateStages, 0};
    int g = 0;
#pragma unroll 1
    while (g < granules_) {
      if (g > 0) {
        rescale(o, g);
      }
      const uint32_t later = moves & (~1U << g);
      const int end = later == 0 ? granules_ : min(granules_, __ffs(static_cast<int>(later)) - 1);
      uint32_t before = at.stage;
      pin_registers(o);
      const int begin = g;
#pragma unroll 1
      do {
        if (g % kTeam == 0) {
          barrier_wait(smem_ + Layout::kPFull + static_cast<uint32_t>(8 * (g / kTeam)), 0);
        }
        barrier_wait(smem_ + Layout::kVFull + 8 * at.stage, at.parity);
        fence_async_proxy();  // V has come by ordinary copies
        wgmma_fence();
        const uint64_t values = v + static_cast<uint64_t>(at.stage * (Layout::kVStageBytes / 16));
        const uint64_t weights = p + static_cast<uint64_t>(g * Layout::kGranuleBlocks * (Layout::kPBlock / 16));
#pragma unroll
        for (int block = 0; block < Layout::kGranuleBlocks; ++block) {
          wgmma_columns<kElementOf<kBf16>>(o, MnMajorTile<Layout::kGranule>::step(values, block),
                                           weights + static_cast<uint64_t>(block * (Layout::kPBlock / 16)));
        }
        wgmma_commit();
        if (g > begin) {
          wgmma_wait<1>();
          barrier_arrive(smem_ + Layout::kVEmpty + 8 * before);
        }
        before = at.stage;
        at.advance();
      } while (++g < end);
      wgmma_wait<0>();
      pin_registers(o);
      barrier_arrive(smem_ + Layout::kVEmpty + 8 * before);
    }
  }
  __device__ __forceinline__ void rescale(Outputs& o, int g) const {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const int row = 8 * i + 2 * q_;
      const float2 a = {factor(g, row, moves_of(row)), factor(g, row + 1, moves_of(row + 1))};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        o[4 * i + 2 * h] = __fmul_rn(o[4 * i + 2 * h], a.x);
        o[4 * i + 2 * h + 1] = __fmul_rn(o[4 * i + 2 * h + 1], a.y);
      }
    }
  }

  __device__ __forceinline__ unsigned long long* counter() const {
    return args_.counters + (int64_t{unit_.batch} * args_.heads.value + unit_.head) * kTeam + rank_;
  }

  // The outputs on their way from the warps that summed them to the threads that finish rows: a row of 64 columns after
  // the other, in the place of the maxima, which have been read.
  __device__ __forceinline__ uint32_t output_at(int row, int column) const {
    return smem_ + Layout::kMaxima + static_cast<uint32_t>(row * Layout::kOutputPitch + 4 * column);
  }
  __device__ __forceinline__ void hand_over(const Outputs& o) const {
#pragma unroll
    for (int i = 0; i < 4 * kEights; ++i) {
      store_shared(output_at(8 * (i / 4) + 2 * q_ + i % 2, 16 * warp_ + e_ + i / 2 % 2 * 8), __float_as_int(o[i]));
    }
  }

  // The state of the block's columns, a row by eight threads: whoever hands in a sequence's last one chains them all.
  __device__ __forceinline__ void finish() const {
    constexpr int kThreads = 32 * Layout::kRowWarps;
    const WideRow<Tag, kTeam> row(args_, unit_, rank_, static_cast<int>(threadIdx.x));
    barrier_wait(smem_ + Layout::kEndFull, 0);
    RowState state;
    state.m = load_float(smem_ + Layout::kRowMaxima + static_cast<uint32_t>(4 * row.row()));
    state.l = load_float(smem_ + Layout::kRowSums + static_cast<uint32_t>(4 * row.row()));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 o = load_quad(output_at(row.row(), row.column() + 4 * half));
      state.o[4 * half] = o.x;
      state.o[4 * half + 1] = o.y;
      state.o[4 * half + 2] = o.z;
      state.o[4 * half + 3] = o.w;
    }
    const int chunks = unit_.chunks - unit_.first_chunk;
    if (chunks > 1) {
      row.store(state);
      named_barrier_sync(kStored, kThreads);
      if (threadIdx.x == 0) {
        const bool last = count_up(counter()) == static_cast<uint32_t>(chunks - 1);
        if (last) {
          *counter() = 0;
        }
        store_shared(smem_ + Layout::kLast, last ? 1 : 0);
      }
      named_barrier_sync(kCounted, kThreads);
      if (uniform(load_shared(smem_ + Layout::kLast)) == 0) {
        return;
      }
      state = row.chain();
    }
    row.finish(state);
  }

  // Weights and sums of the own granules to the same places of the other blocks, one per lane. One warp does nothing
  // else, because an exchange takes thousands of clocks and whoever asks for it waits.
  __device__ __forceinline__ void tell_others() const {
    if (lane_ == 0 && unit_.chunks - unit_.first_chunk > 1) {
      claim_counter(counter());
    }
    __syncwarp();
    barrier_arrive(smem_ + Layout::kEndFull);
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
    uint32_t stage = Layout::kLateStages;
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
    const int eight = warp_ - Layout::kOutputWarps;
    if (eight >= kEights) {
      return;
    }
    barrier_wait(smem_ + Layout::kSummed, 0);
    barrier_wait(smem_ + Layout::kSumsFull, 0);
    const int row = 8 * eight + 2 * q_;
    const uint32_t moves[2] = {moves_of(row), moves_of(row + 1)};
    float2 l = {0.0F, 0.0F};
#pragma unroll 4
    for (int g = 0; g < granules_; ++g) {
      const float2 a = {factor(g, row, moves[0]), factor(g, row + 1, moves[1])};
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
