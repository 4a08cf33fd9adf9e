// Registry row of the sm90 decode kernels. Compiled with TESSERA_CUDA only.
#pragma once

#include "kernels/sm90/fmha_decode/decode.h"
#include "registry/cuda_device.h"
#include "registry/registry.h"

namespace tessera {

// The problem without its scratch. A K/V without keys is never read; its view then describes Q's memory.
sm90::DecodeProblem sm90_decode_problem(const tessera_fmha_params& params);

// kernels/sm90/fmha_decode: one row for all its kernels; which one runs is decided by shapes and dtype.
size_t sm90_decode_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads);
Status run_sm90_decode(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);
const char* sm90_decode_limit(const tessera_fmha_params& params);
bool sm90_decode_is_slow(const tessera_fmha_params& params);
std::string explain_sm90_decode(const tessera_fmha_params& params);

inline constexpr KernelRow kSm90Decode = {
    .name = "sm90_fmha_decode",
    .operation = TESSERA_OP_FMHA,
    .arithmetic = Arithmetic::kHopperK16F25,
    .summary =
        "CUDA; f16, bf16; head dims 8..256 in steps of 8; few query tokens; causal, windows, custom bits; paged, used "
        "lengths, sinks, softcap, ALiBi, f32 O, states, LSE; rows aligned to 16 bytes",
    .requirement = kNeedsHopper,
    .available = has_hopper,
    .device = TESSERA_DEVICE_CUDA,
    .support = {.dtypes = 1u << TESSERA_F16 | 1u << TESSERA_BF16,
                .max_head_dim_qk = 256,
                .max_head_dim_v = 256,
                .features = kFeaturePaged | kFeatureUsedLengths | kFeatureWindow | kFeatureBitMask | kFeatureSinks |
                            kFeatureSoftcap | kFeatureAlibi | kFeatureUnnormalized | kFeatureWideOutput},
    .fmha = {.workspace_bytes = sm90_decode_workspace_bytes,
             .run = run_sm90_decode,
             .limit = sm90_decode_limit,
             .slow = sm90_decode_is_slow,
             .explain = explain_sm90_decode},
    .merge = {nullptr},
};

}  // namespace tessera
