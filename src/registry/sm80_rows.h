// Registry rows of the sm80 kernels. Compiled with TESSERA_CUDA only.
#pragma once

#include "kernels/sm80/fmha/explain.h"
#include "kernels/sm80/fmha/fmha_sm80.h"
#include "registry/cuda_device.h"
#include "registry/registry.h"

namespace tessera {

// kernels/sm80/fmha: every feature but gathered keys, FP8 rows and RoPE of O; merges.
size_t sm80_fmha_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads);
Status run_sm80_fmha(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);
const char* sm80_fmha_limit(const tessera_fmha_params& params);
Status run_sm80_merge(const tessera_merge_params& params, const tessera_stream& stream);

inline constexpr KernelRow kSm80Fmha = {
    .name = "sm80_fmha",
    .operation = TESSERA_OP_FMHA,
    .arithmetic = Arithmetic::kHopperK16F25,
    .summary = "CUDA; f16, bf16; head dims 1..256; paged, varlen, masks, segments, sinks, softcap, ALiBi, split",
    .requirement = kNeedsHopper,
    .available = has_hopper,
    .device = TESSERA_DEVICE_CUDA,
    .support = {.dtypes = 1u << TESSERA_F16 | 1u << TESSERA_BF16,
                .max_head_dim_qk = kFmhaSm80MaxHeadDim,
                .max_head_dim_v = kFmhaSm80MaxHeadDim,
                .features = kFeaturePaged | kFeaturePackedVarlen | kFeatureUsedLengths | kFeatureWindow |
                            kFeatureCompressed | kFeatureBitMask | kFeatureQueryPositions | kFeatureSegments |
                            kFeatureSinks | kFeatureSoftcap | kFeatureAlibi | kFeatureUnnormalized |
                            kFeatureChunkRange | kFeatureWideOutput},
    .fmha = {.workspace_bytes = sm80_fmha_workspace_bytes,
             .run = run_sm80_fmha,
             .limit = sm80_fmha_limit,
             .explain = explain_fmha_sm80},
    .merge = {nullptr},
};

inline constexpr KernelRow kSm80Merge = {
    .name = "sm80_merge",
    .operation = TESSERA_OP_MERGE,
    .arithmetic = Arithmetic::kHopperK16F25,
    .summary = "CUDA; states of any hopper-k16-f25 kernel; head dims 1..1024",
    .requirement = kNeedsHopper,
    .available = has_hopper,
    .device = TESSERA_DEVICE_CUDA,
    .support = {.dtypes = 1u << TESSERA_F16 | 1u << TESSERA_BF16,
                .max_head_dim_qk = kMaxHeadDim,
                .max_head_dim_v = kMaxHeadDim,
                .features = kFeatureStridedDim | kFeatureOutputRope},
    .fmha = {nullptr, nullptr},
    .merge = {run_sm80_merge},
};

}  // namespace tessera
