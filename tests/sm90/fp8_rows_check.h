// Kernels of the FP8 row test: what kernels/sm90/fp8_rows.cuh makes of all codes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::sm90 {

// The ways of fp8_rows.cuh from codes to bf16: the general one, and the short ones by a factor that a scale byte gives
// and by any scale. Codes that are marked as NaN take the general one.
enum class Fp8Way { kGeneral, kByFactor, kByScale };

// values[i * 256 + code]: the bf16 that the device makes of `code` and scales[i]; device memory. By factor: scales are
// 2^(byte - 127).
cudaError_t convert_all_codes(Fp8Way way, const float* scales, int count, uint16_t* values);
// Clocks that a block of 256 threads needs for `repeats` times 16 codes each; device memory.
cudaError_t time_conversions(Fp8Way way, int repeats, long long* clocks);

}  // namespace tessera::sm90
