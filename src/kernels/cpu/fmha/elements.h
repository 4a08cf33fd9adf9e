// The element types of Q, K, V and O as memory operations of the vector layer.
#pragma once

#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera::cpu_fmha {
namespace {

template <class V>
struct F32Element {
  using Type = float;
  static typename V::F load(const Type* p) { return V::load(p); }
  static typename V::F load_partial(const Type* p, int n) { return V::load_partial(p, n); }
};

template <class V>
struct F16Element {
  using Type = uint16_t;
  static typename V::F load(const Type* p) { return V::load_f16(p); }
  static typename V::F load_partial(const Type* p, int n) { return V::load_f16_partial(p, n); }
};

template <class V>
struct Bf16Element {
  using Type = uint16_t;
  static typename V::F load(const Type* p) { return V::load_bf16(p); }
  static typename V::F load_partial(const Type* p, int n) { return V::load_bf16_partial(p, n); }
};

// Rows to ask the memory for, one for every key that is worked on: rows[t] for t < count, `bytes` of each.
struct Prefetch {
  const void* const* rows;
  int count;
  int bytes;
};

template <class V>
[[gnu::always_inline]] inline void prefetch_row(const Prefetch& ahead, int t) {
  if (t >= ahead.count) return;
  const char* row = static_cast<const char*>(ahead.rows[t]);
  for (int at = 0; at < ahead.bytes; at += 64) V::prefetch(row + at);
}

// Element `offset` of a tensor of this element type.
template <class E>
inline const typename E::Type* element_at(const tessera_tensor& tensor, int64_t offset) {
  return static_cast<const typename E::Type*>(tensor.data) + offset;
}

}  // namespace
}  // namespace tessera::cpu_fmha
