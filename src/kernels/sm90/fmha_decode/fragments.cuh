// Products of one warp (PTX ISA "mma.m16n8k16", "ldmatrix"), one thin wrapper each: the same steps of 16 as wgmma (R1,
// R6), for blocks that are too small for warpgroups.
#pragma once

#include <cstdint>

namespace tessera::sm90 {

// Four 8 x 8 matrices of 16-bit elements; lanes 8 i .. 8 i + 7 give the rows of matrix i. Lane l gets elements
// 2 (l mod 4) and the next of row l / 4 of each.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
// The same of the transposed matrices.
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// Two 8 x 8 matrices of 16-bit elements, transposed, to the rows whose addresses lanes 0..7 and 8..15 give.
__device__ __forceinline__ void store_transposed(uint32_t row, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(first), "r"(second)
               : "memory");
}

// d := fdot(d; a, b) for d (16, 8), a (16, 16), b (16, 8), e = lane / 4, q = lane mod 4: d[2 h + r] is row e + 8 h,
// column 2 q + r; a[h + 2 k] row e + 8 h, columns 8 k + 2 q and the next; b[k] rows 8 k + 2 q and the next, column e.
template <bool kBf16>
__device__ __forceinline__ void multiply_block(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace tessera::sm90
