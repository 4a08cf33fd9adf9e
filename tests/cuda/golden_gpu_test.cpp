// The bytes of this GPU against the recorded ones. With TESSERA_WRITE_FMHA_GOLDEN=FILE in the environment the file is
// written instead (tools/gpu_check --golden).
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cuda/golden.h"
#include "cuda/harness.h"

namespace tessera::test {
namespace {

using CudaGolden = CudaTest;

nlohmann::json device_json() {
  cudaDeviceProp properties{};
  int driver = 0;
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  return {{"name", properties.name},
          {"compute_capability", std::to_string(properties.major) + "." + std::to_string(properties.minor)},
          {"cuda_of_the_driver", driver}};
}

TEST_F(CudaGolden, EveryKernelHasTheRecordedBytes) {
  const char* target = std::getenv("TESSERA_WRITE_FMHA_GOLDEN");
  nlohmann::json recorded = nlohmann::json::object();
  if (std::ifstream file(golden_path()); target == nullptr && file.good()) {
    recorded = nlohmann::json::parse(file).at("digests");
  }
  nlohmann::json now = nlohmann::json::object();
  for (const GoldenProblem& golden : golden_problems()) {
    const FmhaProblem problem(golden.spec);
    for (const std::string& kernel : cuda_kernels(TESSERA_OP_FMHA, true)) {
      const CudaRun run = run_cuda(kernel, problem);
      ASSERT_EQ(run.damage, "") << kernel << " " << golden.name;
      if (run.status == TESSERA_UNSUPPORTED) continue;
      ASSERT_EQ(run.status, TESSERA_OK) << kernel << " " << golden.name << ": " << run.text;
      const std::string digest = golden_digest(problem, run.out);
      if (!now.contains(golden.name)) now[golden.name] = {{"sha256", digest}, {"kernels", nlohmann::json::array()}};
      EXPECT_EQ(now[golden.name]["sha256"], digest) << kernel << " differs from another kernel: " << golden.name;
      now[golden.name]["kernels"].push_back(kernel);
    }
    if (target != nullptr || !now.contains(golden.name)) continue;
    ASSERT_TRUE(recorded.contains(golden.name)) << golden.name << ": not recorded in " << golden_path();
    EXPECT_EQ(recorded[golden.name]["sha256"], now[golden.name]["sha256"]) << golden.name;
  }
  if (target == nullptr) return;
  std::ofstream file(target);
  file << nlohmann::json{{"contract", tessera_contract_version()},
                         {"arithmetic", "hopper-k16-f25"},
                         {"device", device_json()},
                         {"digests", now}}
              .dump(1)
       << "\n";
  EXPECT_TRUE(file.good()) << target;
}

}  // namespace
}  // namespace tessera::test
