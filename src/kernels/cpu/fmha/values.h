// R6: O := O a, then O_d = fma(P_j, v_jd, O_d) key by key, keys with P = +0 left out.
#pragma once

#include <stdint.h>

#include "kernels/cpu/fmha/elements.h"

namespace tessera::cpu_fmha {
namespace {

// V rows as pack_values leaves them: vector i of key t of the granule at base + (i * granule + t) * 16.
template <class V>
struct PackedValues {
  const float* base;
  int64_t granule;
  typename V::F load(int key, int vector) const { return V::load(base + (vector * granule + key) * 16); }
  void prefetch(int) const {}
};

// V rows where they are in memory, `first` elements in. Working on key t asks for row t of `ahead`.
template <class V, class E>
struct DirectValues {
  const void* const* rows;
  int first;
  Prefetch ahead;
  void prefetch(int key) const { prefetch_row<V>(ahead, key); }
  typename V::F load(int key, int vector) const {
    return E::load(static_cast<const typename E::Type*>(rows[key]) + first + vector * 16);
  }
};

// The last, partial vector of V rows where they are in memory.
template <class V, class E>
struct DirectTail {
  const void* const* rows;
  int first;
  int dims;
  void prefetch(int) const {}
  typename V::F load(int key, int) const {
    return E::load_partial(static_cast<const typename E::Type*>(rows[key]) + first, dims);
  }
};

// packed (dim_v_padded / 16, granule, 16), keys of `present` only, the padding +0.
template <class V, class E>
inline void pack_values(const void* const* rows, uint32_t present, int first_key, int head_dim, int64_t granule,
                        float* packed) {
  for (int t = 0; t < 16; ++t) {
    if ((present >> t & 1u) == 0) continue;
    const auto* source = static_cast<const typename E::Type*>(rows[t]);
    for (int d = 0; d < head_dim; d += 16) {
      const int left = head_dim - d;
      V::store(packed + (d / 16 * granule + first_key + t) * 16,
               left >= 16 ? E::load(source + d) : E::load_partial(source + d, left));
    }
  }
}

// kRows rows by kVectors vectors of O stay in registers over 16-key blocks [begin, end).
// p (kRows, stride_p), nonzero (kRows, stride_nonzero), o (kRows, stride_o), rescale (kRows).
template <class V, int kRows, int kVectors, class Values>
[[gnu::noinline]] void accumulate(const float* p, int64_t stride_p, const uint16_t* nonzero, int stride_nonzero,
                                  int begin, int end, const Values& values, const float* rescale, float* o,
                                  int64_t stride_o) {
  typename V::F acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    const auto a = V::set1(rescale[r]);
    for (int i = 0; i < kVectors; ++i) acc[r][i] = V::mul(V::load(o + r * stride_o + i * 16), a);
  }
  for (int b = begin; b < end; ++b) {
    uint32_t any = 0;
    uint32_t all = 0xffffu;
    for (int r = 0; r < kRows; ++r) {
      any |= nonzero[r * stride_nonzero + b];
      all &= nonzero[r * stride_nonzero + b];
    }
    if (all == 0xffffu) {
      for (int t = 0; t < 16; ++t) {
        const int key = b * 16 + t;
        values.prefetch(key);
        typename V::F v[kVectors];
        for (int i = 0; i < kVectors; ++i) v[i] = values.load(key, i);
        for (int r = 0; r < kRows; ++r) {
          const auto weight = V::set1(p[r * stride_p + key]);
          for (int i = 0; i < kVectors; ++i) acc[r][i] = V::fma(weight, v[i], acc[r][i]);
        }
      }
      continue;
    }
    for (uint32_t keys = any; keys != 0; keys &= keys - 1) {
      const int t = __builtin_ctz(keys);
      const int key = b * 16 + t;
      typename V::F v[kVectors];
      for (int i = 0; i < kVectors; ++i) v[i] = values.load(key, i);
      for (int r = 0; r < kRows; ++r) {
        if ((nonzero[r * stride_nonzero + b] >> t & 1u) == 0) continue;
        const auto weight = V::set1(p[r * stride_p + key]);
        for (int i = 0; i < kVectors; ++i) acc[r][i] = V::fma(weight, v[i], acc[r][i]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) V::store(o + r * stride_o + i * 16, acc[r][i]);
  }
}

}  // namespace
}  // namespace tessera::cpu_fmha
