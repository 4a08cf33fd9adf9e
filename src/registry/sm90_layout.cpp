#include "registry/sm90_layout.h"

#include <utility>

namespace tessera {
namespace {

constexpr int64_t kAlignmentBytes = 16;  // of the copy engine: addresses and strides
constexpr int64_t kMaxStrideBytes = int64_t{1} << 40;

}  // namespace

const char* layout_limit(const sm90::TensorView& t, int64_t element_bytes) {
  if (reinterpret_cast<uintptr_t>(t.data) % kAlignmentBytes != 0) {
    return "data of q, k, v, o: got an address that is no multiple of 16 bytes; allowed multiples of 16";
  }
  for (const auto& [extent, stride] :
       {std::pair{t.tokens, t.stride_token}, std::pair{t.heads, t.stride_head}, std::pair{t.batch, t.stride_batch}}) {
    if (extent <= 1) continue;
    if (stride <= 0 || stride >= kMaxStrideBytes / element_bytes) {
      return "strides of q, k, v, o: got 0 or less, or 2^40 bytes or more; allowed between them";
    }
    if (stride * element_bytes % kAlignmentBytes != 0) {
      return "strides of q, k, v, o: got one that is no multiple of 16 bytes; allowed multiples of 16";
    }
  }
  return nullptr;
}

}  // namespace tessera
