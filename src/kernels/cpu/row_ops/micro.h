// The row loops as templates over a vector layer V (kernels/cpu/simd) and P, which adds
//   swap_pairs(F)         lanes 2i and 2i + 1 exchanged
//   duplicate8(p)         p[0], p[0], p[1], p[1], .. p[7], p[7]
// Included by one translation unit per instruction set (see simd/portable.h on the one-definition rule).
#pragma once

#include <stdint.h>

#include "base/host_device.h"
#include "kernels/cpu/row_ops/row_ops.h"
#include "kernels/cpu/simd/soft.h"

namespace tessera::row_ops {
namespace {

template <class V, class P>
struct RowMicro {
  using F = typename V::F;

  static int lanes_left(int64_t left) { return left < 16 ? static_cast<int>(left) : 16; }

  // E1. Lane t of `squares` is class t; lanes past the end add +0 * +0, which changes nothing.
  static void rms_norm(const RmsNormTask& task, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = task.x + row * task.stride_x;
      float* y = task.y + row * task.stride_y;
      F squares = V::zero();
      int64_t i = 0;
      for (; i + 16 <= task.dim; i += 16) {
        const F v = V::load(x + i);
        squares = V::fma(v, v, squares);
      }
      if (i < task.dim) {
        const F v = V::load_partial(x + i, lanes_left(task.dim - i));
        squares = V::fma(v, v, squares);
      }
      const float mean = V::reduce_tree(squares) / static_cast<float>(task.dim);
      const F scale = V::set1(1.0F / __builtin_sqrtf(mean + task.eps));
      for (i = 0; i + 16 <= task.dim; i += 16) {
        V::store(y + i, V::mul(V::mul(V::load(x + i), scale), V::load(task.weight + i)));
      }
      if (i < task.dim) {
        const int n = lanes_left(task.dim - i);
        V::store_partial(y + i, V::mul(V::mul(V::load_partial(x + i, n), scale), V::load_partial(task.weight + i, n)),
                         n);
      }
    }
  }

  // E2.
  static F swiglu16(F gate, F up) {
    const F top = V::set1(126.0F);
    const F raw = V::mul(gate, V::set1(-kLog2E));
    const F z = V::select(V::less(raw, top), raw, top);
    const F silu = V::div(gate, V::add(V::set1(1.0F), simd::soft_exp2<V>(z)));
    return V::mul(silu, up);
  }

  static void swiglu(const SwigluTask& task, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = task.gate + row * task.stride_gate;
      const float* up = task.up + row * task.stride_up;
      float* y = task.y + row * task.stride_y;
      int64_t i = 0;
      for (; i + 16 <= task.dim; i += 16) V::store(y + i, swiglu16(V::load(gate + i), V::load(up + i)));
      if (i < task.dim) {
        const int n = lanes_left(task.dim - i);
        V::store_partial(y + i, swiglu16(V::load_partial(gate + i, n), V::load_partial(up + i, n)), n);
      }
    }
  }

  // E3 for one pair, for what is left of a vector.
  static void rotate_pair(float* x0, float* x1, float c, float s) {
    const float first = *x0;
    const float second = *x1;
    *x0 = __builtin_fmaf(first, c, -(second * s));
    *x1 = __builtin_fmaf(second, c, first * s);
  }

  static void rotate_halves(float* x, const float* cos_row, const float* sin_row, int32_t half) {
    int32_t i = 0;
    const F minus = V::set1(-1.0F);
    for (; i + 16 <= half; i += 16) {
      const F first = V::load(x + i);
      const F second = V::load(x + half + i);
      const F c = V::load(cos_row + i);
      const F s = V::load(sin_row + i);
      V::store(x + i, V::fma(first, c, V::mul(V::mul(second, s), minus)));
      V::store(x + half + i, V::fma(second, c, V::mul(first, s)));
    }
    for (; i < half; ++i) rotate_pair(x + i, x + half + i, cos_row[i], sin_row[i]);
  }

  // 8 pairs per vector; `signs` is -1 in even lanes: both products of E3 in one multiplication, the sign exact.
  static void rotate_interleaved(float* x, const float* cos_row, const float* sin_row, int32_t half) {
    static constexpr float kSigns[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    const F signs = V::load(kSigns);
    int32_t i = 0;
    for (; i + 8 <= half; i += 8) {
      const F v = V::load(x + 2 * i);
      const F crossed = V::mul(V::mul(P::swap_pairs(v), P::duplicate8(sin_row + i)), signs);
      V::store(x + 2 * i, V::fma(v, P::duplicate8(cos_row + i), crossed));
    }
    for (; i < half; ++i) rotate_pair(x + 2 * i, x + 2 * i + 1, cos_row[i], sin_row[i]);
  }

  static void rope(const RopeTask& task, int64_t begin, int64_t end) {
    const int32_t half = task.rotary_dim / 2;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t entry = int64_t{task.positions[row]} * half;
      for (int32_t head = 0; head < task.num_heads; ++head) {
        float* x = task.x + row * task.stride_row + head * task.stride_head;
        if (task.interleaved) {
          rotate_interleaved(x, task.cos_table + entry, task.sin_table + entry, half);
        } else {
          rotate_halves(x, task.cos_table + entry, task.sin_table + entry, half);
        }
      }
    }
  }
};

}  // namespace
}  // namespace tessera::row_ops
