// The loops of one (rows x row groups) task, as templates over a vector layer V (kernels/cpu/simd) and an integer layer
// D. Included by one translation unit per instruction set; nothing here may be shared by the linker across them.
//
// D provides
//   kMaxRows                         rows of the largest tile, a power of two <= 4
//   Weights                          16 rows x 32 k of stored unsigned quants, ready for dot()
//   unpack<bits>(sub-unit)           -> Weights
//   dot<bits, g0, g1, rows>(weights, act, sums): sums[digit * rows + r] += the sum over k groups g0..g1 of quant *
//                                    digit (0: a, 1: b, 2: c) of act[r], lane = row of the group
//   load_bytes<signed>(p)            -> V::F, 16 bytes widened
//   quantize_block(x, act)           M1 for 32 elements
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/gemm/activation.h"
#include "kernels/cpu/gemm/ops.h"
#include "kernels/cpu/gemm/unit_map.h"

namespace tessera::gemm {
namespace {

constexpr int log2_of(int power) {
  int n = 0;
  while ((1 << n) < power) ++n;
  return n;
}

template <class V, class D>
struct Micro {
  using F = typename V::F;
  using I = typename V::I;

  // How far ahead of the weights in use the next ones are asked for. Measured 4 KiB to 8 KiB best, 1 KiB too late.
  static constexpr int kPrefetchBytes = 8192;

  template <int kLog2>
  static I scaled_sum(int32_t sum) {
    return V::template shift_left<kLog2>(V::set1_int(sum));
  }

  // The sum over the k of step kHalf, from the block's sum and that of its first half.
  template <int kHalves, int kHalf>
  static int32_t part_of(int32_t sum, int32_t first) {
    if (kHalves == 1) return sum;
    return kHalf == 0 ? first : sum - first;
  }

  // V of M2 for kRows rows over the k groups of step kHalf: RN of the exact integer sum of w * q.
  template <WeightType kType, int kRows, int kHalf>
  static __attribute__((always_inline)) inline void integer_dots(const typename D::Weights& weights,
                                                                 const ActBlock* act, F* values) {
    constexpr UnitMap kMap = unit_map(kType);
    constexpr int kG0 = kMap.halves == 2 ? 4 * kHalf : 0;
    constexpr int kG1 = kMap.halves == 2 ? kG0 + 4 : 8;
    constexpr int kShift = log2_of(kMap.offset);
    I sums[3 * kRows];
#pragma GCC unroll 24
    for (int r = 0; r < 3 * kRows; ++r) sums[r] = V::set1_int(0);
    D::template dot<kMap.bits, kG0, kG1, kRows>(weights, act, sums);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const I a = sums[r];
      const I b = sums[kRows + r];
      const I c = sums[2 * kRows + r];
      if constexpr (kMap.bits < 8) {
        // |I| < 2^31 (README.md, "Why L"), so it is built modulo 2^32 and converted once.
        const I ab = V::add_int(V::template shift_left<8>(a), b);
        const I all = V::add_int(V::template shift_left<8>(ab), c);
        values[r] = V::to_float(without_offset<kMap.halves, kHalf, kShift>(all, act[r]));
      } else {
        const I low = V::sub_int(V::add_int(V::template shift_left<8>(b), c), scaled_sum<kShift>(act[r].sum_bc));
        values[r] = carried_value(V::sub_int(a, scaled_sum<kShift>(act[r].sum_a)), low);
      }
    }
  }

  // RN(65536 high + low): the upper 16 bits of low are carried into high, so that both parts convert exactly and the
  // fma rounds once.
  static F carried_value(I high, I low) {
    const I carried = V::add_int(high, V::template shift_right<16>(low));
    const I rest = V::and_int(low, V::set1_int(0xffff));
    return V::fma(V::to_float(carried), V::set1(65536.0F), V::to_float(rest));
  }

  // The stored quants have the offset in them: subtract 2^kShift * sum of q.
  template <int kHalves, int kHalf, int kShift>
  static I without_offset(I dot, const ActBlock& act) {
    if constexpr (kShift == 0) return dot;
    return V::sub_int(dot, scaled_sum<kShift>(part_of<kHalves, kHalf>(act.sum, act.sum_first)));
  }

  // ds of M3 for step `step` of the unit.
  template <WeightType kType>
  static F scale_of(const uint8_t* unit, int step) {
    constexpr UnitMap kMap = unit_map(kType);
    const F d = V::load_f16(reinterpret_cast<const uint16_t*>(unit + kMap.d_at));
    if constexpr (!kMap.k_scales) return d;
    return V::mul(d, D::template load_bytes<!kMap.affine>(unit + kMap.scales_at + 16 * step));
  }

  // mn of M3; affine types only.
  template <WeightType kType>
  static F minimum_of(const uint8_t* unit, int sub) {
    constexpr UnitMap kMap = unit_map(kType);
    const F m = V::load_f16(reinterpret_cast<const uint16_t*>(unit + kMap.m_at));
    if constexpr (!kMap.k_scales) return m;
    return V::mul(V::mul(m, V::set1(-1.0F)), D::template load_bytes<false>(unit + kMap.mins_at + 16 * sub));
  }

  // M5: bias, NaN in one spelling, and the rows that exist.
  static void finish(const TileTask& task, int64_t group, int64_t row, F y) {
    const int64_t first = group * kGroupRows;
    const int count = task.n - first < kGroupRows ? static_cast<int>(task.n - first) : static_cast<int>(kGroupRows);
    if (task.bias != nullptr) y = V::add(y, V::load_partial(task.bias + first, count));
    y = V::select(V::not_equal(y, y), V::as_float(V::set1_int(0x7fc00000)), y);
    float* out = task.y + row * task.stride_y + first;
    if (count == kGroupRows) {
      V::store(out, y);
    } else {
      V::store_partial(out, y, count);
    }
  }

  // kRows rows times one row group, quantised weights.
  template <WeightType kType, int kRows>
  static void quantized_tile(const TileTask& task, int64_t group, int64_t row) {
    constexpr UnitMap kMap = unit_map(kType);
    constexpr int kUnitK = 32 * kMap.subs;
    constexpr int kUnitBytes = kMap.d_at + (kMap.affine ? 64 : 32);
    const int64_t blocks = task.k / kBlockK;
    const PanelView panel = panel_of(row, task.slab_rows, blocks);
    const ActBlock* act = reinterpret_cast<const ActBlock*>(task.acts) + panel.offset + (row - panel.first_row);
    const size_t bytes = static_cast<size_t>(task.k / kUnitK) * kUnitBytes;
    const uint8_t* unit = task.packed + static_cast<size_t>(group) * bytes;
    const uint8_t* last = task.packed + static_cast<size_t>(task.group_end) * bytes - kUnitBytes / kMap.subs;
    const bool first_tile = row == task.row_begin;
    F total[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) total[r] = V::zero();
    for (int64_t done = 0; done < task.k; done += kChunkK) {
      const int64_t chunk_k = task.k - done < kChunkK ? task.k - done : kChunkK;
      F acc[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r] = V::zero();
      for (int64_t u = 0; u < chunk_k / kUnitK; ++u, unit += kUnitBytes) {
#pragma GCC unroll 1
        for (int sub = 0; sub < kMap.subs; ++sub, act += panel.rows) {
          if (first_tile) prefetch<kUnitBytes / kMap.subs>(unit + sub * (kUnitBytes / kMap.subs), last);
          const typename D::Weights weights = D::template unpack<kMap.bits>(unit + sub * kMap.sub_bytes);
          step<kType, kRows, 0>(weights, scale_of<kType>(unit, sub * kMap.halves), unit, sub, act, acc);
          if constexpr (kMap.halves == 2) {
            step<kType, kRows, 1>(weights, scale_of<kType>(unit, sub * 2 + 1), unit, sub, act, acc);
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) total[r] = done == 0 ? acc[r] : V::add(total[r], acc[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) finish(task, group, row + r, total[r]);
  }

  // M2 and M3 of one step for kRows rows.
  template <WeightType kType, int kRows, int kHalf>
  static __attribute__((always_inline)) inline void step(const typename D::Weights& weights, F scale,
                                                         const uint8_t* unit, int sub, const ActBlock* act, F* acc) {
    constexpr UnitMap kMap = unit_map(kType);
    F values[kRows];
    integer_dots<kType, kRows, kHalf>(weights, act, values);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[r] = V::fma(scale, V::mul(V::set1(act[r].dx), values[r]), acc[r]);
    if constexpr (kMap.affine) {
      const F minimum = minimum_of<kType>(unit, sub);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r] = V::fma(minimum, V::set1(act[r].xs), acc[r]);
    }
  }

  template <WeightType kType>
  static F load_plain(const uint8_t* p) {
    if constexpr (kType == WeightType::kF32) return V::load(reinterpret_cast<const float*>(p));
    if constexpr (kType == WeightType::kF16) return V::load_f16(reinterpret_cast<const uint16_t*>(p));
    if constexpr (kType == WeightType::kBF16) return V::load_bf16(reinterpret_cast<const uint16_t*>(p));
  }

  // kRows rows times kGroups row groups, unquantised weights: one fma chain per row and group.
  template <WeightType kType, int kRows, int kGroups>
  static void plain_tile(const TileTask& task, int64_t group, int64_t row) {
    constexpr int kStep = kType == WeightType::kF32 ? 64 : 32;
    const size_t bytes = static_cast<size_t>(task.k) * kStep;
    const uint8_t* weights = task.packed + static_cast<size_t>(group) * bytes;
    const float* x = task.x + row * task.stride_x;
    F total[kRows][kGroups];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) total[r][g] = V::zero();
    }
    for (int64_t done = 0; done < task.k; done += kChunkK) {
      const int64_t end = task.k - done < kChunkK ? task.k : done + kChunkK;
      F acc[kRows][kGroups];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int g = 0; g < kGroups; ++g) acc[r][g] = V::zero();
      }
      for (int64_t i = done; i < end; ++i) {
        F w[kGroups];
#pragma GCC unroll 8
        for (int g = 0; g < kGroups; ++g)
          w[g] = load_plain<kType>(weights + g * bytes + static_cast<size_t>(i) * kStep);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const F broadcast = V::set1(x[r * task.stride_x + i]);
#pragma GCC unroll 8
          for (int g = 0; g < kGroups; ++g) acc[r][g] = V::fma(w[g], broadcast, acc[r][g]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int g = 0; g < kGroups; ++g) total[r][g] = done == 0 ? acc[r][g] : V::add(total[r][g], acc[r][g]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) finish(task, group + g, row + r, total[r][g]);
    }
  }

  // With few rows the time is the time to read the weights, and the hardware prefetchers stop at pages. Stays inside
  // the task: what follows belongs to another thread.
  template <int kBytes>
  static __attribute__((always_inline)) inline void prefetch(const uint8_t* p, const uint8_t* last) {
    const uint8_t* ahead = p + kPrefetchBytes < last ? p + kPrefetchBytes : last;
#pragma GCC unroll 16
    for (int at = 0; at < kBytes; at += 64) __builtin_prefetch(ahead + at);
  }

  // Rows from `row` on, kRows at a time, then the rest with half as many.
  template <WeightType kType, int kRows>
  static void quantized_rows(const TileTask& task, int64_t group, int64_t row) {
    for (; row + kRows <= task.row_end; row += kRows) quantized_tile<kType, kRows>(task, group, row);
    if constexpr (kRows > 1) quantized_rows<kType, kRows / 2>(task, group, row);
  }

  template <WeightType kType>
  static void quantized(const TileTask& task) {
    for (int64_t group = task.group_begin; group < task.group_end; ++group) {
      quantized_rows<kType, D::kMaxRows>(task, group, task.row_begin);
    }
  }

  // All rows of the task times kGroups groups.
  template <WeightType kType, int kGroups>
  static void plain_rows(const TileTask& task, int64_t group) {
    constexpr int kRows = D::kMaxRows < 4 ? D::kMaxRows : 4;
    int64_t row = task.row_begin;
    for (; row + kRows <= task.row_end; row += kRows) plain_tile<kType, kRows, kGroups>(task, group, row);
    if constexpr (kRows > 1) {
      for (; row < task.row_end; ++row) plain_tile<kType, 1, kGroups>(task, group, row);
    }
  }

  template <WeightType kType>
  static void plain(const TileTask& task) {
    constexpr int kGroups = V::kRegisters >= 32 ? 4 : (D::kMaxRows > 1 ? 2 : 1);
    int64_t group = task.group_begin;
    for (; group + kGroups <= task.group_end; group += kGroups) plain_rows<kType, kGroups>(task, group);
    for (; group < task.group_end; ++group) plain_rows<kType, 1>(task, group);
  }

  static void multiply(const TileTask& task) {
    switch (task.type) {
      case WeightType::kF32:
        return plain<WeightType::kF32>(task);
      case WeightType::kF16:
        return plain<WeightType::kF16>(task);
      case WeightType::kBF16:
        return plain<WeightType::kBF16>(task);
      case WeightType::kQ4_0:
        return quantized<WeightType::kQ4_0>(task);
      case WeightType::kQ4_1:
        return quantized<WeightType::kQ4_1>(task);
      case WeightType::kQ5_0:
        return quantized<WeightType::kQ5_0>(task);
      case WeightType::kQ5_1:
        return quantized<WeightType::kQ5_1>(task);
      case WeightType::kQ8_0:
        return quantized<WeightType::kQ8_0>(task);
      case WeightType::kQ4_K:
        return quantized<WeightType::kQ4_K>(task);
      case WeightType::kQ5_K:
        return quantized<WeightType::kQ5_K>(task);
      case WeightType::kQ6_K:
        return quantized<WeightType::kQ6_K>(task);
    }
  }

  static size_t act_bytes(uint32_t /*types*/, int64_t rows, int64_t k) {
    return static_cast<size_t>(rows) * static_cast<size_t>(act_blocks(k)) * sizeof(ActBlock);
  }

  static size_t scratch_bytes(uint32_t /*types*/, int64_t /*rows*/) {
    return 0;
  }

  // M1 for the rows of the task; k is a multiple of 32 for every quantised type.
  static void quantize(const QuantizeTask& task) {
    const int64_t blocks = act_blocks(task.k);
    for (int64_t row = task.row_begin; row < task.row_end; ++row) {
      const PanelView panel = panel_of(row, task.slab_rows, blocks);
      ActBlock* act = reinterpret_cast<ActBlock*>(task.acts) + panel.offset + (row - panel.first_row);
      const float* x = task.x + row * task.stride_x;
      for (int64_t block = 0; block < blocks; ++block, act += panel.rows) D::quantize_block(x + block * kBlockK, *act);
    }
  }
};

}  // namespace
}  // namespace tessera::gemm
