// Registry rows of the sm90 kernels, and how tessera_fmha_params becomes what they take. Compiled with TESSERA_CUDA
// only.
#pragma once

#include "kernels/sm90/fmha_prefill/explain.h"
#include "registry/cuda_device.h"
#include "registry/registry.h"

namespace tessera {

// kernels/sm90/fmha_prefill: one row for all its kernels; which one runs is decided by head dim, dtype and mask.
size_t sm90_prefill_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads);
Status run_sm90_prefill(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);
const char* sm90_prefill_limit(const tessera_fmha_params& params);
bool sm90_prefill_is_slow(const tessera_fmha_params& params);

// The ragged ones of them: lengths, masks, layouts and head dims of any kind.
size_t sm90_ragged_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads);
Status run_sm90_ragged(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);
const char* sm90_ragged_limit(const tessera_fmha_params& params);

inline constexpr int32_t kSm90PrefillHeadDims[] = {64, 128, 256};

inline constexpr KernelRow kSm90Prefill = {
    .name = "sm90_fmha_prefill",
    .operation = TESSERA_OP_FMHA,
    .arithmetic = Arithmetic::kHopperK16F25,
    .summary =
        "CUDA; f16, bf16; head dims 64, 128, 256; causal or full; sinks, f32 O, states, LSE; rows aligned to "
        "16 bytes",
    .requirement = kNeedsHopper,
    .available = has_hopper,
    .device = TESSERA_DEVICE_CUDA,
    .support = {.dtypes = 1u << TESSERA_F16 | 1u << TESSERA_BF16,
                .max_head_dim_qk = 256,
                .max_head_dim_v = 256,
                .features = kFeatureSinks | kFeatureUnnormalized | kFeatureWideOutput,
                .head_dims = kSm90PrefillHeadDims},
    .fmha = {.workspace_bytes = sm90_prefill_workspace_bytes,
             .run = run_sm90_prefill,
             .limit = sm90_prefill_limit,
             .slow = sm90_prefill_is_slow,
             .explain = sm90::explain_prefill},
    .merge = {nullptr},
};

inline constexpr KernelRow kSm90Ragged = {
    .name = "sm90_fmha_ragged",
    .operation = TESSERA_OP_FMHA,
    .arithmetic = Arithmetic::kHopperK16F25,
    .summary =
        "CUDA; f16, bf16; head dims 8..256 in steps of 8; paged, varlen, masks, sinks, softcap, ALiBi, split; rows "
        "aligned to 16 bytes",
    .requirement = kNeedsHopper,
    .available = has_hopper,
    .device = TESSERA_DEVICE_CUDA,
    .support = {.dtypes = 1u << TESSERA_F16 | 1u << TESSERA_BF16,
                .max_head_dim_qk = 256,
                .max_head_dim_v = 256,
                .features = kFeaturePaged | kFeaturePackedVarlen | kFeatureUsedLengths | kFeatureWindow |
                            kFeatureCompressed | kFeatureBitMask | kFeatureQueryPositions | kFeatureSinks |
                            kFeatureSoftcap | kFeatureAlibi | kFeatureUnnormalized | kFeatureChunkRange |
                            kFeatureWideOutput},
    .fmha = {.workspace_bytes = sm90_ragged_workspace_bytes,
             .run = run_sm90_ragged,
             .limit = sm90_ragged_limit,
             .slow = sm90_prefill_is_slow,
             .explain = sm90::explain_ragged_prefill},
    .merge = {nullptr},
};

}  // namespace tessera
