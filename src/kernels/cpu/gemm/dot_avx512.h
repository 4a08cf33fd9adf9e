// The integer layer D of micro.h with AVX-512 VNNI, shared by the VNNI and AMX translation units. vpdpbusd multiplies 4
// unsigned by 4 signed bytes per 32-bit lane and adds them without saturation: lane = row, the weights are the unsigned
// operand, 4 activation digits are broadcast.
#pragma once

#include "kernels/cpu/simd/avx512.h"

#include "kernels/cpu/gemm/activation.h"
#include "kernels/cpu/gemm/micro.h"

namespace tessera::gemm {
namespace {

struct Avx512Dot {
  using V = simd::Avx512;

  // 4 rows of 3 digits are 12 independent chains, enough for vpdpbusd (latency 5, two per cycle).
  static constexpr int kMaxRows = 4;

  struct Weights {
    __m512i g[8];  // per k group: byte row * 4 + k of the group
  };

  static __m512i load(const uint8_t* p) { return _mm512_loadu_si512(p); }

  template <int kBits>
  static __attribute__((always_inline)) inline Weights unpack(const uint8_t* sub) {
    Weights w;
    if constexpr (kBits == 8) {
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) w.g[g] = load(sub + 64 * g);
    } else {
      const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __m512i nibbles = load(sub + 64 * v);
        w.g[v] = _mm512_and_si512(nibbles, low);
        w.g[v + 4] = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low);
      }
      if constexpr (kBits == 5) add_high<1>(w, load(sub + 256), load(sub + 256));
      if constexpr (kBits == 6) add_high<2>(w, load(sub + 256), load(sub + 320));
    }
    return w;
  }

  // Bits 4.. of the quants of k group g: kWidth bits from bit kWidth * g of `first` (and on into `second`).
  template <int kWidth>
  static __attribute__((always_inline)) inline void add_high(Weights& w, __m512i first, __m512i second) {
    add_high_bits<kWidth, 0>(w.g[0], first);
    add_high_bits<kWidth, 1>(w.g[1], first);
    add_high_bits<kWidth, 2>(w.g[2], first);
    add_high_bits<kWidth, 3>(w.g[3], first);
    constexpr int kSecond = kWidth == 1 ? 4 : 0;
    add_high_bits<kWidth, kSecond + 0>(w.g[4], second);
    add_high_bits<kWidth, kSecond + 1>(w.g[5], second);
    add_high_bits<kWidth, kSecond + 2>(w.g[6], second);
    add_high_bits<kWidth, kSecond + 3>(w.g[7], second);
  }

  // Shifts of 16-bit lanes move bits across bytes; the mask keeps only bits that came from the same byte.
  template <int kWidth, int kIndex>
  static __attribute__((always_inline)) inline void add_high_bits(__m512i& quants, __m512i bits) {
    constexpr int kFrom = kWidth * kIndex;
    const __m512i mask = _mm512_set1_epi8(kWidth == 1 ? 0x10 : 0x30);
    const __m512i moved = kFrom < 4 ? _mm512_slli_epi16(bits, 4 - (kFrom < 4 ? kFrom : 4))
                                    : _mm512_srli_epi16(bits, kFrom < 4 ? 0 : kFrom - 4);
    quants = _mm512_ternarylogic_epi32(quants, moved, mask, 0xf8);  // quants | (moved & mask)
  }

  // Rows innermost: consecutive instructions belong to different chains, which hides vpdpbusd's latency of 5.
  template <int kBits, int kG0, int kG1, int kRows>
  static __attribute__((always_inline)) inline void dot(const Weights& w, const ActBlock* act, __m512i* sums) {
#pragma GCC unroll 8
    for (int g = kG0; g < kG1; ++g) {
#pragma GCC unroll 3
      for (int digit = 0; digit < 3; ++digit) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          int32_t four;
          __builtin_memcpy(&four, digits_of(act[r], digit) + 4 * g, 4);
          __m512i& sum = sums[digit * kRows + r];
          sum = _mm512_dpbusd_epi32(sum, w.g[g], _mm512_set1_epi32(four));
        }
      }
    }
  }

  template <bool kSigned>
  static __m512 load_bytes(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
  }

  static __m512i low_digit(__m512i q) {
    return _mm512_srai_epi32(_mm512_slli_epi32(q, 24), 24);
  }

  static void store_digits(int8_t* digits, __m512i values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(digits), _mm512_cvtepi32_epi8(values));
  }

  // M1 for 32 elements.
  struct Quants {
    __m512i q0;  // the first 16 q
    __m512i q1;
    float dx;
  };

  static __attribute__((always_inline)) inline Quants quantize32(const float* x) {
    const __m512 x0 = _mm512_loadu_ps(x);
    const __m512 x1 = _mm512_loadu_ps(x + 16);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const int32_t amax_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(
        _mm512_and_si512(_mm512_castps_si512(x0), magnitude), _mm512_and_si512(_mm512_castps_si512(x1), magnitude)));
    float amax;
    __builtin_memcpy(&amax, &amax_bits, 4);
    if (amax_bits >= 0x7f800000 || amax < kActTiny) {
      const float dx = amax_bits >= 0x7f800000 ? __builtin_nanf("") : 0.0F;
      return {_mm512_setzero_si512(), _mm512_setzero_si512(), dx};
    }
    constexpr float kLimit = static_cast<float>(kActLimit);
    const __m512 inverse = _mm512_set1_ps(kLimit / amax);
    return {to_quant(_mm512_mul_ps(x0, inverse)), to_quant(_mm512_mul_ps(x1, inverse)), amax / kLimit};
  }

  static void quantize_block(const float* x, ActBlock& act) {
    const Quants quants = quantize32(x);
    const __m512i c0 = low_digit(quants.q0);
    const __m512i c1 = low_digit(quants.q1);
    const __m512i ab0 = _mm512_srai_epi32(_mm512_sub_epi32(quants.q0, c0), 8);
    const __m512i ab1 = _mm512_srai_epi32(_mm512_sub_epi32(quants.q1, c1), 8);
    const __m512i b0 = low_digit(ab0);
    const __m512i b1 = low_digit(ab1);
    const __m512i a0 = _mm512_srai_epi32(_mm512_sub_epi32(ab0, b0), 8);
    const __m512i a1 = _mm512_srai_epi32(_mm512_sub_epi32(ab1, b1), 8);
    store_digits(act.a, a0);
    store_digits(act.a + 16, a1);
    store_digits(act.b, b0);
    store_digits(act.b + 16, b1);
    store_digits(act.c, c0);
    store_digits(act.c + 16, c1);
    act.dx = quants.dx;
    act.sum_first = _mm512_reduce_add_epi32(quants.q0);
    act.sum = act.sum_first + _mm512_reduce_add_epi32(quants.q1);
    act.xs = act.dx * static_cast<float>(act.sum);
    act.sum_a = _mm512_reduce_add_epi32(_mm512_add_epi32(a0, a1));
    act.sum_bc = act.sum - 65536 * act.sum_a;
  }

  // Nearest integer, ties to even. |scaled| <= L + 0.25 (M1), so no limit is needed.
  static __m512i to_quant(__m512 scaled) {
    return _mm512_cvt_roundps_epi32(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

using Avx512Micro = Micro<simd::Avx512, Avx512Dot>;

}  // namespace
}  // namespace tessera::gemm
