// Attention forward and state merge with cp.async and mma.sync, the readable twin of the sm_90 kernels: the same bytes
// under hopper-k16-f25, for every feature of tessera_fmha_params but gathered keys, FP8 rows and RoPE of O. README.md
// describes the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

// fp16 and bf16 with head dims 1..kFmhaSm80MaxHeadDim each. Other problems are refused with kUnsupported.
inline constexpr int32_t kFmhaSm80MaxHeadDim = 256;

// Device memory that run_fmha_sm80 needs on the current device, below 54 MB with 132 multiprocessors; 0 with a single
// segment of at most one chunk of keys. It never needs initialising.
size_t fmha_sm80_workspace_bytes(const tessera_fmha_params& params);

// Enqueues the call on stream.cuda_stream. `params` has passed the API's shape checks and its pointers are device
// memory; lengths, first tokens and page-table entries out of range are absent keys or tokens. `workspace` is 64-byte
// aligned. kUnsupported before anything is enqueued, kDevice if CUDA refuses the launch.
Status run_fmha_sm80(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);

// The chain of R8 over states made by kernels of hopper-k16-f25; any head dim.
Status run_merge_sm80(const tessera_merge_params& params, const tessera_stream& stream);

}  // namespace tessera
