#include "contract/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/host_device.h"
#include "contract/exp2.h"

namespace tessera {
namespace {

constexpr int32_t kWideHeadDim = 128;  // the largest head dim with the large granule
constexpr int32_t kGranuleSmallDim = 128;
constexpr int32_t kGranuleLargeDim = 64;

// fp16 weights are scaled by 2^7 so that small ones stay out of the subnormals; with T = 8 they stay below 2^15.
constexpr float kHopperF16Bias = 7.0F;

float bias_for(Arithmetic arithmetic, tessera_dtype dtype) {
  return arithmetic == Arithmetic::kHopperK16F25 && dtype == TESSERA_F16 ? kHopperF16Bias : 0.0F;
}

std::string hex(float x) {
  return fmt::format("0x{:08x}", bits_of(x));
}

}  // namespace

const char* arithmetic_name(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kHopperK16F25 ? "hopper-k16-f25" : "cpu-fma32";
}

const char* dtype_name(tessera_dtype dtype) {
  switch (dtype) {
    case TESSERA_F32:
      return "f32";
    case TESSERA_F16:
      return "f16";
    case TESSERA_BF16:
      return "bf16";
  }
  return "unknown";
}

Result<NumericPlan> plan_for(Arithmetic arithmetic, tessera_dtype dtype, int32_t head_dim_qk, int32_t head_dim_v) {
  if (dtype != TESSERA_F32 && dtype != TESSERA_F16 && dtype != TESSERA_BF16) {
    return Status(Code::kInvalidArgument, fmt::format("dtype: got {}; allowed TESSERA_F32, TESSERA_F16, TESSERA_BF16",
                                                      static_cast<int>(dtype)));
  }
  if (arithmetic == Arithmetic::kHopperK16F25 && dtype == TESSERA_F32) {
    return Status(Code::kUnsupported,
                  "dtype: got f32 for hopper-k16-f25; allowed f16, bf16; use the cpu-fma32 arithmetic for f32");
  }
  for (const auto& [name, dim] : {std::pair{"head_dim_qk", head_dim_qk}, std::pair{"head_dim_v", head_dim_v}}) {
    if (dim < 1 || dim > kMaxHeadDim) {
      return Status(Code::kInvalidArgument, fmt::format("{}: got {}; allowed 1 to {}", name, dim, kMaxHeadDim));
    }
  }
  NumericPlan plan;
  plan.arithmetic = arithmetic;
  plan.dtype = dtype;
  plan.head_dim_qk = head_dim_qk;
  plan.head_dim_v = head_dim_v;
  plan.head_dim = std::max(head_dim_qk, head_dim_v);
  plan.granule = plan.head_dim <= kWideHeadDim ? kGranuleSmallDim : kGranuleLargeDim;
  plan.bias = bias_for(arithmetic, dtype);
  return plan;
}

float score_scale(float softmax_scale, bool modifiers) {
  return modifiers ? kLog2E : mul_rn(softmax_scale, kLog2E);
}

std::string contract_id(const NumericPlan& plan) {
  return fmt::format("{}/{}/{}/d{}", kContractVersion, arithmetic_name(plan.arithmetic), dtype_name(plan.dtype),
                     plan.head_dim);
}

std::vector<ContractConstant> contract_constants() {
  std::vector<ContractConstant> list = {
      {"all", "version", kContractVersion},
      {"all", "granule_keys (head dim <= 128)", std::to_string(kGranuleSmallDim)},
      {"all", "granule_keys (head dim > 128)", std::to_string(kGranuleLargeDim)},
      {"all", "chunk_keys", std::to_string(kChunkKeys)},
      {"all", "superchunk_chunks", std::to_string(kSuperchunkChunks)},
      {"all", "block_keys", std::to_string(kBlockKeys)},
      {"all", "row_sum_classes", "8"},
      {"all", "lazy_threshold_log2", fmt::format("{}", kLazyThreshold)},
      {"all", "largest_drop_log2", fmt::format("{}", kLargestDrop)},
      {"all", "log2_e", hex(kLog2E)},
      {"all", "ln_2", hex(kLn2)},
      {"all", "fp8_rows", "e4m3 x scale, nearest even to fp32, then to bf16"},
      {"all", "output_rope", "x0 := fma(x0, c, RN(x1 s)), x1 := fma(x1, c, -RN(x0 s)), in fp32"},
      {"hopper-k16-f25", "score_step", "fdot, 16 products, 25 fraction bits, truncation"},
      {"hopper-k16-f25", "exp2", "ex2.approx.ftz table of sm_90"},
      {"hopper-k16-f25", "software_exp2_columns", "none"},
      {"hopper-k16-f25", "weight_rounding", "nearest even to the input dtype"},
      {"cpu-fma32", "score_step", "fma chains in 16 classes (dim mod 16), halving tree"},
      {"cpu-fma32", "exp2", "soft_exp2"},
      {"cpu-fma32", "weight_rounding", "none"},
  };
  for (const Arithmetic arithmetic : {Arithmetic::kHopperK16F25, Arithmetic::kCpuFma32}) {
    for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
      if (arithmetic == Arithmetic::kHopperK16F25 && dtype == TESSERA_F32) {
        continue;
      }
      list.push_back({fmt::format("{}/{}", arithmetic_name(arithmetic), dtype_name(dtype)), "bias_log2",
                      fmt::format("{}", bias_for(arithmetic, dtype))});
    }
  }
  return list;
}

}  // namespace tessera
