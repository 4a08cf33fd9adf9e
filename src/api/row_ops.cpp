// tessera_rms_norm, tessera_swiglu, tessera_rope: checks every argument, then calls kernels/cpu/row_ops.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "api/call_guard.h"
#include "api/integer_of.h"
#include "kernels/cpu/row_ops/row_ops.h"

namespace tessera {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 31;
constexpr int64_t kMaxDim = int64_t{1} << 24;  // float(dim) is exact
constexpr int64_t kMaxStride = int64_t{1} << 40;

Status invalid(std::string text) {
  return {Code::kInvalidArgument, std::move(text)};
}

Status check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid(fmt::format("{}: got {}; allowed {}..{}; correct the description", name, value, low, high));
}

Status check_pointer(const char* name, const void* pointer) {
  if (pointer == nullptr) {
    return invalid(fmt::format("{}: got NULL; allowed a buffer of the described shape; pass one", name));
  }
  if (reinterpret_cast<uintptr_t>(pointer) % alignof(float) == 0) return {};
  return invalid(
      fmt::format("{}: got address {}; allowed multiples of {}; align its elements", name, pointer, alignof(float)));
}

// Strides are only read from the second row on.
Status check_stride(const char* name, int64_t stride, int64_t columns, int64_t rows) {
  return rows > 1 ? check_range(name, stride, columns, kMaxStride) : Status{};
}

// Rows of heads that share addresses would be rotated twice, by two threads at once: one of the two axes must step over
// all of the other.
Status check_apart(const row_ops::RopeTask& task, int32_t head_dim) {
  if (task.rows == 1 || task.num_heads == 1) return {};
  const int64_t row_span = (task.num_heads - 1) * task.stride_head + head_dim;  // at most 2^56
  int64_t head_span = 0;
  const bool head_span_fits = !__builtin_mul_overflow(task.rows - 1, task.stride_row, &head_span) &&
                              !__builtin_add_overflow(head_span, head_dim, &head_span);
  if (task.stride_row >= row_span || (head_span_fits && task.stride_head >= head_span)) return {};
  return invalid(fmt::format(
      "stride_row: got {} with stride_head {}; allowed >= {}, or a stride_head beyond all rows of a head; x "
      "is rotated in place and its rows cannot overlap",
      task.stride_row, task.stride_head, row_span));
}

Result<const tessera_executor*> check_executor(const tessera_stream* stream) {
  const tessera_executor* executor = stream == nullptr ? nullptr : stream->executor;
  if (executor == nullptr) return executor;
  TESSERA_RETURN_IF_ERROR(check_range("executor.num_threads", executor->num_threads, 1, 4096));
  if (executor->parallel_for == nullptr) {
    return invalid("executor.parallel_for: got NULL; allowed a function; pass a NULL executor for the calling thread");
  }
  return executor;
}

Status rms_norm(const row_ops::RmsNormTask& task, const tessera_stream* stream) {
  TESSERA_RETURN_IF_ERROR(check_range("rows", task.rows, 1, kMaxRows));
  TESSERA_RETURN_IF_ERROR(check_range("dim", task.dim, 1, kMaxDim));
  TESSERA_RETURN_IF_ERROR(check_pointer("x", task.x));
  TESSERA_RETURN_IF_ERROR(check_pointer("weight", task.weight));
  TESSERA_RETURN_IF_ERROR(check_pointer("y", task.y));
  TESSERA_RETURN_IF_ERROR(check_stride("stride_x", task.stride_x, task.dim, task.rows));
  TESSERA_RETURN_IF_ERROR(check_stride("stride_y", task.stride_y, task.dim, task.rows));
  if (!(task.eps >= 0.0F && task.eps <= 1e30F)) {
    return invalid(fmt::format("eps: got {}; allowed 0..1e30; pass the model's epsilon", task.eps));
  }
  const Result<const tessera_executor*> executor = check_executor(stream);
  if (!executor.ok()) return executor.status();
  row_ops::run_rms_norm(row_ops::best_row_ops(), task, executor.value());
  return {};
}

Status swiglu(const row_ops::SwigluTask& task, const tessera_stream* stream) {
  TESSERA_RETURN_IF_ERROR(check_range("rows", task.rows, 1, kMaxRows));
  TESSERA_RETURN_IF_ERROR(check_range("dim", task.dim, 1, kMaxDim));
  TESSERA_RETURN_IF_ERROR(check_pointer("gate", task.gate));
  TESSERA_RETURN_IF_ERROR(check_pointer("up", task.up));
  TESSERA_RETURN_IF_ERROR(check_pointer("y", task.y));
  TESSERA_RETURN_IF_ERROR(check_stride("stride_gate", task.stride_gate, task.dim, task.rows));
  TESSERA_RETURN_IF_ERROR(check_stride("stride_up", task.stride_up, task.dim, task.rows));
  TESSERA_RETURN_IF_ERROR(check_stride("stride_y", task.stride_y, task.dim, task.rows));
  const Result<const tessera_executor*> executor = check_executor(stream);
  if (!executor.ok()) return executor.status();
  row_ops::run_swiglu(row_ops::best_row_ops(), task, executor.value());
  return {};
}

Status rope(row_ops::RopeTask task, int32_t head_dim, int32_t pairing, int64_t num_positions,
            const tessera_stream* stream) {
  TESSERA_RETURN_IF_ERROR(check_range("rows", task.rows, 1, kMaxRows));
  TESSERA_RETURN_IF_ERROR(check_range("num_heads", task.num_heads, 1, 65536));
  TESSERA_RETURN_IF_ERROR(check_range("head_dim", head_dim, 2, 65536));
  TESSERA_RETURN_IF_ERROR(check_range("rotary_dim", task.rotary_dim, 2, head_dim));
  if (task.rotary_dim % 2 != 0) {
    return invalid(fmt::format("rotary_dim: got {}; allowed even numbers up to head_dim {}; pass the rotated elements",
                               task.rotary_dim, head_dim));
  }
  TESSERA_RETURN_IF_ERROR(check_range("pairing", pairing, 0, 1));
  TESSERA_RETURN_IF_ERROR(check_range("num_positions", num_positions, 1, int64_t{1} << 31));
  TESSERA_RETURN_IF_ERROR(check_pointer("positions", task.positions));
  TESSERA_RETURN_IF_ERROR(check_pointer("cos_table", task.cos_table));
  TESSERA_RETURN_IF_ERROR(check_pointer("sin_table", task.sin_table));
  TESSERA_RETURN_IF_ERROR(check_pointer("x", task.x));
  TESSERA_RETURN_IF_ERROR(check_stride("stride_head", task.stride_head, head_dim, task.num_heads));
  TESSERA_RETURN_IF_ERROR(check_stride("stride_row", task.stride_row, head_dim, task.rows));
  TESSERA_RETURN_IF_ERROR(check_apart(task, head_dim));
  const Result<const tessera_executor*> executor = check_executor(stream);
  if (!executor.ok()) return executor.status();
  for (int64_t row = 0; row < task.rows; ++row) {
    if (task.positions[row] < 0 || task.positions[row] >= num_positions) {
      return invalid(fmt::format("positions[{}]: got {}; allowed 0..{}; extend the tables or correct the position", row,
                                 task.positions[row], num_positions - 1));
    }
  }
  task.interleaved = pairing == TESSERA_ROPE_INTERLEAVED;
  row_ops::run_rope(row_ops::best_row_ops(), task, executor.value());
  return {};
}

}  // namespace
}  // namespace tessera

extern "C" {

tessera_status tessera_rms_norm(int64_t rows, int64_t dim, const float* x, int64_t stride_x, const float* weight,
                                float eps, float* y, int64_t stride_y, const tessera_stream* stream,
                                tessera_error* error) {
  return tessera::run_guarded(error, [&] {
    return tessera::rms_norm({rows, dim, x, stride_x, weight, eps, y, stride_y}, stream);
  });
}

tessera_status tessera_swiglu(int64_t rows, int64_t dim, const float* gate, int64_t stride_gate, const float* up,
                              int64_t stride_up, float* y, int64_t stride_y, const tessera_stream* stream,
                              tessera_error* error) {
  return tessera::run_guarded(error, [&] {
    return tessera::swiglu({rows, dim, gate, stride_gate, up, stride_up, y, stride_y}, stream);
  });
}

tessera_status tessera_rope(int64_t rows, int32_t num_heads, int32_t head_dim, int32_t rotary_dim,
                            tessera_rope_pairing pairing, const int32_t* positions, const float* cos_table,
                            const float* sin_table, int64_t num_positions, float* x, int64_t stride_row,
                            int64_t stride_head, const tessera_stream* stream, tessera_error* error) {
  return tessera::run_guarded(error, [&] {
    return tessera::rope(
        {rows, num_heads, rotary_dim, false, positions, cos_table, sin_table, x, stride_row, stride_head}, head_dim,
        tessera::integer_of(pairing), num_positions, stream);
  });
}

}  // extern "C"
