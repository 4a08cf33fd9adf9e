#include "tests/sm90/bench/variants.h"

#include <array>

#include "kernels/sm90/fmha_prefill/launch.cuh"
#include "kernels/sm90/fmha_prefill/tags.h"
#include "tests/sm90/bench/free_consumer.cuh"

namespace tessera::sm90 {
namespace {

// `kName` is the variant's name for prefill_bench.py. Those that price the contract are bf16.
constexpr PrefillNumbers with_chunks(PrefillNumbers n, int chunk_keys) {
  n.chunk_keys = chunk_keys;
  return n;
}
template <class Tag>
struct Chunk1024 : Tag {
  static constexpr const char* kName = "chunk_1024";
  static constexpr PrefillNumbers kNumbers = with_chunks(Tag::kNumbers, 1024);
};
// R8 lifted: one chunk without end, and no code for others.
template <class Tag>
struct OneChunk : Tag {
  static constexpr const char* kName = "one_chunk";
  static constexpr PrefillNumbers kNumbers = with_chunks(Tag::kNumbers, 0);
};
// Everything lifted (free_consumer.cuh), the maximum found as the contract has it, and as is usual.
template <class Tag>
struct Free : Tag {
  static constexpr const char* kName = "free";
  static constexpr FreeMax kMax = FreeMax::kProved;
  static constexpr PrefillNumbers kNumbers = with_chunks(Tag::kNumbers, 0);
};
template <class Tag>
struct FreeExact : Tag {
  static constexpr const char* kName = "free_exact_max";
  static constexpr FreeMax kMax = FreeMax::kExact;
  static constexpr PrefillNumbers kNumbers = with_chunks(Tag::kNumbers, 0);
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

}  // namespace

template <class Tag>
requires requires {
  Tag::kMax;
}
struct ConsumerOf<Tag> {
  using Type =
      std::conditional_t<PrefillLayout<Tag>::kWide, FreeWideConsumer<Tag, Tag::kMax>, FreeConsumer<Tag, Tag::kMax>>;
};

namespace {

constexpr std::array kVariants = {
    prefill_entry<Timeline<PrefillHd64<true, false>>>(),   prefill_entry<Timeline<PrefillHd64<true, true>>>(),
    prefill_entry<Timeline<PrefillHd128<true, false>>>(),  prefill_entry<Timeline<PrefillHd128<true, true>>>(),
    prefill_entry<Timeline<PrefillHd256<true, false>>>(),  prefill_entry<Timeline<PrefillHd256<true, true>>>(),
    prefill_entry<Chunk1024<PrefillHd128<true, false>>>(), prefill_entry<Chunk1024<PrefillHd128<true, true>>>(),
    prefill_entry<OneChunk<PrefillHd64<true, false>>>(),   prefill_entry<OneChunk<PrefillHd64<true, true>>>(),
    prefill_entry<OneChunk<PrefillHd128<true, false>>>(),  prefill_entry<OneChunk<PrefillHd128<true, true>>>(),
    prefill_entry<Free<PrefillHd64<true, false>>>(),       prefill_entry<Free<PrefillHd64<true, true>>>(),
    prefill_entry<Free<PrefillHd128<true, false>>>(),      prefill_entry<Free<PrefillHd128<true, true>>>(),
    prefill_entry<Free<PrefillHd256<true, false>>>(),      prefill_entry<Free<PrefillHd256<true, true>>>(),
    prefill_entry<FreeExact<PrefillHd64<true, false>>>(),  prefill_entry<FreeExact<PrefillHd64<true, true>>>(),
    prefill_entry<FreeExact<PrefillHd128<true, false>>>(), prefill_entry<FreeExact<PrefillHd128<true, true>>>(),
    prefill_entry<FreeExact<PrefillHd256<true, false>>>(), prefill_entry<FreeExact<PrefillHd256<true, true>>>(),
};

}  // namespace

std::span<const PrefillEntry> bench_variants() {
  return kVariants;
}

}  // namespace tessera::sm90
