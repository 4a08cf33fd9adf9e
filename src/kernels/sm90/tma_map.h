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

// Maps whose boxes end, or begin, with any row, whatever lies behind or before it in memory: rows that have to be
// zeros, or are not to be written, are put out of bounds. Dimensions are (dim, row, sum, head, batch), the second one
// has `box_tokens` rows, and the box of 64 dims at (row, sum) holds token
//   kEnd:   sum + row - box_tokens, and may begin with any row of 0 .. box_tokens - 1 (rows behind are zeros)
//   kBegin: sum + row, and may begin before row 0 or wholly out of bounds.
// Two maps, because for a box that begins out of bounds the copy engine translates the address of the map's own first
// element, and kEnd's lies before the tensor, where nothing may be mapped (seen on the H200: an illegal access).
// tensor.tokens only says whether there is more than one; packed tensors have batch = 1. See clip_box().
enum class Clip { kEnd, kBegin };
Result<CUtensorMap> make_clipped_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens, Clip clip);

}  // namespace tessera::sm90
