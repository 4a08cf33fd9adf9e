// Rule R9 for one row: what the attention kernels and the merge do with a finished state.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "tessera/tessera.h"

namespace tessera::sm80 {

// out = RN(RN(O rescale) inverse), or +0 if none.
struct RowFinish {
  float rescale;
  float inverse;
  bool none;
};

// `sink` is -Inf when there is none; m = -Inf: the row saw no key.
__device__ __forceinline__ RowFinish finish_row(float m, float l, float bias, float sink, bool normalized) {
  const float minus_inf = __uint_as_float(0xff800000U);
  const float h = mul_rn(sink, kLog2E);
  RowFinish f{1.0F, 1.0F, m == minus_inf || h == -minus_inf};
  if (h != minus_inf && !f.none) {
    const float highest = fmaxf(m, ceilf(h));
    f.rescale = drop_weight(sub_rn(highest, m));
    l = add_rn(mul_rn(l, f.rescale), soft_exp2(add_rn(sub_rn(h, highest), bias)));
  }
  if (normalized) {
    f.inverse = div_rn(1.0F, l);
  }
  return f;
}

// One output element before its rounding to the output dtype.
__device__ __forceinline__ float finish_element(float o, const RowFinish& f) {
  return f.none ? 0.0F : mul_rn(mul_rn(o, f.rescale), f.inverse);
}

__device__ __forceinline__ float row_lse(float m, float l, float bias) {
  const float minus_inf = __uint_as_float(0xff800000U);
  return m == minus_inf ? minus_inf : mul_rn(add_rn(soft_log2(l), sub_rn(m, bias)), kLn2);
}

// Bits of a 16-bit output element, -0 as +0.
template <bool kBf16>
__device__ __forceinline__ uint16_t output_bits(float value) {
  uint16_t bits;
  if constexpr (kBf16) {
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  } else {
    bits = __half_as_ushort(__float2half_rn(value));
  }
  return bits == 0x8000U ? uint16_t{0} : bits;
}

__device__ __forceinline__ float output_float(float value) {
  return value == 0.0F ? 0.0F : value;
}

__device__ __forceinline__ void store_scalar(const tessera_row_scalars& scalars, int64_t batch, int64_t token,
                                             int64_t head, float value) {
  if (scalars.data != nullptr) {
    scalars.data[batch * scalars.stride_batch + token * scalars.stride_token + head * scalars.stride_head] = value;
  }
}

// LSE, row max and row sum of one row, as far as they are wanted. Params: tessera_fmha_params or tessera_merge_params.
template <class Params>
__device__ __forceinline__ void store_scalars(const Params& p, int64_t batch, int64_t token, int64_t head, float m,
                                              float l, float bias) {
  const bool empty = m == __uint_as_float(0xff800000U);
  store_scalar(p.lse_natural_no_sink, batch, token, head, row_lse(m, l, bias));
  store_scalar(p.row_max_log2, batch, token, head, empty ? m : sub_rn(m, bias));
  store_scalar(p.row_sum, batch, token, head, empty ? 0.0F : l);
}

}  // namespace tessera::sm80
