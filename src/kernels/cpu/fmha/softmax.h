// R1 (modifiers), R3, R4, R7: one row of one granule from S to P (R5 is the identity in cpu-fma32).
#pragma once

#include <stdint.h>

#include "contract/ceil_product.h"
#include "contract/exp2.h"
#include "kernels/cpu/simd/soft.h"

namespace tessera::cpu_fmha {
namespace {

// What R1's modifiers need to know about a row. `alibi` says whether ALiBi is on; a slope of 0 is still on.
struct Modifiers {
  float scale;
  float cap;  // 0: off
  float slope;
  bool alibi;
};

// fp32 of j - p for keys first + t.
template <class V>
inline typename V::F key_distances(int64_t first, int64_t position) {
  const int64_t distance = first - position;
  if (distance > INT32_MIN && distance < INT32_MAX - 16) {
    return V::to_float(V::add_int(V::set1_int(static_cast<int32_t>(distance)), V::lane_index()));
  }
  float lanes[16];
  for (int t = 0; t < 16; ++t) lanes[t] = static_cast<float>(distance + t);
  return V::load(lanes);
}

// R1: natural scores from q . k. Lanes without a visible key may hold anything.
template <class V>
inline typename V::F modify(typename V::F s, const Modifiers& m, int64_t first, int64_t position) {
  auto x = V::mul(s, V::set1(m.scale));
  if (m.cap != 0.0f) {
    const auto cap = V::set1(m.cap);
    x = V::mul(cap, simd::soft_tanh<V>(V::div(x, cap)));
  }
  if (m.alibi) x = V::fma(V::set1(m.slope), key_distances<V>(first, position), x);
  return x;
}

inline float negative_infinity() {
  return -__builtin_inff();
}

// Turns the S of 16-key blocks [begin, end) of a row into P; updates m and the row sums (8 classes), sets *rescale to a
// of R3 (1 if nothing is visible) and nonzero[b] to the lanes with P != 0. kMasked: some key may be hidden.
// Block indices count from the granule; begin < end.
template <class V, bool kMasked, bool kModified>
inline void softmax_row(float* scores, const uint16_t* visible, int begin, int end, float c, float lazy_threshold,
                        const Modifiers& modifiers, int64_t granule_key, int64_t position, float* m, float* row_sums,
                        float* rescale, uint16_t* nonzero) {
  const auto none = V::set1(negative_infinity());
  auto largest = none;
  uint32_t any = 0;
  for (int b = begin; b < end; ++b) {
    auto s = V::load(scores + b * 16);
    if constexpr (kModified) {
      s = modify<V>(s, modifiers, granule_key + b * 16, position);
      V::store(scores + b * 16, s);
    }
    if constexpr (kMasked) {
      s = V::select(V::mask(visible[b]), s, none);
      any |= visible[b];
    }
    largest = V::max(largest, s);
  }
  if (kMasked && any == 0) {  // no effect on the row (R2)
    *rescale = 1.0f;
    for (int b = begin; b < end; ++b) nonzero[b] = 0;
    return;
  }

  const float u = ceil_product(V::reduce_max(largest), c);
  const float before = *m;
  float a = 1.0f;
  if (u > before + lazy_threshold) {  // -Inf before the first
    a = before == negative_infinity() ? 0.0f : drop_weight(u - before);
    *m = u;
  }
  *rescale = a;

  const auto scale = V::set1(c);
  const auto shift = V::set1(0.0f - *m);
  auto sum = V::zero();  // lanes 0..7: g_j of R7
  for (int b = begin; b < end; ++b) {
    auto p = simd::soft_exp2<V>(V::fma(V::load(scores + b * 16), scale, shift));
    if constexpr (kMasked) p = V::select(V::mask(visible[b]), p, V::zero());
    V::store(scores + b * 16, p);
    nonzero[b] = static_cast<uint16_t>(V::bits(V::not_equal(p, V::zero())));
    sum = V::add(sum, V::fold_halves(p));
  }
  const auto l = V::load_partial(row_sums, 8);
  V::store_partial(row_sums, V::fma(l, V::set1(a), sum), 8);
}

}  // namespace
}  // namespace tessera::cpu_fmha
