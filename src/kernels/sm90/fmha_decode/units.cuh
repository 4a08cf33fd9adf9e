// Which unit a cluster works on: units are numbered sequence by sequence, in each chunk by chunk, in each head by head,
// so that neighbouring clusters read neighbouring bytes. Lengths are read on the device.
//
// The first one of every cluster is its own number. Then clusters of several blocks step by the number of clusters; a
// block alone takes the next one that nobody has, because multiprocessors do not get equal shares of the memory's
// bandwidth. The first K warp finds it and tells the other roles.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/counters.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

__device__ __forceinline__ int divide(int number, const Divisor& divisor) {
  return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(number)) * divisor.multiplier >> divisor.shift);
}

// Twelve integers, as the roles pass it on.
struct alignas(16) Unit {
  int batch;          // -1: behind the last unit
  int head;           // of DecodeArguments::heads
  int kv_head;        // and
  int first_row;      // of the row tile
  int keys;           // of the sequence
  int seen;           // keys before this one are left of every token's window,
  int first_chunk;    // and so are chunks before this one
  int chunk, chunks;  // of the sequence; one without keys has one chunk
  int first;          // number of the unit of the first chunk and this head; that of the next chunk is `heads` further
  int unused[2];
};
static_assert(sizeof(Unit) == kUnitBytes);

// Finds units in ascending order of their numbers. All 32 lanes of a warp call together.
template <class Tag>
class UnitFinder {
  static constexpr int kChunk = Tag::kNumbers.chunk_keys;

 public:
  __device__ __forceinline__ explicit UnitFinder(const DecodeArguments& args) : args_(args) {}

  // Behind the last unit the batch is -1.
  __device__ __forceinline__ Unit find(int number) {
    Unit unit{};
    unit.batch = -1;
    if (args_.seqlens_k == nullptr) {
      const int batch = divide(number, args_.uniform_units);
      if (batch < args_.batch) {
        unit.batch = batch;
        unit.keys = args_.seqlen_k;
        unit.first = batch * static_cast<int>(args_.uniform_units.value);
      }
    }
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    while (args_.seqlens_k != nullptr && base_batch_ < args_.batch) {
      const int keys = length(base_batch_ + lane);
      const int units = base_batch_ + lane < args_.batch ? units_of(keys) : 0;
      int end = units;  // inclusive sum
#pragma unroll 1
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(0xffffffffU, end, step);
        end += lane >= step ? below : 0;
      }
      const uint32_t behind = __ballot_sync(0xffffffffU, base_units_ + end > number);
      if (behind != 0) {
        const int source = __ffs(static_cast<int>(behind)) - 1;
        unit.batch = base_batch_ + source;
        unit.first = base_units_ + __shfl_sync(0xffffffffU, end - units, source);
        unit.keys = __shfl_sync(0xffffffffU, keys, source);
        break;
      }
      base_units_ += __shfl_sync(0xffffffffU, end, 31);
      base_batch_ += 32;
    }
    place(number - unit.first, unit);
    return unit;
  }

  // Units in all.
  __device__ __forceinline__ int total() const {
    if (args_.seqlens_k == nullptr) {
      return static_cast<int>(args_.uniform_units.value) * args_.batch;
    }
    int units = 0;
#pragma unroll 1
    for (int b = static_cast<int>(threadIdx.x % 32); b < args_.batch; b += 32) {
      units += units_of(length(b));
    }
    return static_cast<int>(__reduce_add_sync(0xffffffffU, static_cast<uint32_t>(units)));
  }

 private:
  __device__ __forceinline__ int length(int b) const {
    const int keys = b < args_.batch ? args_.seqlens_k[b] : 0;
    return min(max(keys, 0), args_.seqlen_k);
  }
  static __device__ __forceinline__ int chunks_of(int keys) {
    return keys <= kChunk ? 1 : static_cast<int>(static_cast<uint32_t>(keys + kChunk - 1) / kChunk);
  }
  // The first key that the sequence's first token sees (R2); later tokens see none before it.
  __device__ __forceinline__ int first_seen(int keys) const {
    return args_.window < 0 ? 0 : max(0, keys - args_.seqlen_q - args_.window);
  }
  __device__ __forceinline__ int units_of(int keys) const {
    return (chunks_of(keys) - first_seen(keys) / kChunk) * heads();
  }

  __device__ __forceinline__ int heads() const {
    return static_cast<int>(args_.heads.value);
  }

  // `inside` is the number among the units of the sequence.
  __device__ __forceinline__ void place(int inside, Unit& unit) const {
    const int row = divide(inside, args_.heads);
    unit.head = inside - row * heads();
    unit.seen = first_seen(unit.keys);
    unit.first_chunk = unit.seen / kChunk;
    unit.chunk = unit.first_chunk + row;
    unit.kv_head = divide(unit.head, args_.row_tiles);
    unit.first_row = (unit.head - unit.kv_head * static_cast<int>(args_.row_tiles.value)) * Tag::kSchedule.rows;
    unit.chunks = chunks_of(unit.keys);
    unit.first += unit.head;
  }

  const DecodeArguments& args_;
  int base_batch_ = 0;  // sequences before these 32 hold base_units_ units
  int base_units_ = 0;
};

// Keys of a unit: [begin, end). It begins with the first granule that any token sees keys of.
template <class Tag>
struct UnitKeys {
  static constexpr int kChunk = Tag::kNumbers.chunk_keys;
  static constexpr int kGranule = DecodeLayout<Tag>::kGranule;
  int begin, end;
  __device__ __forceinline__ explicit UnitKeys(const Unit& unit)
      : begin(max(unit.chunk * kChunk, unit.seen / kGranule * kGranule)),
        end(min(unit.keys, (unit.chunk + 1) * kChunk)) {}
  __device__ __forceinline__ int granules() const {
    return end <= begin ? 0 : static_cast<int>(static_cast<uint32_t>(end - begin + kGranule - 1) / kGranule);
  }
};

// The units of this block's cluster, one after the other, for every role but the one that finds them. All lanes of a
// warp call together.
template <class Tag>
class UnitReader {
  using Layout = DecodeLayout<Tag>;

 public:
  __device__ __forceinline__ explicit UnitReader(uint32_t smem) : smem_(smem) {}

  // False behind the last one.
  __device__ __forceinline__ bool next(Unit& unit) {
    barrier_wait(smem_ + Layout::kUnitFull + 8 * at_.stage, at_.parity);
    const uint32_t from = smem_ + Layout::kUnits + kUnitBytes * at_.stage;
    const int4 a = load_shared_int4(from);
    const int4 b = load_shared_int4(from + 16);
    const int4 c = load_shared_int4(from + 32);
    unit = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, {0, 0}};
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(smem_ + Layout::kUnitEmpty + 8 * at_.stage);
    }
    at_.advance();
    return uniform(unit.batch) >= 0;
  }

 private:
  uint32_t smem_;
  StageAt<kUnitSlots> at_;
};

inline constexpr int kAskAhead = 6;  // granules before a unit's end

// The same for the first K warp, which finds the units and tells the other roles.
template <class Tag>
class UnitDispatcher {
  using Layout = DecodeLayout<Tag>;
  static constexpr bool kAlone = Layout::kCluster == 1;

 public:
  __device__ __forceinline__ UnitDispatcher(const DecodeArguments& args, uint32_t smem)
      : finder_(args),
        tickets_(args.tickets),
        smem_(smem),
        clusters_(static_cast<int>(gridDim.x) / Layout::kCluster),
        number_(static_cast<int>(blockIdx.x) / Layout::kCluster) {}

  // Called while the unit's last keys are asked for: by its end the next number shall be here.
  __device__ __forceinline__ void ask() {
    if constexpr (kAlone) {
      if (total_ < 0) {
        total_ = finder_.total();
        if (total_ > clusters_ && threadIdx.x % 32 == 0) {
          claim_counter(tickets_);
        }
      }
      if (total_ > clusters_ && threadIdx.x % 32 == 0) {
        ticket_ = count_relaxed(tickets_);
      }
    }
  }

  __device__ __forceinline__ bool next(Unit& unit) {
    if (started_) {
      step();
    }
    started_ = true;
    unit = finder_.find(number_);
    publish(unit);
    return unit.batch >= 0;
  }

 private:
  __device__ __forceinline__ void step() {
    if constexpr (kAlone) {
      number_ = total_;
      if (total_ > clusters_) {
        const int drawn = __shfl_sync(0xffffffffU, static_cast<int>(count_of(ticket_)), 0);
        number_ = clusters_ + drawn;
        // Every block draws until it finds none: this was the last ticket.
        if (drawn == total_ - 1 && threadIdx.x % 32 == 0) {
          *tickets_ = 0;
        }
      }
    } else {
      number_ += clusters_;
    }
  }

  __device__ __forceinline__ void publish(const Unit& unit) {
    if (threadIdx.x % 32 == 0) {
      const uint32_t slot = at_.stage;
      barrier_wait(smem_ + Layout::kUnitEmpty + 8 * slot, at_.parity ^ 1U);
      const uint32_t to = smem_ + Layout::kUnits + kUnitBytes * slot;
      store_shared(to, make_int4(unit.batch, unit.head, unit.kv_head, unit.first_row));
      store_shared(to + 16, make_int4(unit.keys, unit.seen, unit.first_chunk, unit.chunk));
      store_shared(to + 32, make_int4(unit.chunks, unit.first, 0, 0));
      barrier_arrive(smem_ + Layout::kUnitFull + 8 * slot);
    }
    __syncwarp();
    at_.advance();
  }

  UnitFinder<Tag> finder_;
  unsigned long long* tickets_;
  unsigned long long ticket_ = 0;
  uint32_t smem_;
  int clusters_;
  int number_;
  int total_ = -1;
  bool started_ = false;
  StageAt<kUnitSlots> at_;
};

}  // namespace tessera::sm90
