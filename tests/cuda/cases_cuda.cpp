// The attention cases on the kernels of a GPU.
#include <algorithm>

#include "cuda/harness.h"
#include "fmha/cases.h"
#include "fmha/conformance.h"

namespace tessera::test {
namespace {

constexpr int32_t kWidestHeadDim = 576;

}  // namespace

const double kLseTolerance = 1e-4;  // scores are sums of products that the tensor cores align to 25 bits

std::string no_case_device() {
  return cuda_kernels(TESSERA_OP_FMHA, true).empty() ? "NO HOPPER GPU: the CUDA kernels of this build are not run here"
                                                     : "";
}
tessera_dtype case_dtype() {
  return TESSERA_BF16;
}
bool case_takes_head_dim(int32_t dim) {
  return dim <= kWidestHeadDim;
}
double case_tolerance(tessera_dtype dtype, double wanted) {
  return std::max(wanted, dtype == TESSERA_F16 ? 0x1p-9 : 0x1p-6);
}
FmhaOutputs run_case(const FmhaProblem& problem, int32_t /*threads*/) {
  const CudaRun run = run_cuda("", problem);
  EXPECT_EQ(run.damage, "") << to_text(problem.spec());
  EXPECT_EQ(run.status, TESSERA_OK) << run.text << "\n" << to_text(problem.spec());
  return run.out.o.empty() ? problem.make_outputs() : run.out;
}
FmhaOutputs case_oracle(const FmhaProblem& problem) {
  return run_hopper_oracle(problem);
}
void expect_case_bytes(const FmhaSpec& spec, int32_t /*threads*/) {
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_hopper_oracle(problem);
  int compared = 0;
  for (const std::string& kernel : cuda_kernels(TESSERA_OP_FMHA, true)) {
    const CudaRun run = run_cuda(kernel, problem);
    ASSERT_EQ(run.damage, "") << kernel << "\n" << to_text(spec);
    if (run.status == TESSERA_UNSUPPORTED) continue;
    ASSERT_EQ(run.status, TESSERA_OK) << kernel << ": " << run.text;
    EXPECT_EQ(first_difference(problem, expected, run.out), "") << kernel << "\n" << to_text(spec);
    ++compared;
  }
  EXPECT_GE(compared, 1) << "no kernel takes " << to_text(spec);
}

}  // namespace tessera::test
