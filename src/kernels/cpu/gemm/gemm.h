// The CPU matrix product: y_w = x W_w^T + bias_w for matrices that share x (rules M1..M5 of contract.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/cpu/gemm/weight_types.h"
#include "tessera/tessera.h"

namespace tessera::gemm {

inline constexpr const char* kArithmeticName = "cpu-i22b32";

struct GemmWeight {
  const WeightTraits* traits;
  int64_t n;
  const uint8_t* packed;
  const float* bias;  // [n] or nullptr
  float* y;           // (m, n)
  int64_t stride_y;
};

struct GemmProblem {
  int64_t m = 0;
  int64_t k = 0;
  const float* x = nullptr;  // (m, k)
  int64_t stride_x = 0;
  int32_t num_weights = 0;
  GemmWeight weights[TESSERA_MAX_GEMM_WEIGHTS] = {};
};

struct Ops;

// One instruction set's implementation. All give the same bits.
struct GemmKernel {
  const char* name;         // "cpu_gemm_avx512vnni"
  const char* summary;      // one line for the registry
  const char* requirement;  // what the machine must have, for the "not available" sentence
  bool (*available)();
  const Ops* ops;
};

// Kernels of this build, best first; the last one runs everywhere.
std::span<const GemmKernel> gemm_kernels();

// The kernel called `name`, or the first available one for nullptr. kUnsupported names the kernels there are.
Result<const GemmKernel*> select_gemm_kernel(const char* name);

// Workspace of run_gemm; 0 when nothing has to be kept. Independent of the pointers in `problem`.
size_t gemm_workspace_bytes(const GemmKernel& kernel, const GemmProblem& problem, int32_t num_threads);

// Runs on `executor` (nullptr: the calling thread). `workspace` is 64-byte aligned and has gemm_workspace_bytes(...).
// The problem has been checked.
void run_gemm(const GemmKernel& kernel, const GemmProblem& problem, uint8_t* workspace,
              const tessera_executor* executor);

}  // namespace tessera::gemm
