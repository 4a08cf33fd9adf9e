// wgmma of O^T += V^T P^T for the columns of V that one panel holds (PTX ISA "Asynchronous Warpgroup Level Matrix
// Instructions"): the same steps of 16 keys as mma.m16n8k16 (R6), 64 columns at a time.
#pragma once

#include <cstdint>

#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace tessera::sm90 {

// Rows whose k16 step is a row of 32 bytes of its own ("32-byte swizzle": 16-byte piece p of row r stands at piece
// p ^ (r / 4 mod 2)); groups of 8 rows are 256 bytes apart, and a step's rows follow each other.
struct StepTile {
  static constexpr uint64_t kFlags = uint64_t{256 >> 4} << 32 | uint64_t{3} << 62;
};

// d (64, N) := d + A B, A^T (16, 64) in shared memory with the 64 contiguous (MN-major), B^T (N, 16) with the 16
// contiguous. d[4 n + 2 h + e] is column 16 warp + lane / 4 + 8 h of row 8 n + 2 (lane mod 4) + e.
template <Element kElement>
requires(kElement == Element::kBf16) __device__ __forceinline__
    void wgmma_columns(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 1, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b));
}

template <Element kElement>
requires(kElement == Element::kF16) __device__ __forceinline__
    void wgmma_columns(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
      "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 1, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b));
}

template <Element kElement>
requires(kElement == Element::kBf16) __device__ __forceinline__
    void wgmma_columns(float (&d)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 1, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b));
}

template <Element kElement>
requires(kElement == Element::kF16) __device__ __forceinline__
    void wgmma_columns(float (&d)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 1, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b));
}

template <Element kElement>
requires(kElement == Element::kBf16) __device__ __forceinline__
    void wgmma_columns(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 1, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}

template <Element kElement>
requires(kElement == Element::kF16) __device__ __forceinline__
    void wgmma_columns(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 1, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}

}  // namespace tessera::sm90
