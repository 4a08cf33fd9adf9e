// Driver of the matrix product: quantise x once, then split rows and row groups into tasks.
//
//   1. x is taken in slabs of kSlabRows rows, which bounds the workspace.
//   2. The slab's rows are quantised (M1) into ActBlock records; a few rows on the calling thread, many in parallel.
//   3. All matrices' row groups form one list, cut into ranges of about equal bytes; times row ranges of kTaskRows. One
//      parallel_for runs them all.
// No step changes a bit: every output element is computed by one task from its row and its weights (M2..M5).
#include "kernels/cpu/gemm/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/fp_environment.h"
#include "kernels/cpu/gemm/activation.h"
#include "kernels/cpu/gemm/amx_permission.h"
#include "kernels/cpu/gemm/ops.h"

namespace tessera::gemm {
namespace {

constexpr int64_t kSlabRows = 512;
// Below this many rows quantisation is not worth a parallel region of its own.
constexpr int64_t kSerialQuantizeRows = 4;
// Ranges of row groups per thread: slack for threads that start late or run slower.
constexpr int64_t kRangesPerThread = 4;
// Packed bytes (times rows) of a range: below, handing it out costs more than it balances.
constexpr int64_t kRangeBytes = 65536;

bool always() {
  return true;
}
#if defined(__x86_64__)
bool has_avx2() {
  return cpu_features().avx2;
}
bool has_amx() {
  return cpu_features().amx && cpu_features().avx512_vnni && amx_permitted();
}
bool has_avx512_vnni() {
  return cpu_features().avx512_vnni;
}
#endif

constexpr GemmKernel kKernels[] = {
#if defined(__x86_64__)
    {"cpu_gemm_amx", "all weight types; AMX int8 for batches, AVX-512 VNNI for a few rows",
     "AMX TILE and INT8, AVX-512 F, BW, DQ, VL and VNNI, and the system's permission", &has_amx, &kAmxOps},
    {"cpu_gemm_avx512vnni", "all weight types; AVX-512 VNNI", "AVX-512 F, BW, DQ, VL and VNNI", &has_avx512_vnni,
     &kAvx512VnniOps},
    {"cpu_gemm_avx2", "all weight types; AVX2", "AVX2, FMA and F16C", &has_avx2, &kAvx2Ops},
#endif
    {"cpu_gemm_portable", "all weight types; plain C++", "nothing", &always, &kPortableOps},
};

size_t round_up_64(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// The quantised types of the problem; 0 if x is used as it is.
uint32_t quantized_types(const GemmProblem& problem) {
  uint32_t types = 0;
  for (int32_t w = 0; w < problem.num_weights; ++w) {
    if (problem.weights[w].traits->quantized) types |= type_bit(problem.weights[w].traits->type);
  }
  return types;
}

// Workspace: the records of one slab, then every thread's scratch memory.
struct Workspace {
  size_t act_bytes = 0;
  size_t scratch_bytes = 0;  // per thread

  Workspace(const GemmKernel& kernel, const GemmProblem& problem) {
    const uint32_t types = quantized_types(problem);
    if (types == 0) return;
    const int64_t rows = std::min(problem.m, kSlabRows);
    act_bytes = round_up_64(kernel.ops->act_bytes(types, rows, problem.k));
    scratch_bytes = kernel.ops->scratch_bytes(types, rows);
  }
};

// Runs body(index, thread) for every index below `count`.
template <class Body>
void parallel_for(const tessera_executor* executor, int64_t count, const Body& body) {
  if (executor == nullptr || executor->num_threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  executor->parallel_for(
      executor->context, count,
      [](void* arg, int64_t index, int32_t thread) { (*static_cast<const Body*>(arg))(index, thread); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// All matrices' row groups in one list: where each matrix starts, and how the list is cut.
struct GroupList {
  int64_t begin[TESSERA_MAX_GEMM_WEIGHTS + 1];     // group index
  int64_t bytes_to[TESSERA_MAX_GEMM_WEIGHTS + 1];  // packed bytes before matrix w

  explicit GroupList(const GemmProblem& problem) : begin{}, bytes_to{} {
    for (int32_t w = 0; w < problem.num_weights; ++w) {
      const int64_t groups = row_groups(problem.weights[w].n);
      begin[w + 1] = begin[w] + groups;
      bytes_to[w + 1] = bytes_to[w] + groups * static_cast<int64_t>(group_bytes(*problem.weights[w].traits, problem.k));
    }
  }

  // The group at which range `index` of `count` starts: cut at equal bytes.
  int64_t cut(const GemmProblem& problem, int64_t index, int64_t count) const {
    const int32_t last = problem.num_weights;
    if (index >= count) return begin[last];
    const int64_t bytes = bytes_to[last] / count * index + bytes_to[last] % count * index / count;
    int32_t w = 0;
    while (w + 1 < last && bytes >= bytes_to[w + 1]) ++w;
    const auto per_group = static_cast<int64_t>(group_bytes(*problem.weights[w].traits, problem.k));
    return begin[w] + (bytes - bytes_to[w]) / per_group;
  }
};

// Rows [slab, slab + rows) of the problem.
void run_slab(const GemmKernel& kernel, const GemmProblem& problem, int64_t slab, int64_t rows, uint8_t* workspace,
              const tessera_executor* executor) {
  const Workspace sizes(kernel, problem);
  const uint32_t types = quantized_types(problem);
  const float* x = problem.x + slab * problem.stride_x;
  if (types != 0) {
    const QuantizeTask whole{x, problem.stride_x, problem.k, types, rows, 0, rows, workspace};
    if (rows <= kSerialQuantizeRows) {
      const FpEnvironment environment;
      kernel.ops->quantize(whole);
    } else {
      parallel_for(executor, (rows + kPanelRows - 1) / kPanelRows, [&](int64_t panel, int32_t) {
        const FpEnvironment environment;
        QuantizeTask task = whole;
        task.row_begin = panel * kPanelRows;
        task.row_end = std::min(rows, task.row_begin + kPanelRows);
        kernel.ops->quantize(task);
      });
    }
  }

  const GroupList groups(problem);
  const int64_t threads = executor == nullptr ? 1 : executor->num_threads;
  const int64_t row_ranges = (rows + kernel.ops->task_rows - 1) / kernel.ops->task_rows;
  const int64_t per_thread = groups.bytes_to[problem.num_weights] / (threads * kRangeBytes) * rows / row_ranges;
  const int64_t wanted = threads == 1 ? 1 : threads * std::clamp<int64_t>(per_thread, 1, kRangesPerThread);
  const int64_t ranges = std::min((wanted + row_ranges - 1) / row_ranges, groups.begin[problem.num_weights]);
  parallel_for(executor, ranges * row_ranges, [&](int64_t index, int32_t thread) {
    const FpEnvironment environment;
    const int64_t range = index / row_ranges;
    const int64_t first = groups.cut(problem, range, ranges);
    const int64_t end = groups.cut(problem, range + 1, ranges);
    TileTask task{};
    task.k = problem.k;
    task.x = x;
    task.stride_x = problem.stride_x;
    task.types = types;
    task.acts = workspace;
    task.scratch = workspace + sizes.act_bytes + static_cast<size_t>(thread) * sizes.scratch_bytes;
    task.slab_rows = rows;
    task.row_begin = index % row_ranges * kernel.ops->task_rows;
    task.row_end = std::min(rows, task.row_begin + kernel.ops->task_rows);
    for (int32_t w = 0; w < problem.num_weights; ++w) {
      const GemmWeight& weight = problem.weights[w];
      task.group_begin = std::max(first, groups.begin[w]) - groups.begin[w];
      task.group_end = std::min(end, groups.begin[w + 1]) - groups.begin[w];
      if (task.group_begin >= task.group_end) continue;
      task.type = weight.traits->type;
      task.n = weight.n;
      task.packed = weight.packed;
      task.bias = weight.bias;
      task.y = weight.y + slab * weight.stride_y;
      task.stride_y = weight.stride_y;
      kernel.ops->multiply(task);
    }
  });
}

}  // namespace

std::span<const GemmKernel> gemm_kernels() {
  return kKernels;
}

Result<const GemmKernel*> select_gemm_kernel(const char* name) {
  std::string names;
  for (const GemmKernel& kernel : kKernels) {
    if (name == nullptr) {
      if (kernel.available()) return &kernel;
      continue;
    }
    if (std::strcmp(kernel.name, name) == 0) {
      if (kernel.available()) return &kernel;
      return Status(Code::kUnsupported,
                    fmt::format("force_kernel: got \"{}\", which needs {}; allowed kernels that this "
                                "machine can run; pass NULL to let the library choose",
                                name, kernel.requirement));
    }
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", kernel.name);
  }
  return Status(Code::kUnsupported,
                fmt::format("force_kernel: got \"{}\"; allowed {}; pass NULL to let the library choose",
                            name == nullptr ? "" : name, names));
}

size_t gemm_workspace_bytes(const GemmKernel& kernel, const GemmProblem& problem, int32_t num_threads) {
  const Workspace sizes(kernel, problem);
  return sizes.act_bytes + sizes.scratch_bytes * static_cast<size_t>(num_threads);
}

void run_gemm(const GemmKernel& kernel, const GemmProblem& problem, uint8_t* workspace,
              const tessera_executor* executor) {
  for (int64_t slab = 0; slab < problem.m; slab += kSlabRows) {
    run_slab(kernel, problem, slab, std::min(kSlabRows, problem.m - slab), workspace, executor);
  }
}

}  // namespace tessera::gemm
