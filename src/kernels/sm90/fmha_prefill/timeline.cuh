// Time stamps of the consumers, for kernels that are compiled with `timeline` (debug builds of the benchmarks; the
// library has none). tests/sm90/bench/timeline.py turns them into a picture.
#pragma once

#include "kernels/sm90/fmha_prefill/common.cuh"

namespace tessera::sm90 {

// What has just happened. timeline.py has the same list.
enum class Event : uint32_t {
  kTileTaken,
  kQueryThere,
  kScoresIssued,
  kScoresDone,
  kWeightsDone,
  kOutputIssued,
  kOutputDone,
  kChunkDone,
  kRowsSkipped,
  kTileDone,
};

// One thread per consumer writes down `event` and the multiprocessor's clock.
template <class Tag>
__device__ __forceinline__ void stamp(const PrefillCommon<Tag>& common, int consumer, Event event) {
  if constexpr (Tag::kSchedule.timeline) {
    if (thread_index() % kWarpgroupThreads == 0) {
      using Layout = PrefillLayout<Tag>;
      const uint32_t counter = common.shared + Layout::kTimeline + 4 * consumer;
      const int n = load_shared(counter);
      if (n < kTimelineStamps) {
        uint2* const stamps =
            common.args.timeline +
            static_cast<int64_t>(blockIdx.x * Tag::kSchedule.consumer_warpgroups + consumer) * kTimelineStamps;
        stamps[n] = make_uint2(static_cast<uint32_t>(event), static_cast<uint32_t>(clock64()));
        store_shared(counter, n + 1);
      }
    }
  }
}

}  // namespace tessera::sm90
