// Every seeded fault is caught by the gate that is there for it, and harmless orders pass where they should.
#include "gate/kernel_gates.h"

#include <string>
#include <vector>

#include "gate/faulty.h"

namespace tessera {
namespace {

struct Expected {
  const char* behaviour;
  Verdict identity;
  Verdict invariance;
  Verdict tolerance;
};

void PrintTo(const Expected& e, std::ostream* os) {
  *os << e.behaviour;
}

std::string failures(const KernelGateReport& r) {
  std::string text = r.summary;
  for (const KernelGateCase& c : r.cases) {
    if (c.verdict != Verdict::kPass) {
      text += "\n  " + c.name + ": rms " + std::to_string(c.error_rms / c.limit_rms) + ", max " +
              std::to_string(c.error_max / c.limit_max) + ", lse " + std::to_string(c.lse_max / c.limit_lse) +
              c.refused;
    }
  }
  return text;
}

// The built-in grid without f16, which has no arithmetic of its own here, and with the long problem once.
std::vector<KernelCase> test_grid(int64_t most_keys) {
  std::vector<KernelCase> grid;
  for (const KernelCase& c : built_in_grid(TESSERA_DEVICE_CPU)) {
    if (c.dtype != TESSERA_F16 && c.seqlen_k <= most_keys && (c.seqlen_k < 4000 || c.dtype == TESSERA_F32)) {
      grid.push_back(c);
    }
  }
  return grid;
}

class SeededFault : public ::testing::TestWithParam<Expected> {};

TEST_P(SeededFault, IsCaughtByTheRightGate) {
  const std::unique_ptr<MemorySpace> memory = host_memory();
  KernelRunner shipped({}, *memory);
  KernelRunner candidate(testing::faulty(GetParam().behaviour), *memory);
  const std::vector<KernelCase> grid = test_grid(5000);

  const Result<KernelGateReport> identity = kernel_identity(shipped, candidate, grid, {});
  ASSERT_TRUE(identity.ok()) << identity.status().text();
  EXPECT_EQ(identity.value().verdict, GetParam().identity) << failures(identity.value());

  const Result<KernelGateReport> invariance = kernel_invariance(candidate, grid, {});
  ASSERT_TRUE(invariance.ok()) << invariance.status().text();
  EXPECT_EQ(invariance.value().verdict, GetParam().invariance) << failures(invariance.value());

  const Result<KernelGateReport> tolerance = kernel_tolerance(shipped, candidate, grid, {});
  ASSERT_TRUE(tolerance.ok()) << tolerance.status().text();
  EXPECT_EQ(tolerance.value().verdict, GetParam().tolerance) << failures(tolerance.value());
}

constexpr Verdict kPass = Verdict::kPass;
constexpr Verdict kFail = Verdict::kFail;

INSTANTIATE_TEST_SUITE_P(
    Faults, SeededFault,
    ::testing::Values(Expected{"sink", kFail, kPass, kFail}, Expected{"window", kFail, kPass, kFail},
                      Expected{"swapped_merge", kFail, kPass, kPass}, Expected{"stale_tail", kFail, kPass, kFail},
                      Expected{"lane", kFail, kPass, kFail}, Expected{"bf16", kFail, kPass, kFail},
                      Expected{"mask_edge", kFail, kPass, kFail}, Expected{"atomic", kFail, kFail, kPass},
                      Expected{"nan", kFail, kFail, kFail}),
    [](const auto& i) { return std::string(i.param.behaviour); });

INSTANTIATE_TEST_SUITE_P(HarmlessOrders, SeededFault,
                         ::testing::Values(Expected{"none", kFail, kPass, kPass}, Expected{"tile", kFail, kPass, kPass},
                                           Expected{"group", kFail, kPass, kPass},
                                           Expected{"reverse", kFail, kPass, kPass}),
                         [](const auto& i) { return std::string(i.param.behaviour); });

TEST(KernelGates, GiveNoFalseAlarmInTwentyRunsOfAgainstItself) {
  const std::unique_ptr<MemorySpace> memory = host_memory();
  KernelRunner a({}, *memory);
  KernelRunner b({.threads = 2}, *memory);
  for (uint64_t seed = 100; seed < 120; ++seed) {
    std::vector<KernelCase> grid = test_grid(200);
    for (KernelCase& c : grid) {
      c.seed += seed * 1000;
    }
    EXPECT_EQ(kernel_identity(a, b, grid, {}).value().verdict, kPass);
    EXPECT_EQ(kernel_tolerance(a, b, grid, {}).value().verdict, kPass);
  }
}

TEST(KernelGates, EveryKernelOfThisMachineIsIdenticalAndInvariant) {
  const std::unique_ptr<MemorySpace> memory = host_memory();
  const std::vector<KernelCase> grid = test_grid(5000);
  for (const char* name : {"cpu_fmha_portable", "cpu_fmha_avx2"}) {
    KernelRunner a({}, *memory);
    KernelRunner b({.kernel = name}, *memory);
    const Result<KernelGateReport> report = kernel_identity(a, b, grid, {});
    ASSERT_TRUE(report.ok()) << report.status().text();
    EXPECT_NE(report.value().verdict, kFail) << failures(report.value());
  }
  KernelRunner a({}, *memory);
  EXPECT_EQ(kernel_invariance(a, grid, {}).value().verdict, kPass);
}

TEST(KernelGates, TwoBuildsThatBothGiveNaNAreNoPass) {
  const std::unique_ptr<MemorySpace> memory = host_memory();
  KernelRunner broken(testing::faulty("nan"), *memory);
  const std::vector<KernelCase> grid = {{.name = "one"}};
  EXPECT_EQ(kernel_identity(broken, broken, grid, {}).value().verdict, kFail);
  EXPECT_EQ(kernel_tolerance(broken, broken, grid, {}).value().verdict, kFail);
}

TEST(KernelGates, AGridThatNoKernelTakesIsNoPass) {
  const std::unique_ptr<MemorySpace> memory = host_memory();
  KernelRunner a({.kernel = "sm90_fmha_prefill"}, *memory);
  const std::vector<KernelCase> grid = {{.name = "one"}};
  const Result<KernelGateReport> report = kernel_identity(a, a, grid, {});
  EXPECT_TRUE(!report.ok() || report.value().verdict == Verdict::kInconclusive);
  const Result<KernelGateReport> empty = kernel_identity(a, a, {}, {});
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty.value().verdict, Verdict::kInconclusive);
}

}  // namespace
}  // namespace tessera
