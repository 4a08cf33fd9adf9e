// The checks of segments whose rows are FP8 (R11), by shapes, strides and addresses.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Types, head dims and the tensors k and v of segment i, whose format is one of the FP8 ones. `batch` and `tokens` are
// the extents of the first two dimensions, pages and slots of a page where the segment is paged.
Status check_fp8_segment(const tessera_fmha_params& params, int32_t i, int64_t batch, int64_t tokens);

}  // namespace tessera
