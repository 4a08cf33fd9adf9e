// Rule R0: the constants that an attention problem's bits depend on, per (arithmetic, dtype, head dims). They are a
// pure function of these and never of a batch, a length, a thread count or a machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

inline constexpr const char* kContractVersion = "tessera-1";

// Which operations make up the steps of R1 and R6 and the exp2 of R4.
enum class Arithmetic {
  kHopperK16F25,  // the sm_90 tensor-core step and ex2 table; fp16, bf16
  kCpuFma32,      // fp32 fma chains and soft_exp2; fp32, fp16, bf16
};

inline constexpr int32_t kBlockKeys = 16;         // a k16 block of R6 and R7, and the k16 step of R1
inline constexpr int32_t kChunkKeys = 2048;       // C of R0, R8
inline constexpr int32_t kSuperchunkChunks = 16;  // R8
inline constexpr float kLazyThreshold = 8.0F;     // T of R3
inline constexpr int32_t kMaxHeadDim = 1024;      // largest head dim that has a plan

struct NumericPlan {
  Arithmetic arithmetic = Arithmetic::kCpuFma32;
  tessera_dtype dtype = TESSERA_F32;
  int32_t head_dim_qk = 0;
  int32_t head_dim_v = 0;
  int32_t head_dim = 0;  // d of R0: the larger of the two
  int32_t granule = 0;   // G: keys at which the running max may change
  int32_t chunk = kChunkKeys;
  int32_t superchunk_chunks = kSuperchunkChunks;
  float lazy_threshold = kLazyThreshold;
  float bias = 0.0F;  // b of R4
};

// "hopper-k16-f25" or "cpu-fma32".
const char* arithmetic_name(Arithmetic arithmetic);

// "f32", "f16", "bf16"; "unknown" for any other value.
const char* dtype_name(tessera_dtype dtype);

// The constants for these types and head dims. kInvalidArgument for a head dim outside [1, 1024] or an unknown dtype,
// kUnsupported for fp32 under hopper-k16-f25.
Result<NumericPlan> plan_for(Arithmetic arithmetic, tessera_dtype dtype, int32_t head_dim_qk, int32_t head_dim_v);

// c of R0: RN(scale * log2 e). With score modifiers on, the scale has already been applied and c is RN(log2 e) (R1).
float score_scale(float softmax_scale, bool modifiers);

// "tessera-1/cpu-fma32/f32/d64".
std::string contract_id(const NumericPlan& plan);

// Every constant of every arithmetic, in the order in which `tessera contract show` prints them.
struct ContractConstant {
  std::string scope;  // "all", an arithmetic, or "arithmetic/dtype"
  std::string name;
  std::string value;
};
std::vector<ContractConstant> contract_constants();

}  // namespace tessera
