// Every prefill kernel against the oracle, byte for byte: O, LSE, and the guard rows around them. Needs an sm_90 GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "kernels/sm90/fmha_prefill/table.h"
#include "sm90/prefill_case.h"

namespace tessera::sm90 {

// Names the kernel in a failure's text.
void PrintTo(const PrefillEntry& entry, std::ostream* out) {  // NOLINT(readability-identifier-naming)
  *out << entry.name;
}

namespace {

// Runs the kernel and the oracle. `blocks` limits the grid.
void expect_oracle_bytes(const Case& c, const PrefillEntry& entry, int blocks, const Finish& finish = {}) {
  expect_oracle_bytes(
      c, {entry.dims_qk, entry.dims_v, entry.bf16, entry.causal, entry.ragged}, finish,
      [&](const PrefillProblem& problem) { return prefill_scratch_bytes(problem, blocks); },
      [&](const PrefillProblem& problem) { return run_prefill(entry, problem, blocks, nullptr); });
}

class PrefillBytes : public testing::TestWithParam<PrefillEntry> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "NO CUDA DEVICE: the kernel's bytes are not compared here";
    }
  }

  void check(const std::vector<Case>& cases, int blocks = multiprocessors(), const Finish& finish = {}) {
    for (const Case& c : cases) {
      if (HasFatalFailure()) {
        return;
      }
      expect_oracle_bytes(c, GetParam(), blocks, finish);
    }
  }
};

using PrefillGeneralBytes = PrefillBytes;

TEST_P(PrefillBytes, OneGranule) {
  check({{1, 1, 1, 1, 1, Values::kNormal},
         {1, 1, 1, 64, 128, Values::kNormal},
         {2, 2, 1, 63, 64, Values::kNormal},
         {1, 2, 2, 65, 127, Values::kNormal},
         {2, 4, 1, 127, 127, Values::kWide},
         {1, 1, 1, 128, 128, Values::kTiny}});
}

// Few rows: a memory checker gets through it.
TEST_P(PrefillBytes, ThreeChunks) {
  check({{1, 2, 1, 65, 4200, Values::kNormal}});
}

// Around the tiles of every kernel: 64 rows of a warpgroup, 128 and 192 rows of a block, granules of 64 and 128 keys.
TEST_P(PrefillBytes, LengthsAroundTiles) {
  std::vector<Case> cases;
  for (const int64_t q : {1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 257}) {
    for (const int64_t k : {q, q + 1, q + 128, q + 191}) {
      cases.push_back({1, 2, 1, q, k, (q + k) % 3 == 0 ? Values::kWide : Values::kNormal});
    }
  }
  check(cases);
}

TEST_P(PrefillBytes, ChunksAndTheirChain) {
  check({{1, 1, 1, 65, 2047, Values::kNormal},
         {1, 1, 1, 65, 2048, Values::kWide},
         {1, 2, 1, 130, 2049, Values::kNormal},
         {1, 1, 1, 64, 4095, Values::kWide},
         {1, 1, 1, 192, 4096, Values::kRising},
         {1, 1, 1, 129, 4097, Values::kRising},
         {1, 1, 1, 300, 6300, Values::kTiny},
         {1, 1, 1, 200, 6237, Values::kWide},
         {1, 2, 1, 2150, 2150, Values::kNormal},
         {1, 1, 1, 70, 9000, Values::kNormal}});
}

TEST_P(PrefillBytes, SuperchunksAndTheirChain) {
  check({{1, 1, 1, 64, 32768, Values::kNormal},
         {1, 1, 1, 70, 32769, Values::kWide},
         {1, 1, 1, 33, 70000, Values::kRising}});
}

// One block, several tiles: what a tile leaves in the scratch must not reach the next one.
TEST_P(PrefillBytes, SuperchunksOfOneTileAfterAnother) {
  check({{1, 2, 1, 130, 33000, Values::kRising}}, 1);
}

TEST_P(PrefillBytes, FewerKeysThanQueries) {
  check({{1, 1, 1, 200, 100, Values::kNormal},
         {2, 2, 2, 300, 1, Values::kNormal},
         {1, 1, 1, 129, 64, Values::kWide},
         {1, 1, 1, 256, 128, Values::kNormal},
         {1, 2, 1, 450, 70, Values::kNormal},
         {1, 1, 1, 130, 0, Values::kNormal}});
}

TEST_P(PrefillBytes, HeadGroups) {
  check({{1, 4, 4, 150, 333, Values::kNormal},
         {2, 4, 1, 100, 200, Values::kWide},
         {2, 5, 1, 70, 300, Values::kNormal},
         {1, 16, 2, 65, 130, Values::kNormal},
         {2, 6, 3, 193, 193, Values::kNormal}});
}

TEST_P(PrefillBytes, SeveralTilesPerBlockAndAnyGrid) {
  const std::vector<Case> cases = {
      {2, 4, 2, 515, 515, Values::kNormal}, {3, 3, 1, 140, 2300, Values::kWide}, {2, 4, 1, 260, 2150, Values::kRising}};
  for (const int blocks : {1, 3, 7}) {
    check(cases, blocks);
  }
}

// The general finish: one chunk, several, more than 16, rows without keys and past the end of the sequence.
const std::vector<Case>& general_cases() {
  static const std::vector<Case> cases = {{2, 5, 1, 70, 130, Values::kWide},
                                          {1, 2, 1, 129, 65, Values::kNormal},
                                          {1, 5, 5, 200, 4200, Values::kRising},
                                          {1, 2, 1, 33, 33000, Values::kNormal}};
  return cases;
}
TEST_P(PrefillGeneralBytes, OneGranule) {
  check({{2, 5, 1, 63, 64, Values::kNormal}}, multiprocessors(), {.wide_output = true, .sinks = true});
  check({{1, 1, 1, 65, 127, Values::kNormal}}, multiprocessors(), {.wide_output = true, .unnormalized = true});
}
TEST_P(PrefillGeneralBytes, ThreeChunks) {
  check({{1, 2, 1, 65, 4200, Values::kNormal}}, multiprocessors(), {.sinks = true});
}
TEST_P(PrefillGeneralBytes, SixteenBitOutput) {
  check(general_cases());
}
TEST_P(PrefillGeneralBytes, Sinks) {
  check(general_cases(), multiprocessors(), {.sinks = true});
}
TEST_P(PrefillGeneralBytes, WideOutputAndSinks) {
  check(general_cases(), multiprocessors(), {.wide_output = true, .sinks = true});
}
TEST_P(PrefillGeneralBytes, States) {
  check(general_cases(), 2, {.wide_output = true, .unnormalized = true});
}

std::vector<PrefillEntry> kernels(bool general_finish) {
  std::vector<PrefillEntry> found;
  for (const PrefillEntry& entry : prefill_table()) {
    if (entry.general_finish == general_finish) found.push_back(entry);
  }
  return found;
}
std::string kernel_name(const testing::TestParamInfo<PrefillEntry>& entry) {
  return entry.param.name;
}
INSTANTIATE_TEST_SUITE_P(Kernels, PrefillBytes, testing::ValuesIn(kernels(false)), kernel_name);
INSTANTIATE_TEST_SUITE_P(Kernels, PrefillGeneralBytes, testing::ValuesIn(kernels(true)), kernel_name);

}  // namespace
}  // namespace tessera::sm90
