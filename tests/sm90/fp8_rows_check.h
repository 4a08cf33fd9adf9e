// Kernels of the FP8 row test: what kernels/sm90/fp8_rows.cuh makes of all codes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::sm90 {

// values[i * 256 + code]: the bf16 that the device makes of `code` and scales[i]; device memory.
cudaError_t convert_all_codes(const float* scales, int count, uint16_t* values);
// Clocks that a block of 256 threads needs for `repeats` times 16 codes each; device memory.
cudaError_t time_conversions(int repeats, long long* clocks);

}  // namespace tessera::sm90
