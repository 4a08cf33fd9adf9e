// The attention cases on the CPU kernels.
#include "fmha/cases.h"
#include "fmha/conformance.h"

namespace tessera::test {

const double kLseTolerance = 1e-5;

std::string no_case_device() {
  return "";
}
tessera_dtype case_dtype() {
  return TESSERA_F32;
}
bool case_takes_head_dim(int32_t /*dim*/) {
  return true;
}
double case_tolerance(tessera_dtype /*dtype*/, double wanted) {
  return wanted;
}
FmhaOutputs run_case(const FmhaProblem& problem, int32_t threads) {
  return run_kernel("", problem, threads);
}
FmhaOutputs case_oracle(const FmhaProblem& problem) {
  return run_oracle(problem);
}
void expect_case_bytes(const FmhaSpec& spec, int32_t threads) {
  expect_oracle_bytes(spec, threads);
}

}  // namespace tessera::test
