// tessera_gemm_*: checks every argument, then calls kernels/cpu/gemm.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "api/call_guard.h"
#include "api/integer_of.h"
#include "kernels/cpu/fp_environment.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/pack.h"
#include "kernels/cpu/gemm/weight_shape.h"

namespace tessera {
namespace {

using gemm::GemmKernel;
using gemm::GemmProblem;
using gemm::WeightTraits;

constexpr int64_t kMaxRows = int64_t{1} << 31;
constexpr int64_t kMaxStride = int64_t{1} << 40;
constexpr int32_t kMaxThreads = 4096;
constexpr size_t kAlignment = 64;

Status invalid(std::string text) {
  return {Code::kInvalidArgument, std::move(text)};
}

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0;
}

// Names an argument of matrix `weight`, or a plain argument if weight < 0. Called on failure only: a call that succeeds
// allocates nothing.
std::string argument(int32_t weight, const char* name) {
  return weight < 0 ? std::string(name) : fmt::format("weights[{}].{}", weight, name);
}

Status check_packed(const void* packed, int32_t weight) {
  if (packed == nullptr) {
    return invalid(
        fmt::format("{}: got NULL; allowed a packed matrix; call tessera_gemm_pack", argument(weight, "packed")));
  }
  if (!aligned(packed)) {
    return invalid(fmt::format("{}: got an address that is no multiple of {}; allowed {}-byte aligned memory; align it",
                               argument(weight, "packed"), kAlignment, kAlignment));
  }
  return {};
}

Result<size_t> packed_size(int32_t type, int64_t n, int64_t k) {
  const Result<const WeightTraits*> traits = gemm::check_weight_shape(type, n, k);
  if (!traits.ok()) return traits.status();
  return gemm::packed_size(*traits.value(), n, k);
}

Status pack(int32_t type, int64_t n, int64_t k, int64_t row_begin, int64_t row_end, const void* rows, size_t rows_bytes,
            void* packed, size_t packed_bytes) {
  const Result<const WeightTraits*> traits = gemm::check_weight_shape(type, n, k);
  if (!traits.ok()) return traits.status();
  if (row_begin < 0 || row_begin >= n || row_begin % gemm::kGroupRows != 0) {
    return invalid(fmt::format("row_begin: got {}; allowed multiples of {} in [0, {}); pack whole row groups",
                               row_begin, gemm::kGroupRows, n));
  }
  if (row_end <= row_begin || row_end > n || (row_end % gemm::kGroupRows != 0 && row_end != n)) {
    return invalid(
        fmt::format("row_end: got {}; allowed multiples of {} above row_begin {}, or n = {}; pack whole row "
                    "groups",
                    row_end, gemm::kGroupRows, row_begin, n));
  }
  if (rows == nullptr) return invalid("rows: got NULL; allowed the rows in GGUF layout; pass the tensor data");
  const size_t need = static_cast<size_t>(row_end - row_begin) * gemm::file_row_bytes(*traits.value(), k);
  if (rows_bytes < need) {
    return invalid(
        fmt::format("rows_bytes: got {}; allowed at least {} for {} rows of {} {} elements; pass all of them",
                    rows_bytes, need, row_end - row_begin, k, traits.value()->name));
  }
  TESSERA_RETURN_IF_ERROR(check_packed(packed, -1));
  const size_t size = gemm::packed_size(*traits.value(), n, k);
  if (packed_bytes < size) {
    return invalid(
        fmt::format("packed_bytes: got {}; allowed at least {}; ask tessera_gemm_packed_size", packed_bytes, size));
  }
  gemm::pack_rows(*traits.value(), k, row_begin, row_end, static_cast<const uint8_t*>(rows),
                  static_cast<uint8_t*>(packed));
  return {};
}

Status unpack_row(int32_t type, int64_t n, int64_t k, const void* packed, int64_t row, float* dst) {
  const Result<const WeightTraits*> traits = gemm::check_weight_shape(type, n, k);
  if (!traits.ok()) return traits.status();
  TESSERA_RETURN_IF_ERROR(check_packed(packed, -1));
  if (row < 0 || row >= n) {
    return invalid(fmt::format("row: got {}; allowed 0..{}; pass a row of the matrix", row, n - 1));
  }
  if (dst == nullptr) return invalid("dst: got NULL; allowed k floats; pass a buffer");
  const FpEnvironment environment;
  gemm::unpack_row(*traits.value(), k, static_cast<const uint8_t*>(packed), row, dst);
  return {};
}

// Shape part of the parameters: what the workspace size depends on.
Result<GemmProblem> check_shapes(const tessera_gemm_params* params) {
  if (params == nullptr) return invalid("params: got NULL; allowed a tessera_gemm_params; pass one");
  if (params->struct_size != sizeof(tessera_gemm_params)) {
    return invalid(fmt::format("struct_size: got {}; allowed {}; set it to sizeof(tessera_gemm_params)",
                               params->struct_size, sizeof(tessera_gemm_params)));
  }
  if (params->m < 1 || params->m > kMaxRows) {
    return invalid(fmt::format("m: got {}; allowed 1..{}; pass the number of rows of x", params->m, kMaxRows));
  }
  if (params->num_weights < 1 || params->num_weights > TESSERA_MAX_GEMM_WEIGHTS) {
    return invalid(fmt::format("num_weights: got {}; allowed 1..{}; split the call", params->num_weights,
                               static_cast<int>(TESSERA_MAX_GEMM_WEIGHTS)));
  }
  GemmProblem problem;
  problem.m = params->m;
  problem.k = params->k;
  problem.num_weights = params->num_weights;
  for (int32_t w = 0; w < params->num_weights; ++w) {
    const tessera_gemm_weight& weight = params->weights[w];
    const Result<const WeightTraits*> traits = gemm::check_weight_shape(integer_of(weight.type), weight.n, params->k);
    if (!traits.ok()) return Status(traits.status().code(), argument(w, traits.status().text().c_str()));
    problem.weights[w].traits = traits.value();
    problem.weights[w].n = weight.n;
  }
  return problem;
}

Status check_stride(int32_t weight, const char* name, int64_t stride, int64_t columns, int64_t rows) {
  if (rows > 1 && (stride < columns || stride > kMaxStride)) {
    return invalid(fmt::format("{}: got {}; allowed {}..{}; pass the elements between rows", argument(weight, name),
                               stride, columns, kMaxStride));
  }
  return {};
}

Status check_float_aligned(int32_t weight, const char* name, const float* pointer) {
  if (reinterpret_cast<uintptr_t>(pointer) % alignof(float) == 0) return {};
  return invalid(fmt::format("{}: got address {}; allowed multiples of {}; align the floats", argument(weight, name),
                             fmt::ptr(pointer), alignof(float)));
}

// Pointers and strides of the parameters, into `problem`.
Status check_pointers(const tessera_gemm_params& params, GemmProblem& problem) {
  if (params.x == nullptr) return invalid("x: got NULL; allowed (m, k) floats; pass the activations");
  TESSERA_RETURN_IF_ERROR(check_float_aligned(-1, "x", params.x));
  TESSERA_RETURN_IF_ERROR(check_stride(-1, "stride_x", params.stride_x, params.k, params.m));
  problem.x = params.x;
  problem.stride_x = params.stride_x;
  for (int32_t w = 0; w < params.num_weights; ++w) {
    const tessera_gemm_weight& weight = params.weights[w];
    TESSERA_RETURN_IF_ERROR(check_packed(weight.packed, w));
    if (weight.y == nullptr) {
      return invalid(fmt::format("{}: got NULL; allowed (m, n) floats; pass the output", argument(w, "y")));
    }
    TESSERA_RETURN_IF_ERROR(check_float_aligned(w, "y", weight.y));
    TESSERA_RETURN_IF_ERROR(check_float_aligned(w, "bias", weight.bias));
    TESSERA_RETURN_IF_ERROR(check_stride(w, "stride_y", weight.stride_y, weight.n, params.m));
    problem.weights[w].packed = static_cast<const uint8_t*>(weight.packed);
    problem.weights[w].bias = weight.bias;
    problem.weights[w].y = weight.y;
    problem.weights[w].stride_y = weight.stride_y;
  }
  return {};
}

Status check_threads(int32_t num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return invalid(
        fmt::format("num_threads: got {}; allowed 1..{}; pass the executor's thread count", num_threads, kMaxThreads));
  }
  return {};
}

Result<size_t> workspace_size(const tessera_gemm_params* params, int32_t num_threads) {
  const Result<GemmProblem> problem = check_shapes(params);
  if (!problem.ok()) return problem.status();
  TESSERA_RETURN_IF_ERROR(check_threads(num_threads));
  const Result<const GemmKernel*> kernel = gemm::select_gemm_kernel(params->force_kernel);
  if (!kernel.ok()) return kernel.status();
  return gemm::gemm_workspace_bytes(*kernel.value(), problem.value(), num_threads);
}

Status run(const tessera_gemm_params* params, void* workspace, size_t workspace_bytes, const tessera_stream* stream) {
  Result<GemmProblem> problem = check_shapes(params);
  if (!problem.ok()) return problem.status();
  TESSERA_RETURN_IF_ERROR(check_pointers(*params, problem.value()));
  const tessera_executor* executor = stream == nullptr ? nullptr : stream->executor;
  if (executor != nullptr) {
    TESSERA_RETURN_IF_ERROR(check_threads(executor->num_threads));
    if (executor->parallel_for == nullptr) {
      return invalid(
          "executor.parallel_for: got NULL; allowed a function; pass a NULL executor for the calling thread");
    }
  }
  const Result<const GemmKernel*> kernel = gemm::select_gemm_kernel(params->force_kernel);
  if (!kernel.ok()) return kernel.status();
  const int32_t num_threads = executor == nullptr ? 1 : executor->num_threads;
  const size_t need = gemm::gemm_workspace_bytes(*kernel.value(), problem.value(), num_threads);
  if (need > 0 && (workspace == nullptr || workspace_bytes < need || !aligned(workspace))) {
    return {Code::kWorkspaceTooSmall,
            fmt::format("workspace: got {} bytes at {}; allowed at least {} bytes, {}-byte aligned; ask "
                        "tessera_gemm_workspace_size with {} threads",
                        workspace_bytes, workspace, need, kAlignment, num_threads)};
  }
  gemm::run_gemm(*kernel.value(), problem.value(), static_cast<uint8_t*>(workspace), executor);
  return {};
}

// Runs a body that returns a size, which goes to *bytes.
template <class Body>
tessera_status guarded_size(size_t* bytes, tessera_error* error, const Body& body) {
  return run_guarded(error, [&]() -> Status {
    if (bytes == nullptr) return invalid("bytes: got NULL; allowed a size_t; pass the address of one");
    const Result<size_t> size = body();
    if (size.ok()) *bytes = size.value();
    return size.status();
  });
}

}  // namespace
}  // namespace tessera

extern "C" {

tessera_status tessera_gemm_packed_size(tessera_weight_type type, int64_t n, int64_t k, size_t* bytes,
                                        tessera_error* error) {
  return tessera::guarded_size(bytes, error, [&] { return tessera::packed_size(tessera::integer_of(type), n, k); });
}

tessera_status tessera_gemm_pack(tessera_weight_type type, int64_t n, int64_t k, int64_t row_begin, int64_t row_end,
                                 const void* rows, size_t rows_bytes, void* packed, size_t packed_bytes,
                                 tessera_error* error) {
  return tessera::run_guarded(error, [&] {
    return tessera::pack(tessera::integer_of(type), n, k, row_begin, row_end, rows, rows_bytes, packed, packed_bytes);
  });
}

tessera_status tessera_gemm_unpack_row(tessera_weight_type type, int64_t n, int64_t k, const void* packed, int64_t row,
                                       float* dst, tessera_error* error) {
  return tessera::run_guarded(error,
                              [&] { return tessera::unpack_row(tessera::integer_of(type), n, k, packed, row, dst); });
}

tessera_status tessera_gemm_workspace_size(const tessera_gemm_params* params, int32_t num_threads, size_t* bytes,
                                           tessera_error* error) {
  return tessera::guarded_size(bytes, error, [&] { return tessera::workspace_size(params, num_threads); });
}

tessera_status tessera_gemm_run(const tessera_gemm_params* params, void* workspace, size_t workspace_bytes,
                                const tessera_stream* stream, tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::run(params, workspace, workspace_bytes, stream); });
}

}  // extern "C"
