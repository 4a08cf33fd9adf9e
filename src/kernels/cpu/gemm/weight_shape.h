// Validation of weight matrices. Apart from weight_types.h, because that header is part of translation units that may
// hold no inline function of the standard library (simd/portable.h, one-definition rule).
#pragma once

#include "base/status.h"
#include "kernels/cpu/gemm/weight_types.h"

namespace tessera::gemm {

// Checks the type and the shape of an (n, k) matrix and returns its traits.
Result<const WeightTraits*> check_weight_shape(int32_t type, int64_t n, int64_t k);

}  // namespace tessera::gemm
