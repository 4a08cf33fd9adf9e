// R1's softcap without branches: the bits of div_rn(x, cap) and soft_tanh(x) (contract/tanh.h), so that several scores
// are capped at once. tests/sm90/softcap_test.cpp compares all floats.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "contract/exp2.h"
#include "contract/tanh.h"
#include "kernels/sm90/fmha_decode/config.h"

namespace tessera::sm90 {

__device__ __forceinline__ bool divides_fast(float x) {
  return x == 0.0F || (fabsf(x) >= kLeastDividend && fabsf(x) <= kLargestDividend);
}

// RN(x / d) for two such numbers and inverse = RN(1 / d): a second estimate whose error is below an ulp, and its
// remainder, which is exact, round as the quotient does (P. Markstein, IBM J. Res. Dev. 34, 1990).
__device__ __forceinline__ float divide_fast(float x, float d, float inverse) {
  float q = __fmul_rn(x, inverse);
  q = __fmaf_rn(__fmaf_rn(-d, q, x), inverse, q);
  q = __fmaf_rn(__fmaf_rn(-d, q, x), inverse, q);
  return x == 0.0F ? x : q;  // -0
}

// soft_tanh(x) for an x that is a number. Its 2 / d is twice 1 / d, d in [4, 2^30).
__device__ __forceinline__ float soft_tanh_fast(float x) {
  constexpr float kOne = 10.0F;  // from where it is 1
  const float a = fabsf(x);
  const float d = __fadd_rn(1.0F, soft_exp2(__fmul_rn(fminf(a, kOne), 2.0F * kLog2E)));
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(d));
  inverse = __fmaf_rn(inverse, -__fmaf_rn(d, inverse, -1.0F), inverse);
  const float far = __fmaf_rn(-2.0F, inverse, 1.0F);
  const float near = soft_tanh_near(a);
  return copysignf(a <= kNearTanh ? near : far, x);
}

// Registers cannot be indexed: a rolled loop works on the first one, and the others move round.
template <int kCount>
__device__ __forceinline__ void rotate(float (&x)[kCount]) {
  const float first = x[0];
#pragma unroll
  for (int i = 0; i + 1 < kCount; ++i) {
    x[i] = x[i + 1];
  }
  x[kCount - 1] = first;
}

// RN(cap soft_tanh(RN(x / cap))) of numbers; inverse = RN(1 / cap), or 0 for a cap out of range.
template <int kCount>
__device__ __forceinline__ void cap_scores(float (&x)[kCount], float cap, float inverse) {
  float q[kCount];
  bool fast = inverse != 0.0F;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    fast &= divides_fast(x[i]);
    q[i] = divide_fast(x[i], cap, inverse);
  }
  if (!fast) {
#pragma unroll 1
    for (int n = 0; n < kCount; ++n) {
      q[0] = __fdiv_rn(x[0], cap);
      rotate(q);
      rotate(x);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = __fmul_rn(cap, soft_tanh_fast(q[i]));
  }
}

}  // namespace tessera::sm90
