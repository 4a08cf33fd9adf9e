// What the attention cases (docs/cases.md) share, and where the CPU kernels and those of a GPU differ.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "fmha/problem.h"

namespace tessera::test {

// ---------------------------------------------------------------- by device: cases_cpu.cpp, cuda/cases_cuda.cpp

// Why the cases cannot run on this machine, or "".
std::string no_case_device();
// The widest input type of the device's kernels.
tessera_dtype case_dtype();
bool case_takes_head_dim(int32_t dim);
// What float64 may differ by in O, for values of about 1: `wanted` where weights are kept in fp32, else at least the
// rounding of the weights to the element type.
double case_tolerance(tessera_dtype dtype, double wanted);
extern const double kLseTolerance;
// The registry's kernel; `threads` are those of the CPU kernels.
FmhaOutputs run_case(const FmhaProblem& problem, int32_t threads = 1);
// The oracle under the device's arithmetic.
FmhaOutputs case_oracle(const FmhaProblem& problem);
// Every kernel of the device that takes the problem, and there is one, gives the oracle's bytes.
void expect_case_bytes(const FmhaSpec& spec, int32_t threads = 3);

// ---------------------------------------------------------------- the same everywhere

class Cases : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_case_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};
using CasesA = Cases;
using CasesB = Cases;
using CasesC = Cases;
using CasesE = Cases;
using CasesF = Cases;
using CasesG = Cases;

inline FmhaSpec heads(int32_t q, int32_t kv, int32_t dim, tessera_dtype dtype = TESSERA_BF16) {
  FmhaSpec spec;
  spec.heads_q = q;
  spec.heads_kv = kv;
  spec.head_dim_qk = spec.head_dim_v = dim;
  spec.dtype = spec.o_dtype = dtype;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return spec;
}

inline FmhaSpec paged(FmhaSpec spec, int32_t page_size) {
  spec.segments[0].layout = KvLayout::kPaged;
  spec.segments[0].page_size = page_size;
  return spec;
}

// The same problem with the lengths and contents of other sequences around it.
inline FmhaSpec batch(FmhaSpec spec, std::vector<int64_t> q, std::vector<int64_t> k, std::vector<uint64_t> ids) {
  spec.q_lengths = std::move(q);
  spec.segments[0].lengths = std::move(k);
  spec.ids = std::move(ids);
  return spec;
}

}  // namespace tessera::test
