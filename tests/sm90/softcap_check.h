// Kernels of the softcap test: the fast forms of kernels/sm90/fmha_decode/softcap.cuh against what they stand for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::sm90 {

// How many floats that are numbers differ in their bits, and one of them; device memory.
struct Differences {
  unsigned long long count;
  uint32_t bits;
};

// soft_tanh_fast(x) against soft_tanh(x), for every x.
cudaError_t compare_tanh(Differences* to);
// cap_scores() against the rule's divisions and products, for every score.
cudaError_t compare_softcap(float cap, float inverse, Differences* to);

}  // namespace tessera::sm90
