#include "kernels/sm90/fmha_prefill_512/kernel.cuh"
#include "tests/sm90/bench/variants.h"

namespace tessera::sm90 {
namespace {

// R8 lifted. Its other constraints cost the kernel nothing that could be left out.
struct Free512 : Prefill512<true> {
  static constexpr bool kChunks = false;
};
constexpr Prefill512Entry kFree = {"free", true, &launch_prefill_512<Free512>};

}  // namespace

const Prefill512Entry& free_prefill_512() {
  return kFree;
}

}  // namespace tessera::sm90
