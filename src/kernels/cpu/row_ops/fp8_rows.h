// Rows of FP8 caches (rule E6 of contract.md).
#pragma once

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::row_ops {

// bf16 rows x to the slots of a cache of pages, as tessera_kv_to_fp8 says it; all arguments are sound.
struct Fp8RowsTask {
  tessera_kv_format format;
  int64_t rows;
  const uint16_t* x;
  int64_t stride_x;
  int32_t smallest_scale;
  const int64_t* slots;  // or NULL
  uint8_t* cache;
  int64_t stride_page;
  int32_t page_size;
};

void run_fp8_rows(const Fp8RowsTask& task);

}  // namespace tessera::row_ops
