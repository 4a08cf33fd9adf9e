// Copies of global memory to shared memory by the threads that ask for them (PTX ISA "cp.async").
#pragma once

#include <cstdint>

#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

// 16 bytes of global memory to shared memory, asynchronously; zeros, and no read at all, unless `present`.
__device__ __forceinline__ void copy_row_piece(uint32_t destination, const void* source, bool present) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(present ? 16 : 0)
               : "memory");
}
// The same of bytes that nobody else reads.
__device__ __forceinline__ void copy_own_piece(uint32_t destination, const uint16_t* source, bool present) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(destination), "l"(source),
               "r"(present ? 16 : 0), "l"(read_once_policy())
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// The thread's committed copies but the newest kPending groups have landed.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// One arrival of the thread, once all its copies so far have landed.
__device__ __forceinline__ void arrive_behind_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace tessera::sm90
