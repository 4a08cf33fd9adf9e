// Which unit a cluster works on: units are numbered sequence by sequence, in each chunk by chunk, in each head by head,
// so that neighbouring clusters read neighbouring bytes. Lengths are read on the device; nothing else is.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/config.h"

namespace tessera::sm90 {

struct Unit {
  int batch, head;
  int chunk, chunks;  // of the sequence; one without keys has one chunk
  int keys;           // of the sequence
  int64_t first;      // number of the unit (chunk 0, this head); that of chunk c is first + c heads_kv
};

// Chunks of a sequence.
template <int kChunk>
__device__ __forceinline__ int chunks_of(int keys) {
  return keys <= kChunk ? 1 : (keys + kChunk - 1) / kChunk;
}

// Finds units in ascending order of their numbers. All 32 lanes of a warp call together.
template <int kChunk>
class UnitWalker {
 public:
  __device__ __forceinline__ explicit UnitWalker(const DecodeArguments& args) : args_(args) {}

  // False behind the last unit.
  __device__ __forceinline__ bool find(int64_t number, Unit& unit) {
    if (args_.seqlens_k == nullptr) {
      const int chunks = chunks_of<kChunk>(args_.seqlen_k);
      const int per_batch = chunks * args_.heads_kv;
      if (number >= int64_t{per_batch} * args_.batch) {
        return false;
      }
      const auto n = static_cast<uint32_t>(number);
      const uint32_t batch = n / static_cast<uint32_t>(per_batch);
      place(unit, static_cast<int>(batch), static_cast<int>(n - batch * static_cast<uint32_t>(per_batch)), chunks,
            args_.seqlen_k, int64_t{batch} * per_batch);
      return true;
    }
    const int lane = static_cast<int>(threadIdx.x % 32);
    while (base_batch_ < args_.batch) {
      const int b = base_batch_ + lane;
      int keys = 0;
      int64_t units = 0;
      if (b < args_.batch) {
        keys = args_.seqlens_k[b];
        keys = keys < 0 ? 0 : keys > args_.seqlen_k ? args_.seqlen_k : keys;
        units = int64_t{chunks_of<kChunk>(keys)} * args_.heads_kv;
      }
      int64_t end = units;  // inclusive sum
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int64_t below = __shfl_up_sync(0xffffffffU, end, step);
        end += lane >= step ? below : 0;
      }
      const uint32_t behind = __ballot_sync(0xffffffffU, base_units_ + end > number);
      if (behind != 0) {
        const int source = __ffs(static_cast<int>(behind)) - 1;
        const int64_t first = base_units_ + __shfl_sync(0xffffffffU, end - units, source);
        keys = __shfl_sync(0xffffffffU, keys, source);
        place(unit, base_batch_ + source, static_cast<int>(number - first), chunks_of<kChunk>(keys), keys, first);
        return true;
      }
      base_units_ += __shfl_sync(0xffffffffU, end, 31);
      base_batch_ += 32;
    }
    return false;
  }

 private:
  __device__ __forceinline__ void place(Unit& unit, int batch, int inside, int chunks, int keys, int64_t first) const {
    unit.batch = batch;
    unit.chunk = inside / args_.heads_kv;
    unit.head = inside - unit.chunk * args_.heads_kv;
    unit.chunks = chunks;
    unit.keys = keys;
    unit.first = first + unit.head;
  }

  const DecodeArguments& args_;
  int base_batch_ = 0;  // sequences before these 32 hold base_units_ units
  int64_t base_units_ = 0;
};

// Keys of a unit: [begin, end).
template <int kChunk>
struct UnitKeys {
  int begin, end;
  __device__ __forceinline__ explicit UnitKeys(const Unit& unit)
      : begin(unit.chunk * kChunk), end(unit.keys < begin + kChunk ? unit.keys : begin + kChunk) {}
  __device__ __forceinline__ int granules() const {
    return end <= begin ? 0 : (end - begin + kDecodeGranule - 1) / kDecodeGranule;
  }
};

}  // namespace tessera::sm90
