// Copies of the copy engine that only this kernel makes, one thin wrapper each.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tessera::sm90 {

// The box of load_box() into the L2 cache only.
__device__ __forceinline__ void prefetch_box(const CUtensorMap* map, int dim, int token, int head, int batch) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(reinterpret_cast<uint64_t>(map)),
      "r"(dim), "r"(token), "r"(head), "r"(batch)
      : "memory");
}

// The box of load_panels_box() into the L2 cache only.
__device__ __forceinline__ void prefetch_panels_box(const CUtensorMap* map, int token, int panel, int head, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(
                   reinterpret_cast<uint64_t>(map)),
               "r"(0), "r"(token), "r"(panel), "r"(head), "r"(batch)
               : "memory");
}

// As load_box() for the maps of make_panels_map(): (dim 0, token, panel, head, batch).
__device__ __forceinline__ void load_panels_box(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                                                int token, int panel, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2];" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(0), "r"(token), "r"(panel), "r"(head), "r"(batch)
      : "memory");
}

// 16 bytes from global to shared memory by every thread on its own, beside what it does next.
__device__ __forceinline__ void copy_piece(uint32_t to, const float4* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Until all of a thread's are there.
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace tessera::sm90
