// Identity, invariance and tolerance of attention kernels over a grid of problems: two configurations or two builds in
// one process, no model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "gate/kernel_case.h"
#include "gate/kernel_run.h"
#include "gate/verdict.h"

namespace tessera {

struct KernelGateCase {
  std::string name = {};     // of the problem; for invariance also what was varied
  std::string refused = {};  // why no kernel took it; not judged then
  Verdict verdict = Verdict::kError;
  int64_t rows = 0;  // (sequence, token, head)
  int64_t rows_differing = 0;
  int64_t first_sequence = -1;  // of the first row that differs; O or LSE
  int64_t first_token = -1;
  int64_t first_head = -1;
  bool repeatable = true;  // identity: B gave itself again
  // Tolerance: errors against float64 over the scale of the row's sum, largest and RMS; and of LSE.
  double error_max = 0, limit_max = 0;
  double error_rms = 0, limit_rms = 0;
  double lse_max = 0, limit_lse = 0;
};

struct KernelGateReport {
  Verdict verdict = Verdict::kError;
  std::string summary;
  std::string contract_a, contract_b;  // of the first problem that both take
  std::vector<KernelGateCase> cases;

  Metrics metrics() const;
};

using OnCase = std::function<void(const std::string&, size_t, size_t)>;

// B's bytes are A's, and B's again when it is repeated.
Result<KernelGateReport> kernel_identity(KernelRunner& a, KernelRunner& b, std::span<const KernelCase> grid,
                                         const OnCase& on_case);

// One configuration: a row keeps its bytes when it is repeated, computed by other threads, alone in its sequence or its
// batch, or from pages of another size.
Result<KernelGateReport> kernel_invariance(KernelRunner& a, std::span<const KernelCase> grid, const OnCase& on_case);

// B's distance from float64 is at most 1.5 times (RMS) and 3 times (largest) that of the worst control: A, and plain
// fp32 in two orders, per problem.
Result<KernelGateReport> kernel_tolerance(KernelRunner& a, KernelRunner& b, std::span<const KernelCase> grid,
                                          const OnCase& on_case);

}  // namespace tessera
