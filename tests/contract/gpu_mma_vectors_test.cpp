// fdot against an H200: stored results, and hashes over 2 M results per mode, with one step and with a chain of 8
// (K = 128), from mma.sync m16n8k16 and from wgmma m64n8k16. The inputs are those of src/probe/vector_cases.h.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "contract/mma_model.h"
#include "probe/vector_cases.h"
#include "wide.h"

namespace tessera {
namespace {

const std::string kFolder = std::string(TESSERA_TEST_VECTORS) + "/mma/";

using TileResults = std::array<uint32_t, kTileOutputs>;

// All 64 x 8 results of one tile after `steps` steps.
template <class Format>
TESSERA_HD void run_tile(MmaMode mode, uint32_t tile, uint32_t steps, TileResults& results) {
  float d[kTileOutputs];
  for (uint32_t i = 0; i < kTileOutputs; ++i) {
    d[i] = float_of(case_accumulator<Format>(mode, tile, i / kTileColumns, i % kTileColumns));
  }
  for (uint32_t step = 0; step < steps; ++step) {
    uint16_t a[kTileRows][kStepTerms];
    uint16_t b[kTileColumns][kStepTerms];
    for (uint32_t k = 0; k < kStepTerms; ++k) {
      for (uint32_t row = 0; row < kTileRows; ++row) {
        a[row][k] = case_operand<Format>(mode, tile, MmaStream::kA, row, step * kStepTerms + k);
      }
      for (uint32_t column = 0; column < kTileColumns; ++column) {
        b[column][k] = case_operand<Format>(mode, tile, MmaStream::kB, column, step * kStepTerms + k);
      }
    }
    for (uint32_t i = 0; i < kTileOutputs; ++i) {
      d[i] = fdot_k16<Format>(d[i], a[i / kTileColumns], b[i % kTileColumns]);
    }
  }
  for (uint32_t i = 0; i < kTileOutputs; ++i) {
    results[i] = bits_of(d[i]);
  }
}

TESSERA_TEST_WIDE void run_tile_wide(bool f16, MmaMode mode, uint32_t tile, uint32_t steps, TileResults& results) {
  f16 ? run_tile<F16Format>(mode, tile, steps, results) : run_tile<Bf16Format>(mode, tile, steps, results);
}
void run_tile_baseline(bool f16, MmaMode mode, uint32_t tile, uint32_t steps, TileResults& results) {
  f16 ? run_tile<F16Format>(mode, tile, steps, results) : run_tile<Bf16Format>(mode, tile, steps, results);
}
TileResults tile_results(bool f16, MmaMode mode, uint32_t tile, uint32_t steps) {
  TileResults results;
  (has_wide() ? run_tile_wide : run_tile_baseline)(f16, mode, tile, steps, results);
  return results;
}

std::vector<uint32_t> stored_results(const char* dtype) {
  std::vector<uint32_t> values(size_t{2} * kMmaModes * kSampleTiles * kTileOutputs);
  std::ifstream file(kFolder + "mma_" + dtype + ".bin", std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(uint32_t)));
  EXPECT_TRUE(file.good()) << kFolder << "mma_" << dtype << ".bin";
  return values;
}

nlohmann::json manifest() {
  std::ifstream file(kFolder + "mma.json");
  EXPECT_TRUE(file.good());
  return nlohmann::json::parse(file);
}

struct Case {
  bool f16;
  uint32_t mode;
  const char* dtype() const { return f16 ? "f16" : "bf16"; }
};

class GpuMma : public testing::TestWithParam<Case> {};

TEST_P(GpuMma, StoredResultsAreTheModels) {
  const Case param = GetParam();
  const auto mode = static_cast<MmaMode>(param.mode);
  const std::vector<uint32_t> stored = stored_results(param.dtype());
  for (uint32_t chained = 0; chained < 2; ++chained) {
    for (uint32_t tile = 0; tile < kSampleTiles; ++tile) {
      const TileResults results = tile_results(param.f16, mode, tile, chained != 0 ? kChainSteps : 1);
      for (uint32_t i = 0; i < kTileOutputs; ++i) {
        const size_t at = ((chained * kMmaModes + param.mode) * kSampleTiles + tile) * kTileOutputs + i;
        ASSERT_EQ(results[i], stored[at]) << "tile " << tile << " output " << i << " chained " << chained;
      }
    }
  }
}

uint64_t sweep_hash(Case param, uint32_t steps) {
  uint64_t hash = 0;
  for (uint32_t tile = 0; tile < kSweepTiles; ++tile) {
    const TileResults results = tile_results(param.f16, static_cast<MmaMode>(param.mode), tile, steps);
    for (uint32_t i = 0; i < kTileOutputs; ++i) {
      hash += hash_term(tile * kTileOutputs + i, results[i]);
    }
  }
  return hash;
}

std::string hex(uint64_t x) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(x));
  return text;
}

TEST_P(GpuMma, TwoMillionSingleStepsHashLikeMmaSyncAndWgmma) {
  if (kSanitized) {
    GTEST_SKIP() << "a sweep for the plain build";
  }
  const nlohmann::json expected = manifest()[GetParam().dtype()];
  const std::string hash = hex(sweep_hash(GetParam(), 1));
  EXPECT_EQ(hash, expected["mma_sync"][GetParam().mode].get<std::string>());
  EXPECT_EQ(hash, expected["wgmma"][GetParam().mode].get<std::string>());
}

// Chains add no new arithmetic, so the default run takes the modes whose accumulators wander most;
// TESSERA_EXHAUSTIVE=1 in the environment takes all.
TEST_P(GpuMma, TwoMillionChainsOfEightHashLikeMmaSyncAndWgmma) {
  const auto mode = static_cast<MmaMode>(GetParam().mode);
  if (kSanitized) {
    GTEST_SKIP() << "a sweep for the plain build";
  }
  if (mode != MmaMode::kNarrow && mode != MmaMode::kCancellation && mode != MmaMode::kUnderflow &&
      std::getenv("TESSERA_EXHAUSTIVE") == nullptr) {
    GTEST_SKIP() << "set TESSERA_EXHAUSTIVE=1 to run every mode";
  }
  const nlohmann::json expected = manifest()[GetParam().dtype()];
  const std::string hash = hex(sweep_hash(GetParam(), kChainSteps));
  EXPECT_EQ(hash, expected["mma_sync_chained"][GetParam().mode].get<std::string>());
  EXPECT_EQ(hash, expected["wgmma_chained"][GetParam().mode].get<std::string>());
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (uint32_t mode = 0; mode < kMmaModes; ++mode) {
    cases.push_back({true, mode});
    cases.push_back({false, mode});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Modes, GpuMma, testing::ValuesIn(all_cases()), [](const auto& row) {
  return std::string(row.param.dtype()) + "_" + mma_mode_name(static_cast<MmaMode>(row.param.mode));
});

}  // namespace
}  // namespace tessera
