// Descriptors of the tensor copy engine for several panels of a tensor at a time; see tma_map.h.
#pragma once

#include "kernels/sm90/tma_map.h"

namespace tessera::sm90 {

// The map whose boxes are `box_panels` panels of (box_tokens, 64 dims), one after another; dimensions are (dim, token,
// panel, head, batch). For tensors of whole panels; those behind the last one are zeros.
Result<CUtensorMap> make_panels_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens,
                                    int box_panels);

}  // namespace tessera::sm90
