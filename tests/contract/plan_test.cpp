#include "contract/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/host_device.h"

namespace tessera {
namespace {

NumericPlan plan(Arithmetic arithmetic, tessera_dtype dtype, int32_t qk, int32_t v) {
  return plan_for(arithmetic, dtype, qk, v).value();
}

TEST(Plan, GranuleFollowsTheLargerHeadDim) {
  EXPECT_EQ(plan(Arithmetic::kCpuFma32, TESSERA_F32, 64, 64).granule, 128);
  EXPECT_EQ(plan(Arithmetic::kCpuFma32, TESSERA_F32, 128, 128).granule, 128);
  EXPECT_EQ(plan(Arithmetic::kCpuFma32, TESSERA_F32, 192, 128).granule, 64);
  EXPECT_EQ(plan(Arithmetic::kHopperK16F25, TESSERA_BF16, 64, 129).granule, 64);
}

TEST(Plan, GranuleDividesChunkAndBlockDividesGranule) {
  for (int32_t d = 1; d <= kMaxHeadDim; ++d) {
    const NumericPlan p = plan(Arithmetic::kHopperK16F25, TESSERA_BF16, d, d);
    ASSERT_EQ(p.chunk % p.granule, 0);
    ASSERT_EQ(p.granule % kBlockKeys, 0);
  }
}

TEST(Plan, BiasIsSevenForHopperF16Only) {
  EXPECT_EQ(plan(Arithmetic::kHopperK16F25, TESSERA_F16, 64, 64).bias, 7.0F);
  EXPECT_EQ(plan(Arithmetic::kHopperK16F25, TESSERA_BF16, 64, 64).bias, 0.0F);
  EXPECT_EQ(plan(Arithmetic::kCpuFma32, TESSERA_F16, 64, 64).bias, 0.0F);
}

TEST(Plan, IdentityNamesVersionArithmeticDtypeAndHeadDim) {
  EXPECT_EQ(contract_id(plan(Arithmetic::kHopperK16F25, TESSERA_BF16, 128, 128)), "tessera-1/hopper-k16-f25/bf16/d128");
  EXPECT_EQ(contract_id(plan(Arithmetic::kCpuFma32, TESSERA_F32, 64, 96)), "tessera-1/cpu-fma32/f32/d96");
}

TEST(Plan, RefusesWhatHasNoRules) {
  EXPECT_EQ(plan_for(Arithmetic::kHopperK16F25, TESSERA_F32, 64, 64).status().code(), Code::kUnsupported);
  EXPECT_EQ(plan_for(Arithmetic::kCpuFma32, TESSERA_F32, 0, 64).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(plan_for(Arithmetic::kCpuFma32, TESSERA_F32, 64, 1025).status().code(), Code::kInvalidArgument);
  EXPECT_NE(plan_for(Arithmetic::kCpuFma32, TESSERA_F32, 64, 1025).status().text().find("head_dim_v: got 1025"),
            std::string::npos);
  EXPECT_EQ(plan_for(Arithmetic::kCpuFma32, static_cast<tessera_dtype>(3), 64, 64).status().code(),
            Code::kInvalidArgument);
}

TEST(Plan, ScoreScaleIsTheRoundedProductOrLog2EUnderModifiers) {
  EXPECT_EQ(bits_of(score_scale(1.0F, false)), 0x3fb8aa3bU);
  EXPECT_EQ(score_scale(0.125F, false), 0.125F * float_of(0x3fb8aa3bU));
  EXPECT_EQ(bits_of(score_scale(0.125F, true)), 0x3fb8aa3bU);
}

TEST(Plan, ConstantsHaveTheBitsThatTheContractStates) {
  EXPECT_EQ(bits_of(kLog2E), 0x3fb8aa3bU);
  EXPECT_EQ(bits_of(kLn2), 0x3f317218U);
  EXPECT_EQ(kRoundMagic, 1.5F * 8388608.0F);
}

TEST(Plan, ConstantListNamesEveryConstantOnce) {
  const std::vector<ContractConstant> list = contract_constants();
  const auto value = [&](const std::string& scope, const std::string& name) {
    const auto matches = [&](const ContractConstant& c) { return c.scope == scope && c.name == name; };
    EXPECT_EQ(std::count_if(list.begin(), list.end(), matches), 1) << scope << " " << name;
    const auto found = std::find_if(list.begin(), list.end(), matches);
    return found == list.end() ? std::string() : found->value;
  };
  EXPECT_EQ(value("all", "version"), "tessera-1");
  EXPECT_EQ(value("all", "chunk_keys"), "2048");
  EXPECT_EQ(value("all", "lazy_threshold_log2"), "8");
  EXPECT_EQ(value("all", "log2_e"), "0x3fb8aa3b");
  EXPECT_EQ(value("hopper-k16-f25/f16", "bias_log2"), "7");
  EXPECT_EQ(value("cpu-fma32/f32", "bias_log2"), "0");
}

}  // namespace
}  // namespace tessera
