// The oracle against the bytes that a GPU gave. Needs no GPU.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "contract/plan.h"
#include "cuda/golden.h"
#include "oracle/oracle.h"

namespace tessera::test {
namespace {

TEST(FmhaGolden, TheOracleHasTheBytesOfTheGpu) {
  std::ifstream file(golden_path());
  ASSERT_TRUE(file.good()) << golden_path() << " is written by: tools/gpu_check --golden FILE";
  const nlohmann::json recorded = nlohmann::json::parse(file);
  ASSERT_EQ(recorded.at("contract"), kContractVersion) << "record again: a changed rule is another version";
  const nlohmann::json& digests = recorded.at("digests");
  size_t known = 0;
  for (const GoldenProblem& golden : golden_problems()) {
    if (!digests.contains(golden.name)) {
      ADD_FAILURE() << golden.name << ": not recorded";
      continue;
    }
    ++known;
    const FmhaProblem problem(golden.spec);
    FmhaOutputs out = problem.make_outputs();
    const Status status = oracle_fmha(Arithmetic::kHopperK16F25, problem.params(&out), 2);
    ASSERT_TRUE(status.ok()) << golden.name << ": " << status.text();
    EXPECT_EQ(digests.at(golden.name).at("sha256"), golden_digest(problem, out)) << golden.name;
  }
  EXPECT_EQ(digests.size(), known) << "a recorded problem is gone from the list";
}

}  // namespace
}  // namespace tessera::test
