// The optional scan of weight values (`--check-tensors`): format validity says nothing about the numbers inside.
#pragma once

#include <string_view>

#include "base/status.h"
#include "engine/gguf/gguf.h"

namespace tessera {

// Reads all of `tensor` and fails with kBadFile, naming `file`, tensor, position and value, at the first element that
// is not finite or, in a tensor of two or more dimensions, that overflows when rounded to f16 (magnitude >= 65520): the
// engine multiplies matrices by their f16 values, while vectors (norms, biases, frequency factors) stay f32.
Status check_tensor_values(const TensorInfo& tensor, std::string_view file);

}  // namespace tessera
