#include "kernels/sm90/tma_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "kernels/sm90/tma_panels_map.h"

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

// A dimension of one element may carry any stride: it is never stepped over.
int64_t step_bytes(int64_t count, int64_t stride) {
  return count > 1 ? stride * kElementBytes : kAlignmentBytes;
}

// The map at `data` with these dimensions; the first one is contiguous, `strides` are those of the others in bytes.
Result<CUtensorMap> encode_map(const char* name, uintptr_t data, bool bf16, std::span<const int64_t> sizes,
                               std::span<const int64_t> strides, int box_tokens, int box_dims, int box_panels = 1) {
  constexpr size_t kMaxRank = 5;
  if (data % kAlignmentBytes != 0) {
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
  if (std::ranges::any_of(sizes, [](int64_t size) { return size < 1 || size > kLargestDim; })) {
    return Status(Code::kInvalidArgument, fmt::format("{}: got a shape of ({}), innermost first; allowed 1 to 2^31 per "
                                                      "dimension",
                                                      name, fmt::join(sizes, ", ")));
  }
  const Result<Encoder> encoder = find_encoder();
  if (!encoder.ok()) {
    return encoder.status();
  }
  cuuint64_t extent[kMaxRank];
  cuuint64_t pitch[kMaxRank - 1];
  std::ranges::copy(sizes, extent);
  std::ranges::copy(strides, pitch);
  const cuuint32_t box[kMaxRank] = {static_cast<cuuint32_t>(box_dims), static_cast<cuuint32_t>(box_tokens),
                                    static_cast<cuuint32_t>(box_panels), 1, 1};
  const cuuint32_t element_strides[kMaxRank] = {1, 1, 1, 1, 1};
  const CUtensorMapSwizzle swizzle = box_dims == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : box_dims == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                      : CU_TENSOR_MAP_SWIZZLE_32B;
  CUtensorMap map;
  const CUresult result = encoder.value().encode(
      &map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      static_cast<cuuint32_t>(sizes.size()), reinterpret_cast<void*>(data), extent, pitch, box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: the driver refused the tensor map (CUresult {}) for shape ({}), innermost first",
                              name, static_cast<int>(result), fmt::join(sizes, ", ")));
  }
  return map;
}

}  // namespace

Result<CUtensorMap> make_panel_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens,
                                   int box_dims) {
  const int64_t sizes[] = {tensor.dims, tensor.tokens, tensor.heads, tensor.batch};
  const int64_t strides[] = {step_bytes(tensor.tokens, tensor.stride_token),
                             step_bytes(tensor.heads, tensor.stride_head),
                             step_bytes(tensor.batch, tensor.stride_batch)};
  return encode_map(name, reinterpret_cast<uintptr_t>(tensor.data), bf16, sizes, strides, box_tokens, box_dims);
}

Result<CUtensorMap> make_panels_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens,
                                    int box_panels) {
  constexpr int kPanelDims = 64;
  if (tensor.dims % kPanelDims != 0) {
    return Status(Code::kInvalidArgument, fmt::format("{}: got {} dims; allowed multiples of {} for panels that are "
                                                      "fetched together",
                                                      name, tensor.dims, kPanelDims));
  }
  const int64_t sizes[] = {kPanelDims, tensor.tokens, tensor.dims / kPanelDims, tensor.heads, tensor.batch};
  const int64_t strides[] = {step_bytes(tensor.tokens, tensor.stride_token), kPanelDims * kElementBytes,
                             step_bytes(tensor.heads, tensor.stride_head),
                             step_bytes(tensor.batch, tensor.stride_batch)};
  return encode_map(name, reinterpret_cast<uintptr_t>(tensor.data), bf16, sizes, strides, box_tokens, kPanelDims,
                    box_panels);
}

Result<CUtensorMap> make_clipped_map(const char* name, const TensorView& tensor, bool bf16, int box_tokens, Clip clip) {
  constexpr int kBoxDims = 64;
  const int64_t token_bytes = step_bytes(tensor.tokens, tensor.stride_token);
  const int64_t sizes[] = {tensor.dims, box_tokens, kLargestDim, tensor.heads, tensor.batch};
  const int64_t strides[] = {token_bytes, token_bytes, step_bytes(tensor.heads, tensor.stride_head),
                             step_bytes(tensor.batch, tensor.stride_batch)};
  uintptr_t data = reinterpret_cast<uintptr_t>(tensor.data);
  if (clip == Clip::kEnd) {
    data -= static_cast<uintptr_t>(token_bytes * box_tokens);
  }
  return encode_map(name, data, bf16, sizes, strides, box_tokens, kBoxDims);
}

}  // namespace tessera::sm90
