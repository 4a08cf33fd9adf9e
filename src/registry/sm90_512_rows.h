// Registry row of the sm90 prefill kernel of head dim 512. Compiled with TESSERA_CUDA only.
#pragma once

#include "kernels/sm90/fmha_prefill_512/explain.h"
#include "registry/cuda_device.h"
#include "registry/registry.h"

namespace tessera {

// kernels/sm90/fmha_prefill_512: head dims that no other sm90 kernel has.
size_t sm90_prefill_512_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads);
Status run_sm90_prefill_512(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);
const char* sm90_prefill_512_limit(const tessera_fmha_params& params);

inline constexpr KernelRow kSm90Prefill512 = {
    .name = "sm90_fmha_prefill_512",
    .operation = TESSERA_OP_FMHA,
    .arithmetic = Arithmetic::kHopperK16F25,
    .summary =
        "CUDA; f16, bf16; head dims 264..512 in steps of 8; paged, varlen, windows, sinks, f32 O, split; rows "
        "aligned to 16 bytes",
    .requirement = kNeedsHopper,
    .available = has_hopper,
    .device = TESSERA_DEVICE_CUDA,
    .support = {.dtypes = 1u << TESSERA_F16 | 1u << TESSERA_BF16,
                .max_head_dim_qk = 512,
                .max_head_dim_v = 512,
                .features = kFeaturePaged | kFeaturePackedVarlen | kFeatureUsedLengths | kFeatureWindow |
                            kFeatureCompressed | kFeatureQueryPositions | kFeatureSinks | kFeatureUnnormalized |
                            kFeatureChunkRange | kFeatureWideOutput},
    .fmha = {.workspace_bytes = sm90_prefill_512_workspace_bytes,
             .run = run_sm90_prefill_512,
             .limit = sm90_prefill_512_limit,
             .explain = sm90::explain_prefill_512},
    .merge = {nullptr},
};

}  // namespace tessera
