#include "sm90/softcap_check.h"

#include "contract/tanh.h"
#include "kernels/sm90/fmha_decode/softcap.cuh"

namespace tessera::sm90 {
namespace {

constexpr int kBlocks = 1056;
constexpr int kThreads = 256;

__device__ void compare(float got, float want, float x, Differences* to) {
  if (!isnan(x) && __float_as_uint(got) != __float_as_uint(want)) {
    atomicAdd(&to->count, 1ULL);
    to->bits = __float_as_uint(x);
  }
}

__global__ void compare_tanh_of_all(Differences* to) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < uint64_t{1} << 32; i += gridDim.x * blockDim.x) {
    const float x = __uint_as_float(static_cast<uint32_t>(i));
    compare(soft_tanh_fast(x), soft_tanh(x), x, to);
  }
}

// Four scores that are neighbours, or far from one another: they share the way that cap_scores() takes.
__global__ void compare_softcap_of_all(float cap, float inverse, Differences* to) {
  constexpr uint64_t kEach = uint64_t{1} << 30;
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < 2 * kEach; i += gridDim.x * blockDim.x) {
    float x[4];
    float capped[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint64_t bits = i < kEach ? 4 * i + n : i + n * kEach;
      x[n] = capped[n] = __uint_as_float(static_cast<uint32_t>(bits));
    }
    cap_scores(capped, cap, inverse);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      compare(capped[n], mul_rn(cap, soft_tanh(div_rn(x[n], cap))), x[n], to);
    }
  }
}

}  // namespace

cudaError_t compare_tanh(Differences* to) {
  compare_tanh_of_all<<<kBlocks, kThreads>>>(to);
  return cudaGetLastError();
}

cudaError_t compare_softcap(float cap, float inverse, Differences* to) {
  compare_softcap_of_all<<<kBlocks, kThreads>>>(cap, inverse, to);
  return cudaGetLastError();
}

}  // namespace tessera::sm90
