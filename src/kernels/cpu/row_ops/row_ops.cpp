#include "kernels/cpu/row_ops/row_ops.h"

#include <algorithm>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/fp_environment.h"
#include "kernels/cpu/row_ops/isa.h"

namespace tessera::row_ops {
namespace {

#if defined(__x86_64__)
constexpr const RowOps* kAll[] = {&kAvx512RowOps, &kAvx2RowOps, &kPortableRowOps};
#else
constexpr const RowOps* kAll[] = {&kPortableRowOps};
#endif

// Elements below which waking other threads costs more than it saves.
constexpr int64_t kSharedElements = 16384;
constexpr int64_t kTasksPerThread = 2;

// Calls body(begin, end) so that the ranges cover [0, rows), on the executor when rows * elements is large.
template <class Body>
void share_rows(const tessera_executor* executor, int64_t rows, int64_t elements, const Body& body) {
  if (executor == nullptr || executor->num_threads <= 1 || rows <= 1 || elements < kSharedElements / rows) {
    const FpEnvironment environment;
    body(0, rows);
    return;
  }
  const int64_t tasks = std::min(rows, executor->num_threads * kTasksPerThread);
  const auto run = [&](int64_t index) {
    const FpEnvironment environment;
    body(rows / tasks * index + std::min(index, rows % tasks),
         rows / tasks * (index + 1) + std::min(index + 1, rows % tasks));
  };
  using Run = decltype(run);
  executor->parallel_for(
      executor->context, tasks, [](void* arg, int64_t index, int32_t) { (*static_cast<const Run*>(arg))(index); },
      const_cast<void*>(static_cast<const void*>(&run)));
}

}  // namespace

std::span<const RowOps* const> all_row_ops() {
  return kAll;
}

const RowOps& best_row_ops() {
  for (const RowOps* ops : kAll) {
    if (ops->available()) return *ops;
  }
  return kPortableRowOps;
}

void run_rms_norm(const RowOps& ops, const RmsNormTask& task, const tessera_executor* executor) {
  share_rows(executor, task.rows, task.dim, [&](int64_t begin, int64_t end) { ops.rms_norm(task, begin, end); });
}

void run_swiglu(const RowOps& ops, const SwigluTask& task, const tessera_executor* executor) {
  share_rows(executor, task.rows, task.dim, [&](int64_t begin, int64_t end) { ops.swiglu(task, begin, end); });
}

void run_rope(const RowOps& ops, const RopeTask& task, const tessera_executor* executor) {
  share_rows(executor, task.rows, int64_t{task.num_heads} * task.rotary_dim,
             [&](int64_t begin, int64_t end) { ops.rope(task, begin, end); });
}

bool portable_available() {
  return true;
}

#if defined(__x86_64__)
bool avx2_available() {
  return cpu_features().avx2;
}

bool avx512_available() {
  return cpu_features().avx512;
}
#endif

}  // namespace tessera::row_ops
