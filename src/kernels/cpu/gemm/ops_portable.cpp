// The matrix product in plain C++: the meaning of every integer step, and the fallback of machines without AVX2.
#include "kernels/cpu/gemm/micro.h"
#include "kernels/cpu/simd/portable.h"

namespace tessera::gemm {
namespace {

struct PortableDot {
  using V = simd::Portable;

  // One row at a time: wider tiles only pay where they stay in registers.
  static constexpr int kMaxRows = 1;

  struct Weights {
    uint8_t quants[8][64];  // [k group][row * 4 + k of the group]
  };

  template <int kBits>
  static __attribute__((noinline)) Weights unpack(const uint8_t* sub) {
    UnitMap map{};
    map.bits = kBits;
    map.sub_bytes = 64 * kBits;
    Weights w;
    for (int g = 0; g < 8; ++g) {
      for (int i = 0; i < 64; ++i) w.quants[g][i] = static_cast<uint8_t>(unit_quant(map, sub, 4 * g + (i & 3), i >> 2));
    }
    return w;
  }

  template <int kBits, int kG0, int kG1, int kRows>
  static void dot(const Weights& w, const ActBlock* act, V::I* sums) {
    for (int digit = 0; digit < 3; ++digit) {
      for (int r = 0; r < kRows; ++r) add_dot(w, digits_of(act[r], digit), kG0, kG1, sums[digit * kRows + r]);
    }
  }

  static __attribute__((noinline)) void add_dot(const Weights& w, const int8_t* digits, int g0, int g1, V::I& sums) {
    for (int row = 0; row < 16; ++row) {
      int32_t sum = 0;
      for (int g = g0; g < g1; ++g) {
        for (int b = 0; b < 4; ++b) sum += w.quants[g][row * 4 + b] * digits[4 * g + b];
      }
      sums.x[row] += sum;
    }
  }

  template <bool kSigned>
  static V::F load_bytes(const uint8_t* p) {
    V::F f;
    for (int row = 0; row < 16; ++row) {
      f.x[row] = kSigned ? static_cast<float>(static_cast<int8_t>(p[row])) : static_cast<float>(p[row]);
    }
    return f;
  }

  // Sign-extends the low 8 bits.
  static int32_t low_digit(int32_t q) { return static_cast<int32_t>(static_cast<uint32_t>(q) << 24) >> 24; }

  static void quantize_block(const float* x, ActBlock& act) {
    uint32_t amax_bits = 0;
    for (int i = 0; i < 32; ++i) {
      const uint32_t bits = V::to_bits(x[i]) & 0x7fffffffU;
      amax_bits = bits > amax_bits ? bits : amax_bits;
    }
    act = ActBlock{};
    if (amax_bits >= 0x7f800000U) {
      act.dx = V::from_bits(0x7fc00000U);
      act.xs = act.dx;
      return;
    }
    const float amax = V::from_bits(amax_bits);
    if (amax < kActTiny) return;
    constexpr float kLimit = static_cast<float>(kActLimit);
    const float inverse = kLimit / amax;
    act.dx = amax / kLimit;
    for (int i = 0; i < 32; ++i) {
      const int32_t q = static_cast<int32_t>(__builtin_lrintf(x[i] * inverse));
      const int32_t c = low_digit(q);
      const int32_t ab = (q - c) >> 8;
      const int32_t b = low_digit(ab);
      const int32_t a = (ab - b) >> 8;
      act.a[i] = static_cast<int8_t>(a);
      act.b[i] = static_cast<int8_t>(b);
      act.c[i] = static_cast<int8_t>(c);
      act.sum += q;
      act.sum_a += a;
      act.sum_bc += 256 * b + c;
      if (i == 15) act.sum_first = act.sum;
    }
    act.xs = act.dx * static_cast<float>(act.sum);
  }
};

using PortableMicro = Micro<simd::Portable, PortableDot>;

}  // namespace

const Ops kPortableOps = {&PortableMicro::act_bytes, &PortableMicro::scratch_bytes, &PortableMicro::quantize,
                          &PortableMicro::multiply, 128};

}  // namespace tessera::gemm
