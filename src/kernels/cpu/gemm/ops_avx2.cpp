// The matrix product with AVX2. vpmaddubsw adds pairs of unsigned * signed bytes in 16 bits with saturation; the quants
// are small enough that it never saturates, and that several k groups can be added before vpmaddwd widens to 32 bits:
//   4 bits: 8 groups * 2 * 15 * 128 = 30720; 5 bits: 4 * 2 * 31 * 128 = 31744; 6 bits: 2 * 2 * 63 * 128 = 32256.
// 8-bit quants are taken apart into two nibbles.
#include "kernels/cpu/simd/avx2.h"

#include "kernels/cpu/gemm/micro.h"

namespace tessera::gemm {
namespace {

struct Avx2Dot {
  using V = simd::Avx2;

  static constexpr int kMaxRows = 4;

  // Bytes of nibbles (4-bit types and the halves of 8 bits) or whole quants, per k group: byte row * 4 + k of the
  // group.
  struct Weights {
    alignas(32) uint8_t quants[8][64];
    alignas(32) uint8_t high[8][64];  // 8 bits only: the upper nibble
  };

  static __m256i load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store(uint8_t* p, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }

  template <int kBits>
  static __attribute__((always_inline)) inline Weights unpack(const uint8_t* sub) {
    Weights w;
    const __m256i low = _mm256_set1_epi8(15);
    if constexpr (kBits == 8) {
      for (int g = 0; g < 8; ++g) {
        for (int half = 0; half < 64; half += 32) {
          const __m256i bytes = load(sub + 64 * g + half);
          store(w.quants[g] + half, _mm256_and_si256(bytes, low));
          store(w.high[g] + half, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low));
        }
      }
    } else {
      for (int v = 0; v < 4; ++v) {
        for (int half = 0; half < 64; half += 32) {
          const __m256i nibbles = load(sub + 64 * v + half);
          const __m256i first = high_bits<kBits>(sub, v, half);
          const __m256i second = high_bits<kBits>(sub, v + 4, half);
          store(w.quants[v] + half, _mm256_or_si256(_mm256_and_si256(nibbles, low), first));
          store(w.quants[v + 4] + half, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low), second));
        }
      }
    }
    return w;
  }

  // Bits 4 and 5 of the quants of k group g, in place. Shifts of 16-bit lanes move bits across bytes; the mask keeps
  // only bits that came from the same byte.
  template <int kBits>
  static __m256i high_bits(const uint8_t* sub, int g, int half) {
    if constexpr (kBits == 4) return _mm256_setzero_si256();
    const int vector = kBits == 5 ? 0 : g >> 2;
    const int from = kBits == 5 ? g : 2 * (g & 3);
    const __m256i bits = load(sub + 256 + 64 * vector + half);
    const __m256i moved = _mm256_srl_epi16(_mm256_slli_epi16(bits, 4), _mm_cvtsi32_si128(from));
    const __m256i direct = _mm256_srl_epi16(bits, _mm_cvtsi32_si128(from - 4));
    const __m256i mask = _mm256_set1_epi8(kBits == 5 ? 0x10 : 0x30);
    return _mm256_and_si256(from < 4 ? moved : direct, mask);
  }

  // Sum over groups [kG0, kG1) of 8 rows, as 16-bit pairs widened every kRun groups; the result is multiplied by
  // `factor` (a power of two, at most 16).
  template <int kRun, int kG0, int kG1>
  static __attribute__((always_inline)) inline __m256i sum_groups(const uint8_t (*quants)[64], int half,
                                                                  const int8_t* digits, int factor, __m256i init) {
    const __m256i factors = _mm256_set1_epi16(static_cast<int16_t>(factor));
#pragma GCC unroll 8
    for (int run = kG0; run < kG1; run += kRun) {
      __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int g = run; g < run + kRun; ++g) {
        int32_t four;
        __builtin_memcpy(&four, digits + 4 * g, 4);
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(load(quants[g] + half), _mm256_set1_epi32(four)));
      }
      init = _mm256_add_epi32(init, _mm256_madd_epi16(pairs, factors));
    }
    return init;
  }

  template <int kBits, int kG0, int kG1, int kRows>
  static __attribute__((always_inline)) inline void dot(const Weights& w, const ActBlock* act, V::I* sums) {
    constexpr int kRun = kBits == 6 ? 2 : (kBits == 5 ? 4 : 8);
    static_assert((kG1 - kG0) % kRun == 0);
    for (int digit = 0; digit < 3; ++digit) {
      for (int r = 0; r < kRows; ++r) {
        const int8_t* digits = digits_of(act[r], digit);
        V::I& sum = sums[digit * kRows + r];
        sum.lo = sum_groups<kRun, kG0, kG1>(w.quants, 0, digits, 1, sum.lo);
        sum.hi = sum_groups<kRun, kG0, kG1>(w.quants, 32, digits, 1, sum.hi);
        if constexpr (kBits == 8) {
          sum.lo = sum_groups<kRun, kG0, kG1>(w.high, 0, digits, 16, sum.lo);
          sum.hi = sum_groups<kRun, kG0, kG1>(w.high, 32, digits, 16, sum.hi);
        }
      }
    }
  }

  template <bool kSigned>
  static V::F load_bytes(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i upper = _mm_unpackhi_epi64(bytes, bytes);
    const V::I wide = kSigned ? V::I{_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(upper)}
                              : V::I{_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(upper)};
    return V::to_float(wide);
  }

  static int32_t reduce_add(__m256i v) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
  }

  static int32_t reduce_max(__m256i v) {
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1)));
  }

  static __m256i low_digit(__m256i q) {
    return _mm256_srai_epi32(_mm256_slli_epi32(q, 24), 24);
  }

  // Four vectors of 8 values that fit a byte, as 32 bytes in order.
  static void store_digits(int8_t* digits, const __m256i* values) {
    const __m256i words0 = _mm256_packs_epi32(values[0], values[1]);  // 64-bit quarters: 0a 1a 0b 1b
    const __m256i words1 = _mm256_packs_epi32(values[2], values[3]);
    const __m256i bytes = _mm256_packs_epi16(words0, words1);  // 32-bit: 0a 1a 2a 3a | 0b 1b 2b 3b
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(digits), _mm256_permutevar8x32_epi32(bytes, order));
  }

  static void quantize_block(const float* x, ActBlock& act) {
    __m256 values[4];
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      values[i] = _mm256_loadu_ps(x + 8 * i);
      top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(values[i]), _mm256_set1_epi32(0x7fffffff)));
    }
    const int32_t amax_bits = reduce_max(top);
    float amax;
    __builtin_memcpy(&amax, &amax_bits, 4);
    if (amax_bits >= 0x7f800000 || amax < kActTiny) {
      __builtin_memset(&act, 0, sizeof(act));
      if (amax_bits >= 0x7f800000) {
        const int32_t nan = 0x7fc00000;
        __builtin_memcpy(&act.dx, &nan, 4);
        __builtin_memcpy(&act.xs, &nan, 4);
      }
      return;
    }
    constexpr float kLimit = static_cast<float>(kActLimit);
    const __m256 inverse = _mm256_set1_ps(kLimit / amax);
    __m256i a[4];
    __m256i b[4];
    __m256i c[4];
    __m256i sum_q[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i sum_a = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
      c[i] = low_digit(q);
      const __m256i ab = _mm256_srai_epi32(_mm256_sub_epi32(q, c[i]), 8);
      b[i] = low_digit(ab);
      a[i] = _mm256_srai_epi32(_mm256_sub_epi32(ab, b[i]), 8);
      sum_q[i / 2] = _mm256_add_epi32(sum_q[i / 2], q);
      sum_a = _mm256_add_epi32(sum_a, a[i]);
    }
    store_digits(act.a, a);
    store_digits(act.b, b);
    store_digits(act.c, c);
    act.dx = amax / kLimit;
    act.sum_first = reduce_add(sum_q[0]);
    act.sum = act.sum_first + reduce_add(sum_q[1]);
    act.xs = act.dx * static_cast<float>(act.sum);
    act.sum_a = reduce_add(sum_a);
    act.sum_bc = act.sum - 65536 * act.sum_a;
  }
};

using Avx2Micro = Micro<simd::Avx2, Avx2Dot>;

}  // namespace

const Ops kAvx2Ops = {&Avx2Micro::act_bytes, &Avx2Micro::scratch_bytes, &Avx2Micro::quantize, &Avx2Micro::multiply,
                      128};

}  // namespace tessera::gemm
