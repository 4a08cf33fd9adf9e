// Consumers without the contract's constraints, to price it: one chunk without end and no code for others, sums and
// maxima as is fastest, approximate functions in the finish. Everything else is the kernels' own.
#pragma once

#include "kernels/sm90/fmha_prefill/consumer.cuh"
#include "kernels/sm90/fmha_prefill/consumer_wide.cuh"

namespace tessera::sm90 {

// How the maximum of a row is found.
enum class FreeMax {
  kProved,  // as the contract has it (R3): integers, T = 8, almost never looked for
  kExact,   // the row's maximum so far, in every granule; O follows where it moves
};

// The exact maximum of the granules so far, masked scores given as -Inf: moves rows.m on, and the sums with it. Whether
// O has to follow, times `rescale`, for any row of the warp.
template <class Granules, class Fragments>
__device__ __forceinline__ bool move_free(Fragments& f, const PrefillArguments& args,
                                          float (&rescale)[kRowsPerThread]) {
  float largest[kRowsPerThread] = {minus_infinity(), minus_infinity()};
#pragma unroll
  for (int i = 0; i < Granules::kScores; i += 2) {
    largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fmaxf(f.s[i], f.s[i + 1]));
  }
  bool higher = false;
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
    largest[h] = fmaxf(largest[h], __shfl_xor_sync(0xffffffffU, largest[h], 1));
    largest[h] = fmaxf(largest[h], __shfl_xor_sync(0xffffffffU, largest[h], 2));
    // Finite, so that a row without keys so far has weights of 0.
    const float m = fmaxf(fmaxf(f.rows.m[h], __fmul_rn(largest[h], args.c)), -0x1p100F);
    rescale[h] = exp2_approx(__fsub_rn(f.rows.m[h], m));
    higher |= m > f.rows.m[h];
    f.rows.m[h] = m;
    f.rows.l[h][0] = __fmul_rn(f.rows.l[h][0], rescale[h]);
  }
  return __any_sync(0xffffffffU, higher);
}
// Weights of that granule, S := p, and with kRoundNow P. rows.l[h][0] is the thread's part of the sum.
template <class Granules, bool kRoundNow, class Fragments>
__device__ __forceinline__ void weigh_free(Fragments& f, const PrefillArguments& args) {
  float offset[2][kRowsPerThread] = {{-f.rows.m[0], -f.rows.m[1]}, {-f.rows.m[0], -f.rows.m[1]}};
#pragma unroll
  for (int block = 0; block < Granules::kScores / 8; ++block) {
    float(&own)[kRowsPerThread] = offset[block % 2];
    float* const s = &f.s[8 * block];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      s[i] = exp2_approx(__fmaf_rn(s[i], args.c, own[i / 2 % 2]));
      s[i + 1] = exp2_approx(__fmaf_rn(s[i + 1], args.c, own[i / 2 % 2]));
      f.rows.l[i / 2 % 2][0] = __fadd_rn(f.rows.l[i / 2 % 2][0], __fadd_rn(s[i], s[i + 1]));
    }
    if constexpr (kRoundNow) {
      round_block<Granules::kElement>(s, f.p[block]);
    }
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      own[h] = after(own[h], kRoundNow ? f.p[block][2 + h] : __float_as_uint(s[5 + 2 * h]), args.zero);
    }
  }
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Head dims 64 and 128.
template <class Tag, FreeMax kMax>
struct FreeConsumer : PrefillConsumer<Tag> {
  using Base = PrefillConsumer<Tag>;
  using Base::args, Base::kElement, Base::kOutputs, Base::kOwnBarrier, Base::kTileKeys, Base::kDim;
  using Base::thread, Base::own_row, Base::key_limit, Base::k_ring, Base::v_ring, Base::wait_staging;
  using typename Base::Fragments, typename Base::Layout, typename Base::Position;

  __device__ __forceinline__ void consume(int warpgroup) const { Base::consume_with(*this, warpgroup); }

  __device__ __forceinline__ void weigh_exact(Fragments& f, int warpgroup, int j, int first_row, int first_masked,
                                              const Position& at) const {
    Base::compute_scores(f, warpgroup, at, Base::descriptor_of(at));
    Base::mask(f, j, first_row, first_masked);
    float rescale[kRowsPerThread];
    if (move_free<Base>(f, args, rescale) && j > 0) {
      rescale_output(f.o, rescale);
    }
    weigh_free<Base, true>(f, args);
  }

  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, const QueryTile& query, Position& at) const {
    if constexpr (kMax == FreeMax::kProved) {
      Base::attend(f, warpgroup, query, at);
      return;
    }
    const int first_masked = uniform(key_limit(query.first_row) / kTileKeys);
    const int tiles = Base::own_granules(warpgroup, Base::round_of(at));
    const bool leader = thread() == 0;
    k_ring().wait_full(at);
    f.rows.clear();
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      weigh_exact(f, warpgroup, j, query.first_row, first_masked, at);
      Base::multiply(f, warpgroup, j == 0, j + 1 == tiles, at, leader);
      at.advance();
    }
    Base::close_rows(f);
  }

  __device__ __forceinline__ void finish(Fragments& f, int warpgroup, const QueryTile& query) const {
    if (query.first_row >= args.seqlen_q) {
      return;
    }
    const int t = thread();
    const int row = own_row(t);
    float inverse[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      inverse[h] = f.closed.m[h] == minus_infinity() ? 0.0F : __fdividef(1.0F, f.closed.l[h]);
    }
    const uint32_t staging = Base::shared + Layout::kChain + warpgroup * Layout::kChainBytes;
    const uint32_t first = staging + swizzled_offset(kWarpgroupRows, row, t % 4 * 2);
    wait_staging(warpgroup);
#pragma unroll
    for (int i = 0; i < kOutputs; i += 2) {
      const int h = i / 2 % 2;
      const uint32_t pair = round_pair<kElement>(__fmul_rn(f.o[i], inverse[h]), __fmul_rn(f.o[i + 1], inverse[h]));
      const int piece = i / 4 % (kPanelColumns / 8);
      store_shared((first ^ static_cast<uint32_t>(piece << 4)) +
                       i / 4 / (kPanelColumns / 8) * panel_bytes(kWarpgroupRows) + h * kSwizzleBytes,
                   static_cast<int>(pair));
    }
    fence_async_proxy();
    named_barrier_sync(kOwnBarrier + warpgroup, kWarpgroupThreads);
    if (t == 0) {
      for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
        store_box_as(&args.o_map, staging + panel * panel_bytes(kWarpgroupRows), panel * kPanelColumns, query.first_row,
                     query.head, query.batch, read_once_policy());
      }
      store_commit();
    }
    const bool second = t % 4 == 1;
    const int i = query.first_row + row + (second ? 8 : 0);
    if (args.lse != nullptr && t % 4 < kRowsPerThread && i < args.seqlen_q) {
      const float m = (second ? f.closed.m[1] : f.closed.m[0]) - (kMax == FreeMax::kProved ? args.bias : 0.0F);
      args.lse[query.batch * args.lse_stride_batch + i * args.lse_stride_token + query.head * args.lse_stride_head] =
          (log2_approx(second ? f.closed.l[1] : f.closed.l[0]) + m) * kLn2;
    }
  }
};

// Head dim 256. The finish is the contract's, without its chunks.
template <class Tag, FreeMax kMax>
struct FreeWideConsumer : PrefillWideConsumer<Tag> {
  using Base = PrefillWideConsumer<Tag>;
  using Base::args, Base::kElement, Base::kOwnBarrier, Base::kTileKeys;
  using Base::thread, Base::key_limit, Base::k_ring, Base::v_ring;
  using typename Base::Fragments, typename Base::Position;

  __device__ __forceinline__ void consume(int warpgroup) const { Base::consume_with(*this, warpgroup); }

  // P V of the granule before this one ends in its shadow; then O follows.
  __device__ __forceinline__ void weigh_exact(Fragments& f, int j, int first_row, int first_masked) const {
    pin_registers(f.s);
    Base::mask(f, j, first_row, first_masked);
    float rescale[kRowsPerThread];
    const bool moved = move_free<Base>(f, args, rescale);
    weigh_free<Base, false>(f, args);
    if (j > 0) {
      wgmma_wait<0>();
      pin_registers(f.o);
      if (moved) {
        rescale_output(f.o, rescale);
      }
    }
  }

  // With the maxima of the contract: its own walk, over a chunk that does not end.
  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, const QueryTile& query, Position& at) const {
    if constexpr (kMax == FreeMax::kProved) {
      Base::attend(f, warpgroup, query, at);
    } else {
      attend_exact(f, warpgroup, query, at);
    }
  }
  __device__ __forceinline__ void attend_exact(Fragments& f, int warpgroup, const QueryTile& query,
                                               Position& at) const {
    const int tiles = Base::own_granules(warpgroup, Base::round_of(at));
    const int first_masked = key_limit(query.first_row) / kTileKeys;
    const bool leader = thread() == 0;
    f.rows.clear();
    k_ring().wait_full(at);
    Base::start_scores(f, opaque(warpgroup), uniform(at.stage()));
    wgmma_wait<0>();
    weigh_exact(f, 0, query.first_row, first_masked);
    if (leader) {
      k_ring().release(at);
    }
    round_weights<kElement>(f.s, f.p);
    int j = 0;
#pragma unroll 1
    for (; j + 1 < tiles; ++j) {
      k_ring().wait_full(at.next());
      Base::start_scores(f, opaque(warpgroup), uniform(at.next().stage()));
      v_ring().wait_full(at);
      Base::start_output(f, uniform(at.stage()), j == 0);
      at.advance();
      wgmma_wait<1>();
      weigh_exact(f, j + 1, query.first_row, first_masked);
      if (leader) {
        k_ring().release(at);
      }
      wgmma_wait<0>();
      pin_registers(f.o);
      if (leader) {
        v_ring().release(Position{at.use - 1});
      }
      round_weights<kElement>(f.s, f.p);
    }
    if (Base::kEarlyQuery && leader) {
      Base::release_query(warpgroup);
    }
    v_ring().wait_full(at);
    Base::start_output(f, uniform(at.stage()), j == 0);
    Base::close_rows(f);
    wgmma_wait<0>();
    pin_registers(f.o);
    if (leader) {
      v_ring().release(at);
    }
    at.advance();
  }

  __device__ __forceinline__ void finish(Fragments& f, int warpgroup, const QueryTile& query) const {
    if (query.first_row < args.seqlen_q) {
      Base::template finish_as<Base::Left::kNone>(f, {}, warpgroup, query);
    }
  }
};

}  // namespace tessera::sm90
