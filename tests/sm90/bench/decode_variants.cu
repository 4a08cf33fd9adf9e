// Decode kernels that price rule R0: other chunk lengths (not the contract's bits) and cluster sizes.
#include "kernels/sm90/fmha_decode/launch.cuh"
#include "tests/sm90/bench/decode_variants.h"

namespace tessera::sm90 {
namespace {

template <int kChunk, int kCluster>
struct Variant {
  static constexpr DecodeNumbers kNumbers{128, true, kChunk};
  static constexpr DecodeSchedule kSchedule{8, kCluster};
};

template <int kChunk>
void add(std::vector<DecodeEntry>& entries) {
  entries.push_back(decode_entry<Variant<kChunk, 1>>("variant"));
  entries.push_back(decode_entry<Variant<kChunk, 2>>("variant"));
  entries.push_back(decode_entry<Variant<kChunk, 4>>("variant"));
  entries.push_back(decode_entry<Variant<kChunk, 8>>("variant"));
}

}  // namespace

std::vector<DecodeEntry> decode_variants() {
  std::vector<DecodeEntry> entries;
  add<512>(entries);
  add<1024>(entries);
  add<2048>(entries);
  return entries;
}

}  // namespace tessera::sm90
