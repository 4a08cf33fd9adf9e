// The vector layer of portable.h in two ymm registers; needs AVX2, FMA and F16C.
// Include from translation units compiled with those flags only (see portable.h on the one-definition rule).
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace tessera::simd {
namespace {

struct Avx2 {
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 8;  // 16 ymm hold 8 of our vectors

  struct F {
    __m256 lo, hi;
  };
  struct I {
    __m256i lo, hi;
  };
  struct M {
    __m256 lo, hi;  // all ones in the lanes of the mask
  };

  // All ones in the lanes below n of 8.
  static __m256i first8(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  // ---- memory
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load_partial(const float* p, int n) {
    return {_mm256_maskload_ps(p, first8(n)), n > 8 ? _mm256_maskload_ps(p + 8, first8(n - 8)) : _mm256_setzero_ps()};
  }
  static F widen_f16(__m128i lo, __m128i hi) { return {_mm256_cvtph_ps(lo), _mm256_cvtph_ps(hi)}; }
  static F widen_bf16(__m128i lo, __m128i hi) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lo), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(hi), 16))};
  }
  static __m128i load8(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static void load16_partial(const uint16_t* p, int n, uint16_t* padded) {
    for (int t = 0; t < 16; ++t) padded[t] = t < n ? p[t] : uint16_t{0};
  }
  static F load_f16(const uint16_t* p) { return widen_f16(load8(p), load8(p + 8)); }
  static F load_f16_partial(const uint16_t* p, int n) {
    uint16_t padded[16];
    load16_partial(p, n, padded);
    return load_f16(padded);
  }
  static F load_bf16(const uint16_t* p) { return widen_bf16(load8(p), load8(p + 8)); }
  static F load_bf16_partial(const uint16_t* p, int n) {
    uint16_t padded[16];
    load16_partial(p, n, padded);
    return load_bf16(padded);
  }

  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
  }
  static void store_partial(float* p, F v, int n) {
    _mm256_maskstore_ps(p, first8(n), v.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, first8(n - 8), v.hi);
  }
  static void store_f16(uint16_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_f16_partial(uint16_t* p, F v, int n) {
    uint16_t padded[16];
    store_f16(padded, v);
    for (int t = 0; t < n; ++t) p[t] = padded[t];
  }
  // Round to nearest even in integers; NaN keeps its upper payload and becomes quiet. Result in the low 16 bits.
  static __m256i narrow_bf16_half(__m256 v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }
  static void store_bf16(uint16_t* p, F v) {
    // packus interleaves the 128-bit halves of its operands; the permutation restores the order.
    const __m256i packed = _mm256_packus_epi32(narrow_bf16_half(v.lo), narrow_bf16_half(v.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static void store_bf16_partial(uint16_t* p, F v, int n) {
    uint16_t padded[16];
    store_bf16(padded, v);
    for (int t = 0; t < n; ++t) p[t] = padded[t];
  }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

  // ---- arithmetic
  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
  static F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
  static F fma_where(M m, F a, F b, F c) { return select(m, fma(a, b, c), c); }
  static F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F abs(F a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
  }
  static F copy_sign(F magnitude, F sign) {
    const __m256 bit = _mm256_set1_ps(-0.0f);
    const F a = abs(magnitude);
    return {_mm256_or_ps(a.lo, _mm256_and_ps(bit, sign.lo)), _mm256_or_ps(a.hi, _mm256_and_ps(bit, sign.hi))};
  }

  // ---- integers and bit patterns
  static I set1_int(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
  static I lane_index() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }
  static I as_int(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
  static F as_float(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
  static I add_int(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
  static I sub_int(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
  static I and_int(I a, I b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
  template <int kBits>
  static I shift_left(I a) {
    return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
  }
  template <int kBits>
  static I shift_right(I a) {
    return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
  }
  static F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

  // ---- masks
  static M mask(uint32_t bits) {
    const __m256i select = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i lo = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(bits & 0xffu)), select);
    const __m256i hi = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(bits >> 8 & 0xffu)), select);
    return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(lo, select)), _mm256_castsi256_ps(_mm256_cmpeq_epi32(hi, select))};
  }
  static uint32_t bits(M m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) | static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
  }
  static M less(F a, F b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)}; }
  static M not_equal(F a, F b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_NEQ_UQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_NEQ_UQ)};
  }
  static F select(M m, F a, F b) { return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)}; }

  // ---- across lanes
  static float reduce_tree(F a) {
    const __m256 a8 = _mm256_add_ps(a.lo, a.hi);
    const __m128 b4 = _mm_add_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
    const __m128 e2 = _mm_add_ps(b4, _mm_movehl_ps(b4, b4));
    return _mm_cvtss_f32(_mm_add_ss(e2, _mm_movehdup_ps(e2)));
  }
  // Eight trees: the level for 8 is lo + hi, the others pair two vectors per addition as in avx512.h.
  [[gnu::always_inline]] static __m256 reduce_tree8(const F* a) {
    __m256 r4[4];  // 128-bit groups: a[i], a[i + 4]; 4 terms each
    for (int i = 0; i < 4; ++i) {
      const __m256 x = _mm256_add_ps(a[i].lo, a[i].hi);
      const __m256 y = _mm256_add_ps(a[i + 4].lo, a[i + 4].hi);
      r4[i] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    }
    __m256 r2[2];
    for (int i = 0; i < 2; ++i) {
      const __m256 lower = _mm256_shuffle_ps(r4[i], r4[i + 2], 0x44);
      const __m256 upper = _mm256_shuffle_ps(r4[i], r4[i + 2], 0xee);
      r2[i] = _mm256_add_ps(lower, upper);
    }
    const __m256 even = _mm256_shuffle_ps(r2[0], r2[1], 0x88);
    const __m256 odd = _mm256_shuffle_ps(r2[0], r2[1], 0xdd);
    return _mm256_permute_ps(_mm256_add_ps(even, odd), 0xd8);  // lanes of a group: 0, 2, 1, 3
  }
  [[gnu::always_inline]] static F reduce_tree16(const F* a) { return {reduce_tree8(a), reduce_tree8(a + 8)}; }
  static float reduce_max(F a) {
    const __m256 a8 = _mm256_max_ps(a.lo, a.hi);
    const __m128 a4 = _mm_max_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
    const __m128 a2 = _mm_max_ps(a4, _mm_movehl_ps(a4, a4));
    return _mm_cvtss_f32(_mm_max_ss(a2, _mm_movehdup_ps(a2)));
  }
  static F fold_halves(F a) { return {_mm256_add_ps(a.lo, a.hi), _mm256_setzero_ps()}; }
  [[gnu::always_inline]] static void transpose8(__m256* r) {
    __m256 t[8];
    for (int i = 0; i < 8; i += 4) {  // 4 x 4 blocks inside the 128-bit groups
      const __m256 a = _mm256_unpacklo_ps(r[i], r[i + 1]);
      const __m256 b = _mm256_unpackhi_ps(r[i], r[i + 1]);
      const __m256 c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
      const __m256 d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
      t[i] = _mm256_shuffle_ps(a, c, 0x44);
      t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
      t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int j = 0; j < 4; ++j) {  // then the 2 x 2 matrix of groups
      r[j] = _mm256_permute2f128_ps(t[j], t[j + 4], 0x20);
      r[j + 4] = _mm256_permute2f128_ps(t[j], t[j + 4], 0x31);
    }
  }
  [[gnu::always_inline]] static void transpose16(F* r) {
    __m256 q[4][8];  // quadrants: rows 0..7 and 8..15, lanes lo and hi
    for (int i = 0; i < 8; ++i) {
      q[0][i] = r[i].lo;
      q[1][i] = r[i].hi;
      q[2][i] = r[i + 8].lo;
      q[3][i] = r[i + 8].hi;
    }
    for (__m256* quadrant : q) transpose8(quadrant);
    for (int i = 0; i < 8; ++i) {
      r[i] = {q[0][i], q[2][i]};
      r[i + 8] = {q[1][i], q[3][i]};
    }
  }
};

}  // namespace
}  // namespace tessera::simd
