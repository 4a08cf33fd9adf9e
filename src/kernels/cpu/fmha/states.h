// R8 and R9: the chain of two states of a row, and the finished row.
#pragma once

#include <stdint.h>

#include "base/host_device.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/output_rope.h"
#include "kernels/cpu/fmha/softmax.h"
#include "tessera/tessera.h"

namespace tessera::cpu_fmha {
namespace {

// A := chain(A, B). `vectors` vectors of 16 per O; B's O is not read when B is empty.
template <class V>
inline void chain_row(float* m, float* l, float* o, float m_b, float l_b, const float* o_b, int vectors) {
  if (m_b == negative_infinity()) return;
  if (*m == negative_infinity()) {
    *m = m_b;
    *l = l_b;
    for (int i = 0; i < vectors; ++i) V::store(o + i * 16, V::load(o_b + i * 16));
    return;
  }
  const float top = *m > m_b ? *m : m_b;
  const float w_a = drop_weight(top - *m);
  const float w_b = drop_weight(top - m_b);
  *m = top;
  *l = fma_rn(*l, w_a, mul_rn(l_b, w_b));
  for (int i = 0; i < vectors; ++i) {
    const auto scaled = V::mul(V::load(o_b + i * 16), V::set1(w_b));
    V::store(o + i * 16, V::fma(V::load(o + i * 16), V::set1(w_a), scaled));
  }
}

// l of a chunk from its 8 classes (R7).
inline float sum_classes(const float* l) {
  return ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]));
}

inline float log_sum_exp(float m, float l) {
  return m == negative_infinity() ? m : mul_rn(add_rn(soft_log2(l), m), kLn2);
}

// `dims` values of O: RN(RN(o * w) * inv) rounded to the dtype, -0 made +0. empty: +0.
template <class V>
inline void store_output_row(const float* o, bool empty, float w, float inv, int dims, tessera_dtype dtype, void* data,
                             int64_t offset) {
  for (int d = 0; d < dims; d += 16) {
    const int n = dims - d < 16 ? dims - d : 16;
    auto x = V::zero();
    if (!empty) x = V::mul(V::mul(V::load(o + d), V::set1(w)), V::set1(inv));
    x = V::add(x, V::zero());
    if (dtype == TESSERA_F32) {
      V::store_partial(static_cast<float*>(data) + offset + d, x, n);
      continue;
    }
    // A tiny negative value may still round to -0.
    uint16_t half[16];
    if (dtype == TESSERA_F16) {
      V::store_f16(half, x);
    } else {
      V::store_bf16(half, x);
    }
    for (int t = 0; t < n; ++t) {
      static_cast<uint16_t*>(data)[offset + d + t] = half[t] == 0x8000u ? uint16_t{0} : half[t];
    }
  }
}

// R9 and R12 of one row. `sink` is NULL or points to the head's sink.
template <class V>
inline void finish_row(float m, float l, const float* o, const float* sink, const OutputRopeRow& rope, int dims,
                       tessera_dtype dtype, void* data, int64_t offset) {
  bool empty = m == negative_infinity();
  float w = 1.0f;
  if (!empty && sink != nullptr && *sink != negative_infinity()) {
    const float h = mul_rn(*sink, kLog2E);
    if (h == __builtin_inff()) {
      empty = true;
    } else {
      const float ceiling = __builtin_ceilf(h);
      const float top = m > ceiling ? m : ceiling;
      w = drop_weight(top - m);
      l = add_rn(mul_rn(l, w), soft_exp2(sub_rn(h, top)));
    }
  }
  const float inverse = div_rn(1.0f, l);
  if (empty || rope.cos == nullptr) {
    store_output_row<V>(o, empty, w, inverse, dims, dtype, data, offset);
    return;
  }
  alignas(64) float turned[kFmhaMaxHeadDim];
  for (int d = 0; d < dims; d += 16) {
    V::store(turned + d, V::mul(V::mul(V::load(o + d), V::set1(w)), V::set1(inverse)));
  }
  float* const pairs = turned + dims - rope.rotary_dim;
  for (int i = 0; i < rope.rotary_dim / 2; ++i) turn_back(pairs[2 * i], pairs[2 * i + 1], rope.cos[i], rope.sin[i]);
  store_output_row<V>(turned, false, 1.0f, 1.0f, dims, dtype, data, offset);
}

// An un-normalised O, -0 made +0; +0 when empty.
template <class V>
inline void store_state_row(const float* o, bool empty, int dims, float* data) {
  for (int d = 0; d < dims; d += 16) {
    V::store_partial(data + d, empty ? V::zero() : V::add(V::load(o + d), V::zero()), dims - d < 16 ? dims - d : 16);
  }
}

inline void store_scalar(const tessera_row_scalars& s, int64_t batch, int64_t token, int64_t head, float value) {
  if (s.data == nullptr) return;
  s.data[batch * s.stride_batch + token * s.stride_token + head * s.stride_head] = value;
}

}  // namespace
}  // namespace tessera::cpu_fmha
