// The sm_90 instructions that CUDA C++ has no function for, one thin wrapper each: mbarriers, the tensor copy engine
// (TMA), named barriers, register reallocation, exp2. Names follow the PTX ISA 8.x; sections are cited where the
// behaviour is not obvious. wgmma is in wgmma.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tessera::sm90 {

inline constexpr uint32_t kAllLanes = 0xffffffffU;  // of a warp, for shuffles and votes

// 32-bit address in the shared window, the form every instruction below takes.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---------------------------------------------------------------- mbarriers (PTX ISA "mbarrier")

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barrier_init visible to the copy engine (async proxy) of this block.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, and `bytes` more that the copy engine must deliver before the phase completes.
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Returns once the phase with this parity has completed. The hardware suspends the thread for a bounded time per try.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The same for a lane of a warp whose lanes wait for different things: asks again and again rather than suspending.
__device__ __forceinline__ void barrier_poll(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done == 0) {
      __nanosleep(64);
    }
  }
}

// ---------------------------------------------------------------- copy engine (PTX ISA "cp.async.bulk.tensor")

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// The box of `map` at (dim, token, head, batch) -> shared memory; elements out of the tensor's bounds arrive as zeros
// and count towards the barrier's bytes.
__device__ __forceinline__ void load_box(uint32_t destination, const CUtensorMap* map, uint32_t barrier, int dim,
                                         int token, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(dim), "r"(token), "r"(head), "r"(batch)
      : "memory");
}

// Policies of the L2 cache. Of bytes that the kernel touches once: they leave first, before K and V of the heads at
// work and the states of chunks.
__device__ __forceinline__ uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Of bytes that many blocks are about to read: they leave last.
__device__ __forceinline__ uint64_t read_often_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// load_box() and the others under such a policy.
__device__ __forceinline__ void load_box_as(uint32_t destination, const CUtensorMap* map, uint32_t barrier, int dim,
                                            int token, int head, int batch, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(dim), "r"(token), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}

// Shared memory -> the box of `map`; elements out of bounds are not written.
__device__ __forceinline__ void store_box_as(const CUtensorMap* map, uint32_t source, int dim, int token, int head,
                                             int batch, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;" ::
          "l"(reinterpret_cast<uint64_t>(map)),
      "r"(source), "r"(dim), "r"(token), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}

// The same for the maps of make_clipped_map(): (dim, row, sum, head, batch).
__device__ __forceinline__ void load_clipped_box(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                                                 int dim, int row, int sum, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2];" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(dim), "r"(row), "r"(sum), "r"(head), "r"(batch)
      : "memory");
}
__device__ __forceinline__ void load_clipped_box_as(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                                                    int dim, int row, int sum, int head, int batch, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(dim), "r"(row), "r"(sum), "r"(head), "r"(batch),
      "l"(policy)
      : "memory");
}
__device__ __forceinline__ void store_clipped_box_as(const CUtensorMap* map, uint32_t source, int dim, int row, int sum,
                                                     int head, int batch, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5, %6}], [%1], "
      "%7;" ::"l"(reinterpret_cast<uint64_t>(map)),
      "r"(source), "r"(dim), "r"(row), "r"(sum), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// The calling thread's committed stores but the newest kPending have read their shared memory.
template <int kPending = 0>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Orders this thread's ordinary shared-memory stores before later accesses of the copy engine and the tensor cores.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---------------------------------------------------------------- global memory

// *address from L2, or zeros: a predicated load, not a branch.
__device__ __forceinline__ float4 load_if(bool wanted, const float4* address) {
  float4 x;
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %5, 0;\n"
      "mov.f32 %0, 0f00000000;\n"
      "mov.f32 %1, 0f00000000;\n"
      "mov.f32 %2, 0f00000000;\n"
      "mov.f32 %3, 0f00000000;\n"
      "@wanted ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "=&f"(x.x), "=&f"(x.y), "=&f"(x.z), "=&f"(x.w)
      : "l"(address), "r"(static_cast<uint32_t>(wanted))
      : "memory");
  return x;
}

// ---------------------------------------------------------------- warps

// Named barrier `id` (1..15; 0 is __syncthreads) over `threads` threads.
__device__ __forceinline__ void named_barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Whether `mine` holds in any thread of the 128 of a warpgroup, all of which call this; named barrier `id`.
__device__ __forceinline__ bool any_of_warpgroup(uint32_t id, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred in;\n"
      ".reg .pred out;\n"
      "setp.ne.u32 in, %1, 0;\n"
      "barrier.cta.red.or.pred.aligned out, %2, 128, in;\n"
      "selp.u32 %0, 1, 0, out;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(mine)), "r"(id)
      : "memory");
  return __any_sync(kAllLanes, any != 0) != 0;
}

// A value that is equal in all lanes, said so that ptxas knows: branches on anything else count as divergent, and wgmma
// around them is serialised (C7520).
template <class T>
__device__ __forceinline__ T uniform(T value) {
  return __shfl_sync(kAllLanes, value, 0);
}

// threadIdx.x, read at this place of the program.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// The same value, of which the compiler no longer knows what it computed from it before.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Rule R4: E of hopper-k16-f25.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tessera::sm90
