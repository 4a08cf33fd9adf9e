// Where a role stands in a ring of any number of stages (RingPosition: powers of two in one register).
#pragma once

#include <cstdint>

namespace tessera::sm90 {

template <int kStages>
struct StageAt {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    const bool last = stage + 1 == kStages;
    stage = last ? 0 : stage + 1;
    parity ^= last ? 1U : 0U;
  }
};

}  // namespace tessera::sm90
