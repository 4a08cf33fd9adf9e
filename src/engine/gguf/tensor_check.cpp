#include "engine/gguf/tensor_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/gguf/dequant.h"
#include "engine/gguf/gguf_error.h"

namespace tessera {
namespace {

// The midpoint between the largest finite f16 (65504) and the next power of two; ties go to infinity there.
constexpr float kF16Overflow = 65520.0F;

// A multiple of every block length, small enough to stay in the first-level cache.
constexpr int64_t kChunk = 2048;

}  // namespace

Status check_tensor_values(const TensorInfo& tensor, std::string_view file) {
  const bool matrix = tensor.n_dims >= 2;
  std::array<float, kChunk> values;
  const int64_t n = tensor.n_elements();
  const uint64_t chunk_bytes = uint64_t{kChunk} / block_elements(tensor.type) * block_bytes(tensor.type);
  for (int64_t first = 0; first < n; first += kChunk) {
    const int64_t count = std::min(kChunk, n - first);
    const uint64_t at = static_cast<uint64_t>(first / kChunk) * chunk_bytes;
    TESSERA_RETURN_IF_ERROR(dequantize_row(tensor.type, tensor.data.data() + at, values.data(), count));
    for (int64_t i = 0; i < count; ++i) {
      const float v = values[static_cast<size_t>(i)];
      if (std::isfinite(v) && (!matrix || std::fabs(v) < kF16Overflow)) continue;
      const int64_t element = first + i;
      const uint64_t block = static_cast<uint64_t>(element) / block_elements(tensor.type);
      return gguf_error(Code::kBadFile, file, tensor.offset + block * block_bytes(tensor.type),
                        fmt::format("tensor '{}', row {}, column {}", tensor.name, element / tensor.dims[0],
                                    element % tensor.dims[0]),
                        fmt::format("{}", v), matrix ? "values that are finite in f16" : "finite values",
                        "the weights are damaged, fetch the file again");
    }
  }
  return {};
}

}  // namespace tessera
