#include "kernels/sm90/tma_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

namespace tessera::sm90 {
namespace {

constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kElementBytes = 2;
constexpr int64_t kLargestDim = int64_t{1} << 31;

struct Encoder {
  PFN_cuTensorMapEncodeTiled_v12000 encode;
};

// The encoder is a driver function; asking the runtime for it avoids linking the driver library.
Result<Encoder> find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    return Status(Code::kDevice, fmt::format("cuTensorMapEncodeTiled: got {}; allowed a driver of CUDA 12.0 or newer; "
                                             "update the driver",
                                             cudaGetErrorName(error)));
  }
  return Encoder{reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)};
}

}  // namespace

Result<CUtensorMap> make_panel_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens,
                                   int box_dims) {
  // A dimension of one element may carry any stride: it is never stepped over.
  const auto step_bytes = [](int64_t count, int64_t stride) {
    return count > 1 ? stride * kElementBytes : kAlignmentBytes;
  };
  const int64_t strides[3] = {step_bytes(tensor.tokens, tensor.stride_token),
                              step_bytes(tensor.heads, tensor.stride_head),
                              step_bytes(tensor.batch, tensor.stride_batch)};
  if (reinterpret_cast<uintptr_t>(tensor.data) % kAlignmentBytes != 0) {
    return Status(Code::kInvalidArgument, fmt::format("{}.data: got an address that is no multiple of {} bytes; the "
                                                      "copy engine needs one; align the tensor",
                                                      name, kAlignmentBytes));
  }
  for (const int64_t stride : strides) {
    if (stride <= 0 || stride % kAlignmentBytes != 0 || stride >= int64_t{1} << 40) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: got a stride of {} bytes; allowed multiples of {} below 2^40; copy the tensor",
                                name, stride, kAlignmentBytes));
    }
  }
  const int64_t sizes[4] = {tensor.dims, tensor.tokens, tensor.heads, tensor.batch};
  if (std::ranges::any_of(sizes, [](int64_t size) { return size < 1 || size > kLargestDim; })) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: got a shape of ({}, {}, {}, {}); allowed 1 to 2^31 per dimension", name,
                              tensor.batch, tensor.tokens, tensor.heads, tensor.dims));
  }
  const Result<Encoder> encoder = find_encoder();
  if (!encoder.ok()) {
    return encoder.status();
  }
  cuuint64_t extent[4];
  cuuint64_t pitch[3];
  std::ranges::copy(sizes, extent);
  std::ranges::copy(strides, pitch);
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(box_dims), static_cast<cuuint32_t>(box_tokens), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = box_dims == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : box_dims == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                      : CU_TENSOR_MAP_SWIZZLE_32B;
  CUtensorMap map;
  const CUresult result = encoder.value().encode(
      &map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      const_cast<void*>(tensor.data), extent, pitch, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: the driver refused the tensor map (CUresult {}) for shape ({}, {}, {}, {})", name,
                              static_cast<int>(result), tensor.batch, tensor.tokens, tensor.heads, tensor.dims));
  }
  return map;
}

}  // namespace tessera::sm90
