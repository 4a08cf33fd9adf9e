// Where rows of K and V lie: contiguous or in pages of any size, and how they get to shared memory in pieces of 16
// bytes (cp.async). Rows that no query may see, or whose page the pool does not have, are zeros and are not read.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/units.cuh"

namespace tessera::sm90 {

// 16 bytes of global memory to shared memory, asynchronously; zeros, and no read at all, unless `present`.
__device__ __forceinline__ void copy_piece(uint32_t destination, const uint16_t* source, bool present) {
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_piece(uint32_t destination, const uint16_t* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source) : "memory");
}

// One arrival per thread, once all its copies so far have landed.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All but the newest kNewest groups of the thread's copies have arrived.
template <int kNewest>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

// Which page the rows of a sequence lie in.
class Pages {
 public:
  __device__ __forceinline__ Pages(const DecodeArguments& args, const Unit& unit)
      : args_(args),
        table_(args.page_table == nullptr ? nullptr : args.page_table + unit.batch * args.page_table_stride),
        batch_(unit.batch),
        seen_(unit.seen),
        keys_(unit.keys) {}

  // The table's entry for a key of a sequence that has some, for page(). Nothing is done with it here, so that several
  // are on their way at a time: a comparison at once would wait for each.
  __device__ __forceinline__ int32_t ask(int key) const {
    int32_t entry = batch_;
    if (table_ != nullptr) {
      const int32_t* from = table_ + divide(min(key, keys_ - 1), args_.page_size);
      asm volatile("ld.global.b32 %0, [%1];" : "=r"(entry) : "l"(from) : "memory");
    }
    return entry;
  }
  // Whether the pool has the page.
  __device__ __forceinline__ bool exists(int32_t entry) const {
    return table_ == nullptr || static_cast<uint32_t>(entry) < static_cast<uint64_t>(args_.num_pages);
  }
  // -1: the row is absent, or nobody sees it. Of contiguous rows the sequence is the page.
  __device__ __forceinline__ int page(int key, int32_t entry) const {
    return key >= seen_ && key < keys_ && exists(entry) ? entry : -1;
  }

  // Elements from the first row of the first page; 0 for a row that is absent.
  __device__ __forceinline__ int64_t offset(int key, int page, const DecodeStrides& strides) const {
    if (page < 0) {
      return 0;
    }
    uint32_t slot = static_cast<uint32_t>(key);
    if (table_ != nullptr) {
      slot -= static_cast<uint32_t>(divide(key, args_.page_size)) * args_.page_size.value;
    }
    return page * strides.batch + slot * strides.token;
  }

 private:
  const DecodeArguments& args_;
  const int32_t* table_;
  int batch_, seen_, keys_;
};

}  // namespace tessera::sm90
