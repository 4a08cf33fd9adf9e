// The vector layer of the CPU kernels, "16 fp32 lanes", without intrinsics: the meaning of every operation.
//
// avx2.h and avx512.h give the same functions the same bits. A kernel is a template over one of these types and is
// instantiated in one translation unit per instruction set.
//
// One-definition rule: those translation units are compiled with different -m flags, so a function the linker could
// merge across them may execute an instruction the machine lacks. Everything here therefore lives in an unnamed
// namespace and calls compiler builtins only, never an inline function of the standard library.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tessera::simd {
namespace {

struct Portable {
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 16;  // vector registers a kernel may plan with

  struct F {
    float x[16];
  };
  struct I {
    int32_t x[16];
  };
  using M = uint32_t;  // bit t: lane t

  // ---- memory. The _partial forms touch n elements (0 <= n <= 16); loaded lanes >= n are +0.
  static F load_partial(const float* p, int n) {
    F r = {};
    for (int t = 0; t < n; ++t) r.x[t] = p[t];
    return r;
  }
  static F load(const float* p) { return load_partial(p, 16); }
  static F load_f16_partial(const uint16_t* p, int n) {
    F r = {};
    for (int t = 0; t < n; ++t) r.x[t] = widen_f16(p[t]);
    return r;
  }
  static F load_f16(const uint16_t* p) { return load_f16_partial(p, 16); }
  static F load_bf16_partial(const uint16_t* p, int n) {
    F r = {};
    for (int t = 0; t < n; ++t) r.x[t] = from_bits(static_cast<uint32_t>(p[t]) << 16);
    return r;
  }
  static F load_bf16(const uint16_t* p) { return load_bf16_partial(p, 16); }

  static void store_partial(float* p, F v, int n) {
    for (int t = 0; t < n; ++t) p[t] = v.x[t];
  }
  static void store(float* p, F v) { store_partial(p, v, 16); }
  static void store_f16_partial(uint16_t* p, F v, int n) {  // round to nearest even
    for (int t = 0; t < n; ++t) p[t] = narrow_f16(v.x[t]);
  }
  static void store_f16(uint16_t* p, F v) { store_f16_partial(p, v, 16); }
  static void store_bf16_partial(uint16_t* p, F v, int n) {  // round to nearest even
    for (int t = 0; t < n; ++t) p[t] = narrow_bf16(v.x[t]);
  }
  static void store_bf16(uint16_t* p, F v) { store_bf16_partial(p, v, 16); }
  static void prefetch(const void* p) { __builtin_prefetch(p); }

  // ---- arithmetic, one IEEE-754 rounding per operation
  static F zero() { return F{}; }
  static F set1(float a) {
    F r;
    for (float& x : r.x) x = a;
    return r;
  }
  static F add(F a, F b) {
    for (int t = 0; t < 16; ++t) a.x[t] = a.x[t] + b.x[t];
    return a;
  }
  static F sub(F a, F b) {
    for (int t = 0; t < 16; ++t) a.x[t] = a.x[t] - b.x[t];
    return a;
  }
  static F mul(F a, F b) {
    for (int t = 0; t < 16; ++t) a.x[t] = a.x[t] * b.x[t];
    return a;
  }
  static F div(F a, F b) {
    for (int t = 0; t < 16; ++t) a.x[t] = a.x[t] / b.x[t];
    return a;
  }
  static F fma(F a, F b, F c) {  // RN(a * b + c)
    for (int t = 0; t < 16; ++t) a.x[t] = __builtin_fmaf(a.x[t], b.x[t], c.x[t]);
    return a;
  }
  static F fma_where(M m, F a, F b, F c) {  // lanes of m: RN(a * b + c), others: c
    return select(m, fma(a, b, c), c);
  }
  static F max(F a, F b) {  // a > b ? a : b
    for (int t = 0; t < 16; ++t) a.x[t] = a.x[t] > b.x[t] ? a.x[t] : b.x[t];
    return a;
  }
  static F abs(F a) {
    for (float& x : a.x) x = from_bits(to_bits(x) & 0x7fffffffu);
    return a;
  }
  static F copy_sign(F magnitude, F sign) {
    for (int t = 0; t < 16; ++t) {
      magnitude.x[t] = from_bits((to_bits(magnitude.x[t]) & 0x7fffffffu) | (to_bits(sign.x[t]) & 0x80000000u));
    }
    return magnitude;
  }

  // ---- integers and bit patterns
  static I set1_int(int32_t a) {
    I r;
    for (int32_t& x : r.x) x = a;
    return r;
  }
  static I lane_index() {
    I r;
    for (int t = 0; t < 16; ++t) r.x[t] = t;
    return r;
  }
  static I as_int(F a) {
    I r;
    for (int t = 0; t < 16; ++t) r.x[t] = static_cast<int32_t>(to_bits(a.x[t]));
    return r;
  }
  static F as_float(I a) {
    F r;
    for (int t = 0; t < 16; ++t) r.x[t] = from_bits(static_cast<uint32_t>(a.x[t]));
    return r;
  }
  static I add_int(I a, I b) {  // modulo 2^32
    for (int t = 0; t < 16; ++t) {
      a.x[t] = static_cast<int32_t>(static_cast<uint32_t>(a.x[t]) + static_cast<uint32_t>(b.x[t]));
    }
    return a;
  }
  static I sub_int(I a, I b) {  // modulo 2^32
    for (int t = 0; t < 16; ++t) {
      a.x[t] = static_cast<int32_t>(static_cast<uint32_t>(a.x[t]) - static_cast<uint32_t>(b.x[t]));
    }
    return a;
  }
  static I and_int(I a, I b) {
    for (int t = 0; t < 16; ++t) a.x[t] &= b.x[t];
    return a;
  }
  template <int kBits>
  static I shift_left(I a) {
    for (int32_t& x : a.x) x = static_cast<int32_t>(static_cast<uint32_t>(x) << kBits);
    return a;
  }
  template <int kBits>
  static I shift_right(I a) {  // arithmetic
    for (int32_t& x : a.x) x >>= kBits;
    return a;
  }
  static F to_float(I a) {  // round to nearest even
    F r;
    for (int t = 0; t < 16; ++t) r.x[t] = static_cast<float>(a.x[t]);
    return r;
  }

  // ---- masks
  static M mask(uint32_t bits) { return bits & 0xffffu; }
  static uint32_t bits(M m) { return m; }
  static M less(F a, F b) {
    M m = 0;
    for (int t = 0; t < 16; ++t) m |= static_cast<M>(a.x[t] < b.x[t]) << t;
    return m;
  }
  static M not_equal(F a, F b) {  // true for NaN
    M m = 0;
    for (int t = 0; t < 16; ++t) m |= static_cast<M>(a.x[t] != b.x[t]) << t;
    return m;
  }
  static F select(M m, F a, F b) {  // lanes of m: a, others: b
    for (int t = 0; t < 16; ++t) a.x[t] = (m >> t & 1) != 0 ? a.x[t] : b.x[t];
    return a;
  }

  // ---- across lanes
  // The tree of R1: t with t + 8, then + 4, + 2, + 1.
  static float reduce_tree(F a) {
    for (int half = 8; half > 0; half /= 2) {
      for (int t = 0; t < half; ++t) a.x[t] = a.x[t] + a.x[t + half];
    }
    return a.x[0];
  }
  // Lane i of the result is reduce_tree(a[i]).
  [[gnu::always_inline]] static F reduce_tree16(const F* a) {
    F r;
    for (int i = 0; i < 16; ++i) r.x[i] = reduce_tree(a[i]);
    return r;
  }
  static float reduce_max(F a) {
    float m = a.x[0];
    for (int t = 1; t < 16; ++t) m = a.x[t] > m ? a.x[t] : m;
    return m;
  }
  // Lane t (t < 8): a_t + a_{t+8}; lanes 8..15 are +0 (R7).
  static F fold_halves(F a) {
    for (int t = 0; t < 8; ++t) a.x[t] = a.x[t] + a.x[t + 8];
    for (int t = 8; t < 16; ++t) a.x[t] = 0.0f;
    return a;
  }
  // r[i] lane t becomes r[t] lane i.
  [[gnu::always_inline]] static void transpose16(F* r) {
    for (int i = 0; i < 16; ++i) {
      for (int t = 0; t < i; ++t) {
        const float swap = r[i].x[t];
        r[i].x[t] = r[t].x[i];
        r[t].x[i] = swap;
      }
    }
  }

  // ---- number conversions, scalar
  static float from_bits(uint32_t u) {
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
  }
  static uint32_t to_bits(float f) {
    uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    return u;
  }
  static float widen_f16(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u;
    const uint32_t fraction = h & 1023u;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24 is exact
      return from_bits(sign | to_bits(static_cast<float>(fraction) * 0x1p-24f));
    }
    if (exponent == 31) {  // infinity, or NaN made quiet
      return from_bits(sign | 0x7f800000u | (fraction != 0 ? 0x00400000u : 0u) | fraction << 13);
    }
    return from_bits(sign | (exponent + 112u) << 23 | fraction << 13);
  }
  static uint16_t narrow_f16(float f) {
    const uint32_t u = to_bits(f);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {  // NaN, quiet, upper payload kept
      return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past 65504
    if (magnitude < 0x38800000u) {
      // Subnormal result: adding 0.5 leaves units of 2^-24 in the low fraction bits, rounded by the addition itself.
      const uint32_t rounded = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
      return static_cast<uint16_t>(sign | rounded);
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  static uint16_t narrow_bf16(float f) {
    const uint32_t u = to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // quiet NaN
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

}  // namespace
}  // namespace tessera::simd
