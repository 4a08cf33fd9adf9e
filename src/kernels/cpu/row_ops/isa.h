// The implementations, one translation unit each (row_ops.cpp chooses).
#pragma once

#include "kernels/cpu/row_ops/row_ops.h"

namespace tessera::row_ops {

bool portable_available();
bool avx2_available();
bool avx512_available();

extern const RowOps kPortableRowOps;
extern const RowOps kAvx2RowOps;
extern const RowOps kAvx512RowOps;

}  // namespace tessera::row_ops
