// Kernels whose chunks end a granule early (decode_broken.h).
#include "contract/plan.h"  // the right numbers, before one of their names means another

#define kChunkKeys (2048 - 128)
#include "cuda/decode_broken.h"
#include "kernels/sm90/fmha_decode/launch.cuh"

namespace tessera::test {
namespace {

// Of their own, so that the library's kernels are other ones.
struct Single : sm90::DecodeKernel<64, true, 8, 1> {};
struct Pair : sm90::DecodeKernel<64, true, 8, 2> {};

}  // namespace

std::span<const sm90::DecodeEntry> decode_with_short_chunks() {
  static constexpr sm90::DecodeEntry kEntries[] = {sm90::alone_entry<Single>("short_chunks_single"),
                                                   sm90::alone_entry<Pair>("short_chunks_pair")};
  return kEntries;
}

}  // namespace tessera::test
