// wgmma with few columns (N = 8 or 16 query rows), both operands in shared memory: S^T = K Q^T and O^T = V^T P^T by the
// contract's k16 steps (R1, R6). The accumulator of shape (64, N) is a float[N / 2] per thread:
//   element 4n + 2h + e  is  row 16 warp + lane / 4 + 8h,  column 8n + 2 (lane mod 4) + e.
#pragma once

#include <cstdint>

#include "kernels/sm90/wgmma.cuh"

namespace tessera::sm90 {

// Matrix descriptor: swizzle by 128, 64 or 32 bytes, or none (0).
constexpr uint64_t narrow_flags(uint32_t leading_bytes, uint32_t stride_bytes, int swizzle_bytes) {
  const uint64_t mode = swizzle_bytes == 128 ? 1 : swizzle_bytes == 64 ? 2 : swizzle_bytes == 32 ? 3 : 0;
  return (static_cast<uint64_t>(leading_bytes >> 4) << 16) | (static_cast<uint64_t>(stride_bytes >> 4) << 32) |
         (mode << 62);
}

// The address field of a descriptor. In a cluster, addresses of shared memory carry the block's rank in higher bits.
__device__ __forceinline__ uint32_t descriptor_address(uint32_t address) {
  return (address & 0x3ffffU) >> 4;
}

// d := A B (first) or d + A B; A (64, 16) K-major, or MN-major if kTransposedA; B (16, N) with the 16 contiguous.
template <Element kElement, bool kTransposedA>
__device__ __forceinline__ void narrow_first(float (&d)[4], uint64_t a, uint64_t b) {
  if constexpr (kElement == Element::kBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 0, 1, 1, %6, 0;"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 0, 1, 1, %6, 0;"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));
  }
}
template <Element kElement, bool kTransposedA>
__device__ __forceinline__ void narrow_next(float (&d)[4], uint64_t a, uint64_t b) {
  if constexpr (kElement == Element::kBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, %6, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, %6, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));
  }
}
template <Element kElement, bool kTransposedA>
__device__ __forceinline__ void narrow_first(float (&d)[8], uint64_t a, uint64_t b) {
  if constexpr (kElement == Element::kBf16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, "
        "0, 1, 1, %10, 0;"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
        : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, "
        "0, 1, 1, %10, 0;"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
        : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));
  }
}
template <Element kElement, bool kTransposedA>
__device__ __forceinline__ void narrow_next(float (&d)[8], uint64_t a, uint64_t b) {
  if constexpr (kElement == Element::kBf16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, "
        "1, 1, 1, %10, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, "
        "1, 1, 1, %10, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b), "n"(kTransposedA ? 1 : 0));
  }
}

}  // namespace tessera::sm90
