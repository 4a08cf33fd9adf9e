// The vector layer of one instruction set behind plain functions, so that a test compiled for any machine can call it.
// Each table is filled in a translation unit of its own with that set's flags.
#pragma once

#include <cstdint>

namespace tessera::test {

struct SimdTable {
  // 16 lanes in, 16 lanes out
  void (*soft_exp2)(const float* x, float* y);
  void (*soft_tanh)(const float* x, float* y);
  void (*fold_halves)(const float* x, float* y);
  void (*copy_sign)(const float* magnitude, const float* sign, float* y);
  void (*fma_where)(uint32_t mask, const float* a, const float* b, const float* c, float* y);
  void (*select)(uint32_t mask, const float* a, const float* b, float* y);
  void (*to_float)(const int32_t* x, float* y);
  uint32_t (*less)(const float* a, const float* b);
  uint32_t (*not_equal)(const float* a, const float* b);
  // (16, 16) in
  void (*reduce_tree16)(const float* rows, float* y);
  void (*transpose16)(const float* rows, float* transposed);
  // scalars out
  float (*reduce_tree)(const float* x);
  float (*reduce_max)(const float* x);
  // n elements; the widened lanes beyond n are +0
  void (*widen_f16)(const uint16_t* x, int n, float* y);
  void (*widen_bf16)(const uint16_t* x, int n, float* y);
  void (*copy_f32)(const float* x, int n, float* y);
  void (*narrow_f16)(const float* x, int n, uint16_t* y);
  void (*narrow_bf16)(const float* x, int n, uint16_t* y);
};

extern const SimdTable kPortableTable;
extern const SimdTable kAvx2Table;
extern const SimdTable kAvx512Table;

}  // namespace tessera::test
