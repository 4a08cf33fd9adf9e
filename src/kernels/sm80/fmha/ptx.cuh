// The instructions of sm_80 that CUDA C++ has no function for, one thin wrapper each. Names follow the PTX ISA.
#pragma once

#include <cstdint>

namespace tessera::sm80 {

// The same number, of which the compiler knows nothing: what follows from it is computed here, not ahead of a loop.
__device__ __forceinline__ int forget(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Forgotten at every use: addresses of shared memory are cheaper to compute again than to keep through a loop.
__device__ __forceinline__ int thread() {
  return forget(static_cast<int>(threadIdx.x));
}
__device__ __forceinline__ int lane() {
  return thread() % 32;
}
__device__ __forceinline__ int warp() {
  return thread() / 32;
}

// 32-bit address in the shared window, the form every instruction below takes.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes of global memory to shared memory, asynchronously; zeros, and no read at all, unless `present`.
__device__ __forceinline__ void copy_async(uint32_t destination, const void* source, bool present) {
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

// Closes a group of this thread's copies.
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// All but the newest `kNewest` groups of this thread have arrived.
template <int kNewest>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

// A barrier in shared memory whose phases end after `arrivals` arrivals. Its first phase has parity 0.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// Arrives when this thread's copies so far have.
__device__ __forceinline__ void barrier_arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Until the phase of that parity has ended. A barrier in its first phase counts as behind one of parity 1.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra end;\nbra again;\n"
      "end:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Registers per thread of the warpgroup from here on. Of sm_90a alone, as are the waits above; an sm_80 build would do
// without a staging warpgroup.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A barrier of some of the block's warps; number 0 is that of __syncthreads.
template <int kNumber, int kThreads>
__device__ __forceinline__ void barrier_of_warps() {
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t destination, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(destination), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

// Four 8 x 8 matrices of 16-bit elements. Lanes 8i..8i+7 give the addresses of the rows of matrix i; lane l receives
// elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// The same of the transposed matrices.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// d := fdot(d; a, b) (contract.md) for d (16, 8), a (16, 16), b (16, 8). A lane holds rows r = lane / 4 and r + 8 and
// columns q = 2 (lane % 4) and q + 1: d[2h + e] = D[r + 8h][q + e]; a[h + 2k] = A[r + 8h][8k + q ..];
// b[k] = B[8k + q ..][r].
template <bool kBf16>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Rule R4: E of hopper-k16-f25.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Rule R5: two numbers rounded to nearest even, `low` in the low half.
template <bool kBf16>
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
  uint32_t pair;
  if constexpr (kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

}  // namespace tessera::sm80
