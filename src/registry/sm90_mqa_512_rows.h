// Registry row of the sm90 kernel for one K/V head whose V is the first 512 dims of K's rows. Compiled with
// TESSERA_CUDA only.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include "base/status.h"
#include "kernels/sm90/fmha_decode/gather.h"
#include "kernels/sm90/fmha_mqa_512/explain.h"
#include "kernels/sm90/fmha_mqa_512/mqa_512.h"
#include "registry/cuda_device.h"
#include "registry/registry.h"

namespace tessera {

// A problem in its workspace; without one its size can be found only. A K/V without keys is never read; its view then
// describes Q's memory.
class Sm90MqaProblem {
 public:
  Sm90MqaProblem(const tessera_fmha_params& params, void* workspace);

  // Whether the decode kernels are likely to be faster.
  bool is_slow() const;
  // How many parts each tile's keys are to be cut into, and the bytes for a call that cuts them into so many.
  int parts() const;
  size_t workspace_bytes(int parts) const;
  // Sorts the lists of gathered keys, then attends.
  Status run(int parts, int multiprocessors, cudaStream_t stream) const;

 private:
  sm90::MqaProblem mqa_;
  std::array<sm90::GatheredKeys, TESSERA_MAX_SEGMENTS> lists_;
  int32_t count_;
  size_t list_bytes_ = 0;
};

// kernels/sm90/fmha_mqa_512: prefill and decode alike.
size_t sm90_mqa_512_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads);
Status run_sm90_mqa_512(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);
const char* sm90_mqa_512_limit(const tessera_fmha_params& params);
bool sm90_mqa_512_is_slow(const tessera_fmha_params& params);

inline constexpr KernelRow kSm90Mqa512 = {
    .name = "sm90_fmha_mqa_512",
    .operation = TESSERA_OP_FMHA,
    .arithmetic = Arithmetic::kHopperK16F25,
    .summary =
        "CUDA; f16, bf16; head dims 512, of Q and K 576, one K/V head whose V is in K; causal, windows, compressed and "
        "gathered keys, FP8 rows; paged, varlen, used lengths, segments, sinks, f32 O, states, LSE, RoPE of O; rows "
        "aligned to 16 bytes",
    .requirement = kNeedsHopper,
    .available = has_hopper,
    .device = TESSERA_DEVICE_CUDA,
    .support = {.dtypes = 1u << TESSERA_F16 | 1u << TESSERA_BF16,
                .max_head_dim_qk = 576,
                .max_head_dim_v = 512,
                .features = kFeaturePaged | kFeaturePackedVarlen | kFeatureUsedLengths | kFeatureWindow |
                            kFeatureCompressed | kFeatureQueryPositions | kFeatureSegments | kFeatureSinks |
                            kFeatureUnnormalized | kFeatureWideOutput | kFeatureGathered | kFeatureOutputRope |
                            kFeatureFp8Rows},
    .fmha = {.workspace_bytes = sm90_mqa_512_workspace_bytes,
             .run = run_sm90_mqa_512,
             .limit = sm90_mqa_512_limit,
             .slow = sm90_mqa_512_is_slow,
             .explain = sm90::explain_mqa_512},
    .merge = {nullptr},
};

}  // namespace tessera
