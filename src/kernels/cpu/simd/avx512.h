// The vector layer of portable.h in one zmm register; needs AVX-512 F, BW, DQ and VL.
// Include from translation units compiled with those flags only (see portable.h on the one-definition rule).
#pragma once

// GCC 12 warns about its own _mm512_undefined_ps inside the intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#include <stddef.h>
#include <stdint.h>

namespace tessera::simd {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 32;

  using F = __m512;
  using I = __m512i;
  using M = __mmask16;

  static M first(int n) { return static_cast<M>((1u << n) - 1u); }  // lanes below n, 0 <= n <= 16

  // ---- memory
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_partial(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_f16_partial(const uint16_t* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
  static F widen_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
  static F load_bf16(const uint16_t* p) { return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static F load_bf16_partial(const uint16_t* p, int n) { return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p)); }

  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void store_partial(float* p, F v, int n) { _mm512_mask_storeu_ps(p, first(n), v); }
  static void store_f16(uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_f16_partial(uint16_t* p, F v, int n) {
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  // Round to nearest even in integers; NaN keeps its upper payload and becomes quiet.
  static __m256i narrow_bf16(F v) {
    const I u = _mm512_castps_si512(v);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const I quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x00400000));
    const M nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
  static void store_bf16(uint16_t* p, F v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(v)); }
  static void store_bf16_partial(uint16_t* p, F v, int n) { _mm256_mask_storeu_epi16(p, first(n), narrow_bf16(v)); }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

  // ---- arithmetic
  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float a) { return _mm512_set1_ps(a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fma_where(M m, F a, F b, F c) { return _mm512_mask3_fmadd_ps(a, b, c, m); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F copy_sign(F magnitude, F sign) {
    // 0xd8: a where the third operand is clear, b where it is set
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude), _mm512_castps_si512(sign),
                                                         _mm512_set1_epi32(INT32_MIN), 0xd8));
  }

  // ---- integers and bit patterns
  static I set1_int(int32_t a) { return _mm512_set1_epi32(a); }
  static I lane_index() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static I as_int(F a) { return _mm512_castps_si512(a); }
  static F as_float(I a) { return _mm512_castsi512_ps(a); }
  static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I and_int(I a, I b) { return _mm512_and_si512(a, b); }
  template <int kBits>
  static I shift_left(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static I shift_right(I a) {
    return _mm512_srai_epi32(a, kBits);
  }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }

  // ---- masks
  static M mask(uint32_t bits) { return static_cast<M>(bits); }
  static uint32_t bits(M m) { return m; }
  static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static M not_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
  static F select(M m, F a, F b) { return _mm512_mask_mov_ps(b, m, a); }

  // ---- across lanes
  static __m256 low(F a) { return _mm512_castps512_ps256(a); }
  static __m256 high(F a) { return _mm512_extractf32x8_ps(a, 1); }
  static float reduce_tree(F a) {
    const __m256 a8 = _mm256_add_ps(low(a), high(a));
    const __m128 b4 = _mm_add_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
    const __m128 e2 = _mm_add_ps(b4, _mm_movehl_ps(b4, b4));
    return _mm_cvtss_f32(_mm_add_ss(e2, _mm_movehdup_ps(e2)));
  }
  // Each level pairs two vectors: their lower halves in one register, their upper halves in another, one addition.
  // After the level for 8, register i holds [a_i (8 terms), a_{i+1} (8 terms)]; the last level leaves the 16 results in
  // an order that the input order (kOrder) undoes.
  [[gnu::always_inline]] static F reduce_tree16(const F* a) {
    F r8[8];
    for (int i = 0; i < 8; ++i) {  // + 8: 256-bit halves of a[i] and a[i + 8]
      const F lower = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x44);
      const F upper = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xee);
      r8[i] = _mm512_add_ps(lower, upper);
    }
    F r4[4];  // 128-bit groups: a[i], a[i + 4], a[i + 8], a[i + 12]; 4 terms each
    for (int i = 0; i < 4; ++i) {
      const F even = _mm512_shuffle_f32x4(r8[i], r8[i + 4], 0x88);  // groups 0, 2 of both: terms 0..3
      const F odd = _mm512_shuffle_f32x4(r8[i], r8[i + 4], 0xdd);   // groups 1, 3 of both: terms 4..7
      r4[i] = _mm512_add_ps(even, odd);                             // groups: i, i + 8, i + 4, i + 12
    }
    F r2[2];  // inside a group: lanes 0, 1 from r4[i], lanes 2, 3 from r4[i + 2]
    for (int i = 0; i < 2; ++i) {
      const F lower = _mm512_shuffle_ps(r4[i], r4[i + 2], 0x44);
      const F upper = _mm512_shuffle_ps(r4[i], r4[i + 2], 0xee);
      r2[i] = _mm512_add_ps(lower, upper);
    }
    // lanes of a group: r2[0].01, r2[0].23, r2[1].01, r2[1].23
    const F even = _mm512_shuffle_ps(r2[0], r2[1], 0x88);
    const F odd = _mm512_shuffle_ps(r2[0], r2[1], 0xdd);
    const F sum = _mm512_add_ps(even, odd);  // groups g = 0, 8, 4, 12; lane of group: g, g + 2, g + 1, g + 3
    const I order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, sum);
  }
  static float reduce_max(F a) {
    const __m256 a8 = _mm256_max_ps(low(a), high(a));
    const __m128 a4 = _mm_max_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
    const __m128 a2 = _mm_max_ps(a4, _mm_movehl_ps(a4, a4));
    return _mm_cvtss_f32(_mm_max_ss(a2, _mm_movehdup_ps(a2)));
  }
  static F fold_halves(F a) { return _mm512_zextps256_ps512(_mm256_add_ps(low(a), high(a))); }
  [[gnu::always_inline]] static void transpose16(F* r) {
    F t[16];
    for (int i = 0; i < 16; i += 4) {  // 4 x 4 blocks inside the 128-bit groups
      const F a = _mm512_unpacklo_ps(r[i], r[i + 1]);
      const F b = _mm512_unpackhi_ps(r[i], r[i + 1]);
      const F c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]);
      const F d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
      t[i] = _mm512_shuffle_ps(a, c, 0x44);
      t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
      t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
      t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    for (int j = 0; j < 4; ++j) {  // then the 4 x 4 matrix of groups
      const F a = _mm512_shuffle_f32x4(t[j], t[j + 4], 0x88);
      const F b = _mm512_shuffle_f32x4(t[j], t[j + 4], 0xdd);
      const F c = _mm512_shuffle_f32x4(t[j + 8], t[j + 12], 0x88);
      const F d = _mm512_shuffle_f32x4(t[j + 8], t[j + 12], 0xdd);
      r[j] = _mm512_shuffle_f32x4(a, c, 0x88);
      r[j + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
      r[j + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      r[j + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }
};

}  // namespace
}  // namespace tessera::simd
