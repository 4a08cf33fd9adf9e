// tessera_kv_to_fp8: checks every argument, then calls kernels/cpu/row_ops.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "api/call_guard.h"
#include "api/integer_of.h"
#include "contract/fp8_rows.h"
#include "kernels/cpu/row_ops/fp8_rows.h"

namespace tessera {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;
constexpr int64_t kMostBytes = int64_t{1} << 60;

Status invalid(std::string text) {
  return {Code::kInvalidArgument, std::move(text)};
}

Status check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid(fmt::format("{}: got {}; allowed {}..{}; correct the description", name, value, low, high));
}

Status check_slots(const row_ops::Fp8RowsTask& task, int64_t num_slots) {
  if (task.slots == nullptr) return check_range("rows", task.rows, 0, num_slots);
  for (int64_t r = 0; r < task.rows; ++r) {
    if (task.slots[r] < -1 || task.slots[r] >= num_slots) {
      return invalid(fmt::format("slots[{}]: got {}; allowed -1 (nowhere) to {}; the cache has no other rows", r,
                                 task.slots[r], num_slots - 1));
    }
  }
  return {};
}

Status kv_to_fp8(const row_ops::Fp8RowsTask& task, int32_t format, int64_t num_pages) {
  if (format != TESSERA_KV_FP8_V32_656 && format != TESSERA_KV_FP8_V4_584) {
    return invalid(
        fmt::format("format: got {}; allowed TESSERA_KV_FP8_V32_656, TESSERA_KV_FP8_V4_584; dense rows need "
                    "no rounding",
                    format));
  }
  const Fp8Format numbers = fp8_format(task.format);
  TESSERA_RETURN_IF_ERROR(check_range("rows", task.rows, 0, kMost));
  TESSERA_RETURN_IF_ERROR(check_range("page_size", task.page_size, 1, kMost - 1));
  TESSERA_RETURN_IF_ERROR(check_range("num_pages", num_pages, 0, kMost));
  TESSERA_RETURN_IF_ERROR(check_range("smallest_scale", task.smallest_scale, -127, 0));
  if (task.rows == 0) return {};
  if (task.rows > 1) {
    TESSERA_RETURN_IF_ERROR(check_range("stride_x", task.stride_x, 0, kMostBytes / (2 * task.rows)));
  }
  const int64_t page = task.page_size * (numbers.row_bytes + numbers.footer_bytes);
  if (num_pages > 1) {
    TESSERA_RETURN_IF_ERROR(check_range("stride_page", task.stride_page, page, kMostBytes / num_pages));
  }
  for (const auto& [name, pointer, alignment] :
       {std::tuple{"x", static_cast<const void*>(task.x), int64_t{2}},
        std::tuple{"cache", static_cast<const void*>(task.cache), kFp8Alignment}}) {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) != 0) {
      return invalid(
          fmt::format("{}: got address {}; allowed multiples of {} but NULL; pass the rows", name, pointer, alignment));
    }
  }
  TESSERA_RETURN_IF_ERROR(check_slots(task, num_pages * task.page_size));
  row_ops::run_fp8_rows(task);
  return {};
}

}  // namespace
}  // namespace tessera

extern "C" {

tessera_status tessera_kv_to_fp8(tessera_kv_format format, int64_t rows, const void* x, int64_t stride_x,
                                 int32_t smallest_scale, const int64_t* slots, void* cache, int64_t stride_page,
                                 int32_t page_size, int64_t num_pages, tessera_error* error) {
  return tessera::run_guarded(error, [&] {
    const tessera::row_ops::Fp8RowsTask task = {format,         rows,  static_cast<const uint16_t*>(x), stride_x,
                                                smallest_scale, slots, static_cast<uint8_t*>(cache),    stride_page,
                                                page_size};
    return tessera::kv_to_fp8(task, tessera::integer_of(format), num_pages);
  });
}

}  // extern "C"
