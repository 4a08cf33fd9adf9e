// Quantised activations (rule M1): the record that the integer kernels read, and where a row's records lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "kernels/cpu/gemm/weight_types.h"

namespace tessera::gemm {

inline constexpr int32_t kActLimit = 2097151;  // L of M1: 2^21 - 1
inline constexpr float kActTiny = 0x1p-100F;   // blocks whose amax is below count as zero (M1)

// One row, 32 consecutive k: q = 65536 a + 256 b + c with signed digits, |a| <= 32. The sums let kernels multiply the
// stored unsigned weights and subtract offset * sum, and give M3's minimum term.
struct alignas(64) ActBlock {
  int8_t a[32];
  int8_t b[32];
  int8_t c[32];
  float dx;           // M1's scale, NaN if the block held NaN or infinity
  float xs;           // RN(dx * RN(X)) of M3
  int32_t sum;        // X of M2: sum of q
  int32_t sum_first;  // the same over the first 16 k
  int32_t sum_a;      // sum of a
  int32_t sum_bc;     // sum of 256 b + c
};
static_assert(sizeof(ActBlock) == 128);

// The 32 digits number `digit` (0: a, 1: b, 2: c).
TESSERA_HD const int8_t* digits_of(const ActBlock& act, int digit) {
  return reinterpret_cast<const int8_t*>(&act) + 32 * digit;
}

TESSERA_HD constexpr int64_t act_blocks(int64_t k) {
  return (k + kBlockK - 1) / kBlockK;
}

// Records lie in panels of 16 rows (the last one has fewer): [panel][block][row of the panel], so that one pass over
// the blocks of a panel is one pass over memory.
inline constexpr int64_t kPanelRows = 16;

struct PanelView {
  int64_t first_row;
  int64_t rows;    // 1..16; records of consecutive blocks of a row are this far apart
  int64_t offset;  // in records from the start of the slab
};

TESSERA_HD constexpr PanelView panel_of(int64_t row, int64_t slab_rows, int64_t blocks) {
  const int64_t first = row / kPanelRows * kPanelRows;
  const int64_t rows = slab_rows - first < kPanelRows ? slab_rows - first : kPanelRows;
  return {first, rows, first * blocks};
}

}  // namespace tessera::gemm
