// FP8 rows for test problems: what they hold (a hash of the logical place, as everywhere in FmhaProblem), what that is
// worth by R11, and where the bytes go. Written from the public header; shares nothing with contract/fp8_rows.h.
#pragma once

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::test {

// Dims of a row that are e4m3 codes; the rest is bf16 as in dense rows.
int64_t fp8_coded_dims(tessera_kv_format format);

// Value of coded dim `dim` of a row whose content is `row_hash`.
float fp8_value(tessera_kv_format format, uint64_t row_hash, int64_t dim);

// Strides, in bytes, of batches (or pages) of `tokens` rows; `padding` more units of alignment after each row (V32) or
// page (V4).
tessera_tensor fp8_strides(tessera_kv_format format, int64_t tokens, int64_t padding);

// Writes the codes and scales of a row, and its bf16 values from `rest`. `page` is the start of its batch or page.
void put_fp8_row(tessera_kv_format format, uint8_t* page, int64_t tokens, const tessera_tensor& strides, int64_t token,
                 uint64_t row_hash, const uint16_t* rest);

}  // namespace tessera::test
