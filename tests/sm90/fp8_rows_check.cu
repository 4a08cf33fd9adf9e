#include "sm90/fp8_rows_check.h"

#include "kernels/sm90/fp8_rows.cuh"

namespace tessera::sm90 {
namespace {

constexpr int kGroups = 16;  // of 16 codes

__global__ void convert(const float* scales, uint16_t* values) {
  const int64_t at = blockIdx.x;
  const uint32_t first = threadIdx.x * 0x10101010U + 0x03020100U;
  constexpr uint32_t kNext = 0x04040404U;
  uint4 converted[2];
  fp8x16_to_bf16x16(make_uint4(first, first + kNext, first + 2 * kNext, first + 3 * kNext), scales[at], converted);
  auto* to = reinterpret_cast<uint4*>(values + at * 256 + 16 * threadIdx.x);
  to[0] = converted[0];
  to[1] = converted[1];
}

__global__ void time_conversion(int repeats, long long* clocks) {
  uint4 codes = make_uint4(threadIdx.x * 0x01030507U, 0x11223344U, threadIdx.x + 0x21222324U, 0x31323334U);
  const float scale = 1.0F + static_cast<float>(repeats);
  __syncthreads();
  const long long begin = clock64();
  for (int i = 0; i < repeats; ++i) {
    uint4 values[2];
    fp8x16_to_bf16x16(codes, scale, values);
    codes = make_uint4(values[0].x ^ values[0].y, values[0].z ^ values[0].w, values[1].x ^ values[1].y,
                       values[1].z ^ values[1].w);
  }
  __syncthreads();
  if (threadIdx.x == 0) clocks[0] = clock64() - begin;
  if ((codes.x ^ codes.y ^ codes.z ^ codes.w) == 0x12345678U) clocks[1] = 1;  // so that the loop is needed
}

}  // namespace

cudaError_t convert_all_codes(const float* scales, int count, uint16_t* values) {
  convert<<<count, kGroups>>>(scales, values);
  return cudaGetLastError();
}

cudaError_t time_conversions(int repeats, long long* clocks) {
  time_conversion<<<1, 256>>>(repeats, clocks);
  return cudaGetLastError();
}

}  // namespace tessera::sm90
