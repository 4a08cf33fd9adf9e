// R1: S = Q K^T in 16 classes and their tree, two ways with the same bits.
//
// Packed: keys lie in the lanes, so class t of 16 keys is one register and the whole tree is vertical additions. Pays
// for transposing K, so it serves blocks of many rows.
// Direct: head dims lie in the lanes, as in memory; lane t is class t, and 16 keys share one transposed tree.
#pragma once

#include <stdint.h>

#include "kernels/cpu/fmha/elements.h"

namespace tessera::cpu_fmha {
namespace {

// ---- packed

// packed (head_dim, 16): element d of 16 keys. Keys whose bit in `present` is clear are not read and become +0.
template <class V, class E>
[[gnu::noinline]] void pack_keys(const void* const* rows, uint32_t present, int head_dim, float* packed) {
  typename V::F tile[16];
  for (int d = 0; d < head_dim; d += 16) {
    const int dims = head_dim - d < 16 ? head_dim - d : 16;
    for (int t = 0; t < 16; ++t) {
      tile[t] = V::zero();
      if ((present >> t & 1u) == 0) continue;
      const auto* source = static_cast<const typename E::Type*>(rows[t]) + d;
      tile[t] = dims == 16 ? E::load(source) : E::load_partial(source, dims);
    }
    V::transpose16(tile);
    for (int t = 0; t < dims; ++t) V::store(packed + (d + t) * 16, tile[t]);
  }
}

// One value per row, each a vector over 16 keys.
template <class V, int kRows>
struct RowVectors {
  typename V::F row[kRows];
};

template <class V, int kRows>
[[gnu::always_inline]] inline RowVectors<V, kRows> add_rows(const RowVectors<V, kRows>& a,
                                                            const RowVectors<V, kRows>& b) {
  RowVectors<V, kRows> sum;
  for (int r = 0; r < kRows; ++r) sum.row[r] = V::add(a.row[r], b.row[r]);
  return sum;
}

// kDim: the head dim, if a specialised copy exists (the compiler then unrolls the chains completely), or 0.
template <class V, int kRows, int kDim>
struct PackedScores {
  using Rows = RowVectors<V, kRows>;
  const float* q;  // (kRows, stride_q)
  int64_t stride_q;
  const float* k;  // (head_dim, 16)
  int dim;

  [[gnu::always_inline]] void step(Rows* acc, int d) const {
    const auto key = V::load(k + static_cast<int64_t>(d) * 16);
    for (int r = 0; r < kRows; ++r) acc->row[r] = V::fma(V::set1(q[r * stride_q + d]), key, acc->row[r]);
  }
  // a_t = acc_t + acc_{t+8}
  [[gnu::always_inline]] Rows level8(int t) const {
    const int head_dim = kDim != 0 ? kDim : dim;
    Rows low;
    Rows high;
    for (int r = 0; r < kRows; ++r) low.row[r] = high.row[r] = V::zero();
    int d = t;
    for (; d + 8 < head_dim; d += 16) {
      step(&low, d);
      step(&high, d + 8);
    }
    if (d < head_dim) step(&low, d);
    return add_rows<V, kRows>(low, high);
  }
  [[gnu::always_inline]] Rows level4(int t) const { return add_rows<V, kRows>(level8(t), level8(t + 4)); }
  [[gnu::always_inline]] Rows level2(int t) const { return add_rows<V, kRows>(level4(t), level4(t + 2)); }
  [[gnu::always_inline]] Rows sum() const { return add_rows<V, kRows>(level2(0), level2(1)); }
};

// scores (kRows, stride_s), 16 keys each. Never inlined: its registers are planned for the whole function.
template <class V, int kRows, int kDim>
[[gnu::noinline]] void packed_scores(const float* q, int64_t stride_q, const float* k, int head_dim, float* scores,
                                     int64_t stride_s) {
  const PackedScores<V, kRows, kDim> block{q, stride_q, k, head_dim};
  const RowVectors<V, kRows> s = block.sum();
  for (int r = 0; r < kRows; ++r) V::store(scores + r * stride_s, s.row[r]);
}

// ---- direct

// scores (kRows, stride_s) of 16 keys; products (kRows, 16, 16). Keys without a bit in `present` are not read.
// kVectors: the head dim in vectors, if Q shall stay in registers (kRows x kVectors of them), or 0.
template <class V, class E, int kRows, int kVectors>
[[gnu::noinline]] void direct_scores(const float* q, int64_t stride_q, const void* const* rows, uint32_t present,
                                     int head_dim, const Prefetch& ahead, float* products, float* scores,
                                     int64_t stride_s) {
  constexpr int kHeld = kVectors > 0 ? kVectors : 1;
  typename V::F held[kRows][kHeld];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kHeld; ++i) held[r][i] = V::load(q + r * stride_q + i * 16);
  }
  const int whole = head_dim / 16 * 16;
  const int rest = head_dim - whole;
  const auto rest_lanes = V::mask((1u << rest) - 1u);
  for (int t = 0; t < 16; ++t) {
    typename V::F acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = V::zero();
    if ((present >> t & 1u) != 0) {
      prefetch_row<V>(ahead, t);
      const auto* key = static_cast<const typename E::Type*>(rows[t]);
      if constexpr (kVectors > 0) {
        for (int i = 0; i < kVectors; ++i) {
          const auto k = E::load(key + i * 16);
          for (int r = 0; r < kRows; ++r) acc[r] = V::fma(held[r][i], k, acc[r]);
        }
      } else {
        for (int d = 0; d < whole; d += 16) {
          const auto k = E::load(key + d);
          for (int r = 0; r < kRows; ++r) acc[r] = V::fma(V::load(q + r * stride_q + d), k, acc[r]);
        }
        if (rest > 0) {  // classes beyond the last dim have one term less
          const auto k = E::load_partial(key + whole, rest);
          for (int r = 0; r < kRows; ++r) {
            acc[r] = V::fma_where(rest_lanes, V::load(q + r * stride_q + whole), k, acc[r]);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) V::store(products + r * 256 + t * 16, acc[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    typename V::F lanes[16];
    for (int t = 0; t < 16; ++t) lanes[t] = V::load(products + r * 256 + t * 16);
    V::store(scores + r * stride_s, V::reduce_tree16(lanes));
  }
}

}  // namespace
}  // namespace tessera::cpu_fmha
