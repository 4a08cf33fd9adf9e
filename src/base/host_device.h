// One spelling for code that the CPU oracle, the CPU kernels and the CUDA kernels share.
//
// TESSERA_HD marks a function that compiles for the host and, under nvcc, also for the device. The primitives below are
// the only fused or bit-level operations that contract headers use, so that the host and the device run the same IEEE
// operations (contract.md: "Written with IEEE operations only").
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TESSERA_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
// Always inlined, so that a caller compiled for a wider instruction set gets that code for the whole chain of calls.
#define TESSERA_HD inline __attribute__((always_inline))
#else
#define TESSERA_HD inline
#endif

namespace tessera {

TESSERA_HD uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}

TESSERA_HD float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// RN(a * b + c), rounded once. The host compiler calls the C library's exact fmaf where the instruction is missing.
TESSERA_HD float fma_rn(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

TESSERA_HD float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

TESSERA_HD float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

TESSERA_HD float sub_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

TESSERA_HD float div_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

inline constexpr float kLog2E = 0x1.715476p+0F;    // 0x3fb8aa3b, log2 e of R0 and R9
inline constexpr float kLn2 = 0x1.62e43p-1F;       // 0x3f317218, ln 2 of R9
inline constexpr float kRoundMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds |x| < 2^22 to an integer

}  // namespace tessera
