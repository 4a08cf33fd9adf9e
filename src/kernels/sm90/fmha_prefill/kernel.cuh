// Prefill attention on sm_90 under docs/contract.md (hopper-k16-f25): O = softmax(Q K^T) V for 64 query rows per
// consumer warpgroup, keys in ascending granules. README.md has the roles, the shared-memory map, the barriers, the
// timing and what was tried.
#pragma once

#include <type_traits>

#include "kernels/sm90/fmha_prefill/producer.cuh"
#include "kernels/sm90/fmha_prefill/ragged_cleaner.cuh"
#include "kernels/sm90/fmha_prefill/ragged_consumer_wide.cuh"
#include "kernels/sm90/fmha_prefill/ragged_run_consumer.cuh"
#include "kernels/sm90/fmha_prefill/ragged_scheduler.cuh"

namespace tessera::sm90 {

// Which consumer a kernel has; benchmarks bring their own (tests/sm90/bench).
template <class Tag>
struct ConsumerOf {
  static constexpr bool kRuns = Tag::kNumbers.head_dim == 128 && !Tag::kSchedule.modifiers;
  using Narrow = std::conditional_t<kRuns, RaggedRunConsumer<Tag>, RaggedConsumer<Tag>>;
  using Ragged = std::conditional_t<PrefillLayout<Tag>::kWide, RaggedWideConsumer<Tag>, Narrow>;
  using Type = std::conditional_t<Tag::kSchedule.ragged, Ragged, OrdinaryConsumer<Tag>>;
};

// Grid: at most one block per multiprocessor, each walking over query tiles.
template <class Tag>
__global__ void __launch_bounds__(PrefillLayout<Tag>::kThreads, 1)
    fmha_prefill_sm90(const __grid_constant__ PrefillArguments args) {
  constexpr PrefillSchedule kSchedule = Tag::kSchedule;
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const PrefillCommon<Tag> common{args, shared_address(shared_bytes)};
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads);
  if (threadIdx.x == 0) {
    prefetch_map(&args.q_map);
    prefetch_map(&args.k_map);
    prefetch_map(&args.v_map);
    if constexpr (kSchedule.ragged) {
      prefetch_map(&args.ragged.k_begin_map);
      prefetch_map(&args.ragged.v_begin_map);
    }
    if (kSchedule.ragged ? args.ragged.fast_finish : !kSchedule.general_finish) {
      prefetch_map(&args.o_map);
    }
    common.init_barriers();
    if constexpr (kSchedule.timeline) {
      for (int w = 0; w < kSchedule.consumer_warpgroups; ++w) {
        store_shared(common.shared + PrefillLayout<Tag>::kTimeline + 4 * w, 0);
      }
    }
  }
  if constexpr (kSchedule.ragged) {
    RaggedProducer<Tag>{common}.clear_unused_panels();
  }
  __syncthreads();
  if (warpgroup == 0) {
    give_registers<kSchedule.producer_registers>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if constexpr (kSchedule.ragged) {
      using Producer = RaggedProducer<Tag>;
      if (warp == 0) {
        Producer{common}.template produce<true, !PrefillLayout<Tag>::kWide>([](uint32_t) {});
      } else if (warp == 1) {
        RaggedScheduler<Tag>{common}.schedule();
      } else if (warp == 2) {
        if (threadIdx.x % 32 < kSchedule.consumer_warpgroups) {
          Producer{common}.produce_queries(static_cast<int>(threadIdx.x) % 32);
        }
      } else if constexpr (PrefillLayout<Tag>::kWide) {
        RaggedCleaner<Tag>{common}.feed_values();
      } else {
        RaggedCleaner<Tag>{common}.clean();
      }
    } else if (threadIdx.x % 32 == 0) {
      if (warp == 0) {
        PrefillProducer<Tag>{common}.produce();
      } else if (warp <= kSchedule.consumer_warpgroups) {
        PrefillProducer<Tag>{common}.produce_queries(warp - 1);
      }
    }
  } else {
    take_registers<kSchedule.consumer_registers>();
    using Consumer = typename ConsumerOf<Tag>::Type;
    Consumer{common}.consume(warpgroup - 1);
  }
}

}  // namespace tessera::sm90
