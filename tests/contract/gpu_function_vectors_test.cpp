// ex2 and the elementary functions against an H200: stored ex2 results for every exponent and sign, and one hash per
// 2^24 inputs. All 256 hashes of every function are stored; the default run checks the blocks where something happens.
// TESSERA_EXHAUSTIVE=1 in the environment checks all of them (minutes).
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/numeric_types.h"
#include "contract/ceil_product.h"
#include "contract/ex2_sm90.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/tanh.h"
#include "probe/expected_hashes.h"
#include "probe/vector_cases.h"
#include "wide.h"

namespace tessera {
namespace {

const std::string kFolder = std::string(TESSERA_TEST_VECTORS) + "/ex2/";

const nlohmann::json& manifest() {
  static const nlohmann::json json = [] {
    std::ifstream file(kFolder + "ex2.json");
    return nlohmann::json::parse(file);
  }();
  return json;
}

std::string hex(uint64_t x) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(x));
  return text;
}

TEST(GpuEx2, StoredResultsForEveryExponentAndSignAreTheModels) {
  std::vector<uint32_t> stored(kEx2Samples);
  std::ifstream file(kFolder + "ex2_samples.bin", std::ios::binary);
  file.read(reinterpret_cast<char*>(stored.data()), static_cast<std::streamsize>(stored.size() * sizeof(uint32_t)));
  ASSERT_TRUE(file.good());
  const Ex2Sm90& ex2 = ex2_sm90();
  for (uint32_t i = 0; i < kEx2Samples; ++i) {
    const uint32_t input = ex2_sample_input(i);
    ASSERT_EQ(bits_of(ex2(float_of(input))), stored[i]) << std::hex << input;
  }
}

TEST(GpuFunctions, ProbeExpectsTheStoredHashes) {
  for (const ExpectedHash& expected : kExpectedHashes) {
    uint64_t sum = 0;
    for (const nlohmann::json& hash : manifest().at(expected.name)) {
      sum += std::stoull(hash.get<std::string>(), nullptr, 16);
    }
    EXPECT_EQ(sum, expected.sum) << expected.name;
  }
}

enum class Function { kEx2, kSoftExp2, kSoftLog2, kSoftTanh, kF32ToF16, kF32ToBf16 };

struct Case {
  const char* name;  // in ex2.json
  Function function;
};

template <Function function>
TESSERA_HD uint32_t evaluate(const Ex2Sm90& ex2, float x) {
  switch (function) {
    case Function::kEx2:
      return bits_of(ex2(x));
    case Function::kSoftExp2:
      return canonical_nan(bits_of(soft_exp2(x)));
    case Function::kSoftLog2:
      return canonical_nan(bits_of(soft_log2(x)));
    case Function::kSoftTanh:
      return canonical_nan(bits_of(soft_tanh(x)));
    case Function::kF32ToF16:
      return f32_to_f16(x);
    case Function::kF32ToBf16:
      return f32_to_bf16(x);
  }
  return 0;
}

template <Function function>
TESSERA_HD uint64_t block_hash_of(uint32_t block) {
  const Ex2Sm90& ex2 = ex2_sm90();
  uint64_t hash = 0;
  for (uint32_t i = 0; i < kBlockInputs; ++i) {
    const uint32_t input = block << 24 | i;
    hash += hash_term(input, evaluate<function>(ex2, float_of(input)));
  }
  return hash;
}

TESSERA_HD uint64_t block_hash_body(Function function, uint32_t block) {
  switch (function) {
    case Function::kEx2:
      return block_hash_of<Function::kEx2>(block);
    case Function::kSoftExp2:
      return block_hash_of<Function::kSoftExp2>(block);
    case Function::kSoftLog2:
      return block_hash_of<Function::kSoftLog2>(block);
    case Function::kSoftTanh:
      return block_hash_of<Function::kSoftTanh>(block);
    case Function::kF32ToF16:
      return block_hash_of<Function::kF32ToF16>(block);
    case Function::kF32ToBf16:
      return block_hash_of<Function::kF32ToBf16>(block);
  }
  return 0;
}

TESSERA_TEST_WIDE uint64_t block_hash_wide(Function function, uint32_t block) {
  return block_hash_body(function, block);
}
uint64_t block_hash_baseline(Function function, uint32_t block) {
  return block_hash_body(function, block);
}

// Blocks (upper byte of the input: sign and seven exponent bits) of the default run. For ex2 with 2^-24 <= |x| < 256
// every block; for the others one block per kind of behaviour, both signs.
std::vector<uint32_t> default_blocks(Function function) {
  if (function == Function::kEx2) {
    std::vector<uint32_t> blocks = {0x00, 0x20, 0x7f, 0x80, 0xa0, 0xff};
    for (uint32_t b = 0x33; b <= 0x43; ++b) {
      blocks.push_back(b);
      blocks.push_back(0x80 | b);
    }
    return blocks;
  }
  if (function == Function::kSoftLog2) {
    return {0x00, 0x3e, 0x3f, 0x47, 0x7f, 0xbf};
  }
  if (function == Function::kSoftTanh) {
    return {0x00, 0x38, 0x3f, 0x40, 0x41, 0x7f, 0xbf};
  }
  if (function == Function::kF32ToF16 || function == Function::kF32ToBf16) {
    return {0x00, 0x33, 0x38, 0x47, 0x7f, 0x80, 0xc7, 0xff};
  }
  return {0x00, 0x3f, 0x41, 0x42, 0xbf, 0xc2, 0xc3};
}

// A NaN, for which the polynomial promises nothing, makes it add its payload to an exponent.
bool has_promise(Function function, uint32_t block) {
  return function != Function::kSoftExp2 || (block & 0x7fU) != 0x7fU;
}

class GpuFunction : public testing::TestWithParam<Case> {};

TEST_P(GpuFunction, HashesOverBlocksOfSixteenMillionInputsMatch) {
  if (kSanitized) {
    GTEST_SKIP() << "a sweep for the plain build";
  }
  const Case param = GetParam();
  const bool exhaustive = std::getenv("TESSERA_EXHAUSTIVE") != nullptr;
  std::vector<uint32_t> blocks = default_blocks(param.function);
  if (exhaustive) {
    blocks.clear();
    for (uint32_t b = 0; b < kBlocks; ++b) {
      if (has_promise(param.function, b)) {
        blocks.push_back(b);
      }
    }
  }
  for (const uint32_t block : blocks) {
    const uint64_t hash = (has_wide() ? block_hash_wide : block_hash_baseline)(param.function, block);
    ASSERT_EQ(hex(hash), manifest()[param.name][block].get<std::string>()) << "block " << std::hex << block;
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, GpuFunction,
                         testing::Values(Case{"ex2", Function::kEx2}, Case{"soft_exp2", Function::kSoftExp2},
                                         Case{"soft_log2", Function::kSoftLog2}, Case{"soft_tanh", Function::kSoftTanh},
                                         Case{"f32_to_f16", Function::kF32ToF16},
                                         Case{"f32_to_bf16", Function::kF32ToBf16}),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(GpuCeilProduct, FourMillionProductsHashLikeTheDevice) {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < kCeilCases; ++i) {
    const CeilCase arguments = ceil_case(i);
    hash += hash_term(i, canonical_nan(bits_of(ceil_product(arguments.mu, arguments.c))));
  }
  EXPECT_EQ(hex(hash), manifest()["ceil_product"][0].get<std::string>());
}

}  // namespace
}  // namespace tessera
