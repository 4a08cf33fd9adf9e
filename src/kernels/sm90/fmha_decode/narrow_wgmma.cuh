// wgmma whose first operand is in registers and that has 16 columns: O += P V by the contract's k16 steps (R6). The
// accumulator of shape (64, 16) is a float[8] per thread:
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

// d += A B for A (64, 16) in registers, a[h + 2 k] rows lane / 4 + 8 h of the warp's 16, columns 8 k + 2 (lane mod 4) and
// the next, and B (16, 16) with the 16 columns contiguous.
template <Element kElement>
__device__ __forceinline__ void add_values(float (&d)[8], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint64_t b) {
  if constexpr (kElement == Element::kBf16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, "
        "%12, 1, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, "
        "%12, 1, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
  }
}

}  // namespace tessera::sm90
