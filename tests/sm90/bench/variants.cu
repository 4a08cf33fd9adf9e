#include "tests/sm90/bench/variants.h"

#include <array>

#include "kernels/sm90/fmha_prefill/launch.cuh"
#include "kernels/sm90/fmha_prefill/tags.h"

namespace tessera::sm90 {
namespace {

// `kName` is the variant's name for prefill_bench.py; those that price the contract are head dim 128, bf16.
template <bool kCausal>
struct Variant : PrefillHd128<true, kCausal> {
  static constexpr PrefillNumbers numbers(int chunk_keys, bool lazy_max) {
    PrefillNumbers n = PrefillHd128<true, kCausal>::kNumbers;
    n.chunk_keys = chunk_keys;
    n.lazy_max = lazy_max;
    return n;
  }
};
template <bool kCausal>
struct OneChunk : Variant<kCausal> {
  static constexpr const char* kName = "one_chunk";
  static constexpr PrefillNumbers kNumbers = Variant<kCausal>::numbers(0, true);
};
template <bool kCausal>
struct Chunk512 : Variant<kCausal> {
  static constexpr const char* kName = "chunk_512";
  static constexpr PrefillNumbers kNumbers = Variant<kCausal>::numbers(512, true);
};
template <bool kCausal>
struct Chunk1024 : Variant<kCausal> {
  static constexpr const char* kName = "chunk_1024";
  static constexpr PrefillNumbers kNumbers = Variant<kCausal>::numbers(1024, true);
};
template <bool kCausal>
struct EagerMax : Variant<kCausal> {
  static constexpr const char* kName = "eager_max";
  static constexpr PrefillNumbers kNumbers = Variant<kCausal>::numbers(kChunkKeys, false);
};
// With time stamps, for timeline.py.
template <class Tag>
struct Timeline : Tag {
  static constexpr const char* kName = "timeline";
  static constexpr PrefillSchedule kSchedule = [] {
    PrefillSchedule schedule = Tag::kSchedule;
    schedule.timeline = true;
    return schedule;
  }();
};
constexpr std::array kVariants = {
    prefill_entry<Timeline<PrefillHd64<true, false>>>(),
    prefill_entry<Timeline<PrefillHd64<true, true>>>(),
    prefill_entry<Timeline<PrefillHd128<true, false>>>(),
    prefill_entry<Timeline<PrefillHd128<true, true>>>(),
    prefill_entry<Timeline<PrefillHd256<true, false>>>(),
    prefill_entry<Timeline<PrefillHd256<true, true>>>(),
    prefill_entry<OneChunk<false>>(),
    prefill_entry<OneChunk<true>>(),
    prefill_entry<Chunk512<false>>(),
    prefill_entry<Chunk512<true>>(),
    prefill_entry<Chunk1024<false>>(),
    prefill_entry<Chunk1024<true>>(),
    prefill_entry<EagerMax<false>>(),
    prefill_entry<EagerMax<true>>(),
};

}  // namespace

std::span<const PrefillEntry> bench_variants() {
  return kVariants;
}

}  // namespace tessera::sm90
