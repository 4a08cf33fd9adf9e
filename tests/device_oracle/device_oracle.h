// The rules of attention (docs/contract.md, hopper-k16-f25) one row at a time on the GPU: the integer model of the k16
// step, not the tensor cores. Slow for a GPU and a thousand times faster than the oracle on a CPU, which checks it on
// small problems; it checks the kernels on large ones.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::test {

// Contiguous K/V of one length, causal and windows, any GQA ratio, head dims up to 256, fp16 and bf16; O and LSE as
// `params` describes them (device pointers). cudaErrorInvalidValue for anything else.
cudaError_t enqueue_device_oracle(const tessera_fmha_params& params, cudaStream_t stream);

// The number of bytes in which two arrays of `bytes` bytes differ, added to *count (device memory).
cudaError_t enqueue_count_differences(const void* a, const void* b, int64_t bytes, unsigned long long* count,
                                      cudaStream_t stream);

// `elements` normal-looking 16-bit values of the given standard deviation, the same for the same seed.
cudaError_t enqueue_fill(tessera_dtype dtype, void* data, int64_t elements, float deviation, uint64_t seed,
                         cudaStream_t stream);

}  // namespace tessera::test
