// SimdTable of a vector type; included by simd_table_<isa>.cpp only.
#pragma once

#include "fmha/simd_table.h"
#include "kernels/cpu/simd/soft.h"

namespace tessera::test {
namespace {

template <class V>
struct TableOf {
  static void soft_exp2(const float* x, float* y) { V::store(y, simd::soft_exp2<V>(V::load(x))); }
  static void soft_tanh(const float* x, float* y) { V::store(y, simd::soft_tanh<V>(V::load(x))); }
  static void fold_halves(const float* x, float* y) { V::store(y, V::fold_halves(V::load(x))); }
  static void copy_sign(const float* magnitude, const float* sign, float* y) {
    V::store(y, V::copy_sign(V::load(magnitude), V::load(sign)));
  }
  static void fma_where(uint32_t mask, const float* a, const float* b, const float* c, float* y) {
    V::store(y, V::fma_where(V::mask(mask), V::load(a), V::load(b), V::load(c)));
  }
  static void select(uint32_t mask, const float* a, const float* b, float* y) {
    V::store(y, V::select(V::mask(mask), V::load(a), V::load(b)));
  }
  static void to_float(const int32_t* x, float* y) {
    float bits[16];
    __builtin_memcpy(bits, x, sizeof(bits));
    V::store(y, V::to_float(V::as_int(V::load(bits))));
  }
  static uint32_t less(const float* a, const float* b) { return V::bits(V::less(V::load(a), V::load(b))); }
  static uint32_t not_equal(const float* a, const float* b) { return V::bits(V::not_equal(V::load(a), V::load(b))); }
  static void reduce_tree16(const float* rows, float* y) {
    typename V::F r[16];
    for (int i = 0; i < 16; ++i) r[i] = V::load(rows + i * 16);
    V::store(y, V::reduce_tree16(r));
  }
  static void transpose16(const float* rows, float* transposed) {
    typename V::F r[16];
    for (int i = 0; i < 16; ++i) r[i] = V::load(rows + i * 16);
    V::transpose16(r);
    for (int i = 0; i < 16; ++i) V::store(transposed + i * 16, r[i]);
  }
  static float reduce_tree(const float* x) { return V::reduce_tree(V::load(x)); }
  static float reduce_max(const float* x) { return V::reduce_max(V::load(x)); }
  static void widen_f16(const uint16_t* x, int n, float* y) {
    V::store(y, n == 16 ? V::load_f16(x) : V::load_f16_partial(x, n));
  }
  static void widen_bf16(const uint16_t* x, int n, float* y) {
    V::store(y, n == 16 ? V::load_bf16(x) : V::load_bf16_partial(x, n));
  }
  static void copy_f32(const float* x, int n, float* y) { V::store_partial(y, V::load_partial(x, n), n); }
  static void narrow_f16(const float* x, int n, uint16_t* y) {
    n == 16 ? V::store_f16(y, V::load(x)) : V::store_f16_partial(y, V::load(x), n);
  }
  static void narrow_bf16(const float* x, int n, uint16_t* y) {
    n == 16 ? V::store_bf16(y, V::load(x)) : V::store_bf16_partial(y, V::load(x), n);
  }

  static constexpr SimdTable table() {
    return {soft_exp2,  soft_tanh, fold_halves, copy_sign,     fma_where,   select,
            to_float,   less,      not_equal,   reduce_tree16, transpose16, reduce_tree,
            reduce_max, widen_f16, widen_bf16,  copy_f32,      narrow_f16,  narrow_bf16};
  }
};

}  // namespace
}  // namespace tessera::test
