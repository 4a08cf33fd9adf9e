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

// The map whose boxes are (box_tokens, 64 dims) of one head, swizzled as smem_tile.cuh describes. `name` is used in
// errors. kInvalidArgument if an address or stride is no multiple of 16 bytes or a size is out of the engine's range;
// kDevice if the driver has no encoder.
Result<CUtensorMap> make_panel_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens);

// A map whose boxes end, or begin, with any row: its dimensions are (dim, row, sum, head, batch), the second one has
// `box_tokens` rows, and coordinates (row, sum) of a box lie at token sum + row - box_tokens. So rows that have to be
// zeros (or are not to be written) are put out of bounds by choosing `row`, whatever lies behind them in memory: see
// clip_box(). tensor.tokens only says whether there is more than one; packed tensors have batch = 1.
Result<CUtensorMap> make_clipped_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens);

}  // namespace tessera::sm90
