#include "tests/sm90/bench/variants.h"

#include <array>

#include "kernels/sm90/fmha_prefill/launch.cuh"
#include "kernels/sm90/fmha_prefill/tags.h"

namespace tessera::sm90 {
namespace {

// `kName` is the variant's name for prefill_bench.py; all are head dim 128, bf16.
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
struct Chunk2048 : Variant<kCausal> {
  static constexpr const char* kName = "chunk_2048";
  static constexpr PrefillNumbers kNumbers = Variant<kCausal>::numbers(2048, true);
};
template <bool kCausal>
struct EagerMax : Variant<kCausal> {
  static constexpr const char* kName = "eager_max";
  static constexpr PrefillNumbers kNumbers = Variant<kCausal>::numbers(kChunkKeys, false);
};
constexpr std::array kVariants = {
    prefill_entry<OneChunk<false>>(), prefill_entry<OneChunk<true>>(),   prefill_entry<Chunk512<false>>(),
    prefill_entry<Chunk512<true>>(),  prefill_entry<Chunk2048<false>>(), prefill_entry<Chunk2048<true>>(),
    prefill_entry<EagerMax<false>>(), prefill_entry<EagerMax<true>>(),
};

}  // namespace

std::span<const PrefillEntry> bench_variants() {
  return kVariants;
}

}  // namespace tessera::sm90
