// The prefill kernels of head dim 512 against the oracle, byte for byte: O, the rows' scalars, and the guard rows
// around them. Needs an sm_90 GPU.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "kernels/sm90/fmha_prefill_512/prefill_512.h"
#include "sm90/prefill_case.h"

namespace tessera::sm90 {
namespace {

class Prefill512Bytes : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "NO CUDA DEVICE: the kernel's bytes are not compared here";
    }
  }

  void check(const std::vector<Case>& cases, int blocks = multiprocessors(), const Finish& finish = {},
             int64_t dims_qk = 512, int64_t dims_v = 512) {
    const auto [bf16, causal] = GetParam();
    for (const Case& c : cases) {
      if (HasFatalFailure()) {
        return;
      }
      const Prefill512Entry& entry = find_prefill_512(bf16);
      expect_oracle_bytes(
          c, {dims_qk, dims_v, bf16, causal, false}, finish,
          [&](const PrefillProblem& problem) { return prefill_512_scratch_bytes(problem, blocks); },
          [&](const PrefillProblem& problem) { return run_prefill_512(entry, problem, blocks, nullptr); });
    }
  }
};

TEST_P(Prefill512Bytes, OnePair) {
  check({{1, 1, 1, 1, 1, Values::kNormal},
         {1, 1, 1, 64, 128, Values::kNormal},
         {2, 2, 1, 63, 64, Values::kNormal},
         {1, 4, 2, 130, 127, Values::kWide}});
}

TEST_P(Prefill512Bytes, LengthsAroundGranulesAndTiles) {
  check({{1, 2, 1, 128, 129, Values::kNormal},
         {1, 1, 1, 129, 191, Values::kWide},
         {2, 1, 1, 200, 256, Values::kRising},
         {1, 1, 1, 65, 640, Values::kTiny},
         {1, 2, 2, 300, 300, Values::kRising}});
}

TEST_P(Prefill512Bytes, ChunksAndTheirChain) {
  check({{1, 1, 1, 70, 2048, Values::kNormal},
         {1, 1, 1, 70, 2049, Values::kWide},
         {1, 1, 1, 130, 4200, Values::kRising},
         {1, 1, 1, 20, 6300, Values::kTiny}});
}

TEST_P(Prefill512Bytes, SuperchunksAndTheirChain) {
  check({{1, 1, 1, 3, 33000, Values::kNormal}, {1, 1, 1, 2, 67000, Values::kWide}});
}

TEST_P(Prefill512Bytes, MoreQueriesThanKeys) {
  check({{1, 1, 1, 300, 40, Values::kNormal}, {1, 2, 1, 200, 0, Values::kNormal}});
}

TEST_P(Prefill512Bytes, FewerDims) {
  check({{1, 2, 1, 100, 300, Values::kNormal}}, multiprocessors(), {}, 264, 264);
  check({{1, 1, 1, 140, 200, Values::kWide}}, multiprocessors(), {}, 504, 320);
  check({{1, 1, 1, 40, 200, Values::kNormal}}, multiprocessors(), {}, 512, 200);
}

TEST_P(Prefill512Bytes, StatesSinksAndWideOutput) {
  const std::vector<Case> cases = {{1, 5, 1, 70, 200, Values::kNormal}, {1, 2, 1, 30, 4200, Values::kWide}};
  check(cases, multiprocessors(), {.wide_output = true});
  check(cases, multiprocessors(), {.wide_output = true, .unnormalized = true});
  check(cases, multiprocessors(), {.sinks = true});
}

TEST_P(Prefill512Bytes, AnyNumberOfClusters) {
  for (const int blocks : {2, 6, 132}) {
    check({{3, 4, 2, 260, 500, Values::kNormal}, {1, 2, 1, 200, 2300, Values::kRising}}, blocks);
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<bool, bool>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param) ? "bf16" : "f16", std::get<1>(info.param) ? "causal" : "full");
}
INSTANTIATE_TEST_SUITE_P(Kernels, Prefill512Bytes, testing::Combine(testing::Bool(), testing::Bool()), name_of);

}  // namespace
}  // namespace tessera::sm90
