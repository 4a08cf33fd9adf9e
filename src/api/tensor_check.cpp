#include "api/tensor_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace tessera {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 60;

struct Axis {
  const char* stride_name;
  int64_t stride;
  int64_t extent;
};

Status check_axes(const ArgumentName& name, Axis (&axes)[4], Access access) {
  int64_t last = 0;  // offset of the last element
  for (const Axis& axis : axes) {
    if (axis.stride < 0) {
      return {Code::kInvalidArgument, fmt::format("{}.{}: got {}; allowed >= 0; pass the elements between neighbours",
                                                  to_text(name), axis.stride_name, axis.stride)};
    }
    int64_t reach = 0;
    const bool overflow =
        __builtin_mul_overflow(axis.stride, axis.extent - 1, &reach) || __builtin_add_overflow(last, reach, &last);
    if (overflow || last > kMaxElements) {
      return {
          Code::kInvalidArgument,
          fmt::format("{}.{}: got {} over an extent of {}, which reaches beyond 2^60 elements; allowed offsets that "
                      "fit; check the strides",
                      to_text(name), axis.stride_name, axis.stride, axis.extent)};
    }
  }
  if (access == Access::kRead) return {};
  std::sort(std::begin(axes), std::end(axes), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t span = 1;  // elements from the first to the last of the dimensions so far
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    if (axis.stride < span) {
      return {Code::kInvalidArgument,
              fmt::format("{}.{}: got {} with an extent of {}; allowed >= {}, or elements would share addresses; "
                          "outputs cannot be broadcast or overlap",
                          to_text(name), axis.stride_name, axis.stride, axis.extent, span)};
    }
    span += axis.stride * (axis.extent - 1);
  }
  return {};
}

}  // namespace

std::string to_text(const ArgumentName& name) {
  return name.array == nullptr ? std::string(name.name) : fmt::format("{}[{}].{}", name.array, name.index, name.name);
}

Status check_tensor(const ArgumentName& name, const tessera_tensor& tensor, const Extents& extents,
                    int64_t element_bytes, Access access) {
  if (extents.batch == 0 || extents.token == 0 || extents.head == 0 || extents.dim == 0) return {};
  if (tensor.data == nullptr) {
    return {Code::kInvalidArgument,
            fmt::format("{}.data: got NULL; allowed a pointer to the tensor; pass it", to_text(name))};
  }
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(element_bytes) != 0) {
    return {Code::kInvalidArgument,
            fmt::format("{}.data: got {}; allowed addresses that are multiples of {}; align the "
                        "tensor to its elements",
                        to_text(name), tensor.data, element_bytes)};
  }
  Axis axes[] = {{"stride_batch", tensor.stride_batch, extents.batch},
                 {"stride_token", tensor.stride_token, extents.token},
                 {"stride_head", tensor.stride_head, extents.head},
                 {"stride_dim", tensor.stride_dim, extents.dim}};
  return check_axes(name, axes, access);
}

Status check_row_scalars(const char* name, const tessera_row_scalars& scalars, int64_t batch, int64_t token,
                         int64_t head, Access access) {
  if (scalars.data == nullptr || batch == 0 || token == 0 || head == 0) return {};
  const ArgumentName argument{nullptr, 0, name};
  if (reinterpret_cast<uintptr_t>(scalars.data) % sizeof(float) != 0) {
    return {Code::kInvalidArgument,
            fmt::format("{}.data: got {}; allowed addresses that are multiples of 4; align it to floats", name,
                        static_cast<const void*>(scalars.data))};
  }
  Axis axes[] = {{"stride_batch", scalars.stride_batch, batch},
                 {"stride_token", scalars.stride_token, token},
                 {"stride_head", scalars.stride_head, head},
                 {"stride_dim", 1, 1}};
  return check_axes(argument, axes, access);
}

}  // namespace tessera
