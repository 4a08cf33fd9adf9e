// Packing of GGUF rows into row groups, and reading one row back as fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm/weight_types.h"

namespace tessera::gemm {

// Packs rows [row_begin, row_end) of an (n, k) matrix: `rows` is row row_begin in GGUF layout, `packed` the whole
// packed matrix. row_begin is a multiple of 16 and row_end too, or n; a last partial group is padded with zero rows.
void pack_rows(const WeightTraits& traits, int64_t k, int64_t row_begin, int64_t row_end, const uint8_t* rows,
               uint8_t* packed);

// Row `row` as fp32 by the formula of the contract ("Rows of W as fp32"): dst[k].
void unpack_row(const WeightTraits& traits, int64_t k, const uint8_t* packed, int64_t row, float* dst);

}  // namespace tessera::gemm
