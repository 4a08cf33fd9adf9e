// R12: the last dims of a finished row of O, turned back by a table's angles before they are rounded to the dtype.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "tessera/tessera.h"

namespace tessera {

// The angles of one row; cos is null where nothing is to be done.
struct OutputRopeRow {
  const float* cos;  // [rotary_dim / 2]
  const float* sin;
  int32_t rotary_dim;
};

// `token` as tessera_output_rope numbers query tokens.
inline OutputRopeRow output_rope_row(const tessera_output_rope& rope, int64_t token) {
  if (rope.cos_table == nullptr) return {};
  const int64_t at = int64_t{rope.positions[token]} * (rope.rotary_dim / 2);
  return {rope.cos_table + at, rope.sin_table + at, rope.rotary_dim};
}

// A pair of neighbours by the angle with this cosine and sine.
TESSERA_HD void turn_back(float& x0, float& x1, float c, float s) {
  const float y0 = fma_rn(x0, c, mul_rn(x1, s));
  x1 = fma_rn(x1, c, -mul_rn(x0, s));
  x0 = y0;
}

}  // namespace tessera
