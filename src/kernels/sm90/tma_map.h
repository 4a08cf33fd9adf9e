// Descriptors of the tensor copy engine for attention tensors (batch, token, head, dim) of 16-bit elements.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/status.h"

namespace tessera::sm90 {

// A strided tensor as the copy engine sees it: dims ordered (dim, token, head, batch), dim contiguous. Every dimension
// has its own bound, so a box that passes the end of a sequence reads zeros and never the next sequence.
struct TensorView {
  const void* data = nullptr;
  int64_t batch = 0, tokens = 0, heads = 0, dims = 0;
  int64_t stride_batch = 0, stride_token = 0, stride_head = 0;  // elements
};

// The map whose boxes are (box_tokens, box_dims) of one head; box_dims is 64, 32 or 16, and 16-byte pieces are swizzled
// within the box's row, 64 dims as smem_tile.cuh describes. `name` is used in errors. kInvalidArgument if an address or
// stride is no multiple of 16 bytes or a size is out of the engine's range; kDevice if the driver has no encoder.
Result<CUtensorMap> make_panel_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens,
                                   int box_dims = 64);

}  // namespace tessera::sm90
