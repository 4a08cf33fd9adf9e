// What the rows of the sm90 kernels ask of an array's layout: the copy engine reads rows of whole 16-byte pieces.
#pragma once

#include <cstdint>

#include "kernels/sm90/tma_map.h"
#include "tessera/tessera.h"

namespace tessera {

inline sm90::TensorView view_of(const tessera_tensor& t, int64_t batch, int64_t tokens, int64_t heads, int64_t dims) {
  return {t.data, batch, tokens, heads, dims, t.stride_batch, t.stride_token, t.stride_head};
}

// Why the engine cannot read or write the array, or null. A dimension of one element is never stepped over, so its
// stride may be anything.
const char* layout_limit(const sm90::TensorView& tensor, int64_t element_bytes);

}  // namespace tessera
