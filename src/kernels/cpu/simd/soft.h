// soft_exp2 and soft_tanh of the contract (src/contract/exp2.h, tanh.h) for 16 lanes: the same operations on the same
// coefficients, so every lane has the bits of the scalar function (tests/fmha/simd_test.cpp).
#pragma once

#include <stdint.h>

#include "base/host_device.h"
#include "contract/exp2.h"
#include "contract/tanh.h"

namespace tessera::simd {
namespace {

template <class V>
inline typename V::F set_bits(uint32_t bits) {
  return V::as_float(V::set1_int(static_cast<int32_t>(bits)));
}

// y <= 127; +0 below -126.
template <class V>
inline typename V::F soft_exp2(typename V::F y) {
  const auto magic = V::set1(kRoundMagic);
  const auto t = V::add(y, magic);
  const auto f = V::sub(y, V::sub(t, magic));
  auto h = set_bits<V>(0x3920fde2U);
  h = V::fma(h, f, set_bits<V>(0x3aaf9f29U));
  h = V::fma(h, f, set_bits<V>(0x3c1d96a6U));
  h = V::fma(h, f, set_bits<V>(0x3d635774U));
  h = V::fma(h, f, set_bits<V>(0x3e75fdeeU));
  h = V::fma(h, f, set_bits<V>(0x3f317218U));
  h = V::fma(h, f, V::set1(1.0F));
  const auto scaled = V::as_float(V::add_int(V::as_int(h), V::template shift_left<23>(V::as_int(t))));
  return V::select(V::less(y, V::set1(kExp2Floor)), V::zero(), scaled);
}

template <class V>
inline typename V::F soft_tanh(typename V::F x) {
  const auto a = V::abs(x);
  // a <= 0.625
  const auto z = V::mul(a, a);
  auto h = set_bits<V>(0xbbbaf0e3U);
  h = V::fma(h, z, set_bits<V>(0x3ca9134dU));
  h = V::fma(h, z, set_bits<V>(0xbd5c1e2dU));
  h = V::fma(h, z, set_bits<V>(0x3e088393U));
  h = V::fma(h, z, set_bits<V>(0xbeaaaa99U));
  const auto small = V::fma(V::mul(a, z), h, a);
  // 0.625 < a < 10; beyond 10 the value is not used, and its exponent is kept in soft_exp2's domain
  const auto one = V::set1(1.0F);
  const auto ten = V::set1(10.0F);
  const auto bounded = V::select(V::less(a, ten), a, ten);
  const auto power = soft_exp2<V>(V::mul(bounded, V::set1(2.0F * kLog2E)));
  const auto large = V::sub(one, V::div(V::set1(2.0F), V::add(one, power)));
  auto t = V::select(V::less(V::set1(0.625F), a), large, small);
  t = V::select(V::less(a, ten), t, one);
  return V::copy_sign(t, x);
}

}  // namespace
}  // namespace tessera::simd
