// Which unit a block or a cluster works on: units are numbered sequence by sequence, in each chunk by chunk, in each
// head by head, so that neighbouring blocks read neighbouring bytes. Lengths are read on the device.
//
// Every warp finds its unit for itself.
#pragma once

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

// Asks for all of the arguments at once: they arrive in lines of 64 bytes, each of which would else be waited for when
// its first number is needed.
__device__ __forceinline__ void fetch_arguments(const DecodeArguments& args) {
  asm volatile("" ::"l"(args.k), "l"(args.v_strides.batch), "l"(args.num_pages), "l"(args.q_strides.token),
               "l"(args.lse.stride_batch), "l"(args.row_sum.data), "l"(args.seqlens_k), "r"(args.window),
               "r"(args.uniform_units.shift), "l"(args.states)
               : "memory");
}

struct Unit {
  int batch;          // -1: behind the last unit
  int head;           // of DecodeArguments::heads
  int kv_head;        // and
  int first_row;      // of the row tile
  int keys;           // of the sequence
  int seen;           // keys before this one are left of every token's window,
  int first_chunk;    // and so are chunks before this one
  int chunk, chunks;  // of the sequence; one without keys has one chunk
  int first;          // number of the unit of the first chunk and this head; that of the next chunk is `heads` further
  // Where there are several segments:
  int position;  // of the first query token, and
  int length;    // of the sequence, keys behind those that anybody sees included
};

// Keys [first, end) of `keys` that a token at `position` sees (R2, custom bits aside), if there are any between them;
// where there are several segments.
struct Sight {
  int first, end;
};
__device__ __forceinline__ Sight sight_of(const DecodeArguments& args, int64_t position, int keys) {
  int64_t first = 0;
  int64_t end = keys;
  if (args.compress_ratio > 0) {
    const auto behind = static_cast<uint32_t>(max(int64_t{0}, position + 1));
    end = min(end, int64_t{behind / static_cast<uint32_t>(args.compress_ratio)});
  } else {
    end = args.causal != 0 ? min(end, position + 1) : end;
    end = args.window_right >= 0 ? min(end, position + 1 + args.window_right) : end;
    first = args.window >= 0 ? max(first, position - args.window) : first;
  }
  return {static_cast<int>(min(first, int64_t{keys})), static_cast<int>(max(end, int64_t{0}))};
}

// Finds units in ascending order of their numbers. All 32 lanes of a warp call together.
template <class Tag>
class UnitFinder {
  static constexpr int kChunk = kChunkKeys;

 public:
  __device__ __forceinline__ explicit UnitFinder(const DecodeArguments& args) : args_(args) {}

  // Behind the last unit the batch is -1.
  __device__ __forceinline__ Unit find(int number) {
    if constexpr (has_segments<Tag>()) {
      // The block's n-th number, n = 0, 1, .., stands for its n-th one among the blocks of its segment.
      number = static_cast<int>(blockIdx.x) - args_.first_block +
               static_cast<int>(static_cast<uint32_t>(number) / gridDim.x) * args_.blocks;
      base_batch_ = base_units_ = 0;  // counted again, because registers are few
    }
    Unit unit{};
    unit.batch = -1;
    if (!is_ragged()) {
      const int batch = divide(number, args_.uniform_units);
      if (batch < args_.batch) {
        unit.batch = batch;
        unit.keys = args_.seqlen_k;
        unit.first = batch * static_cast<int>(args_.uniform_units.value);
      }
    }
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    while (is_ragged() && base_batch_ < args_.batch) {
      const int keys = length(base_batch_ + lane);
      const int units = base_batch_ + lane < args_.batch ? units_of(base_batch_ + lane, keys) : 0;
      int end = units;  // inclusive sum
#pragma unroll 1
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(kAllLanes, end, step);
        end += lane >= step ? below : 0;
      }
      const uint32_t behind = __ballot_sync(kAllLanes, base_units_ + end > number);
      if (behind != 0) {
        const int source = __ffs(static_cast<int>(behind)) - 1;
        unit.batch = base_batch_ + source;
        unit.first = base_units_ + __shfl_sync(kAllLanes, end - units, source);
        unit.keys = __shfl_sync(kAllLanes, keys, source);
        break;
      }
      base_units_ += __shfl_sync(kAllLanes, end, 31);
      base_batch_ += 32;
    }
    place(number - unit.first, unit);
    return unit;
  }

  // The unit of the first chunk of a sequence that anybody sees, but for its number.
  __device__ __forceinline__ Unit first_of(int batch, int head) const {
    Unit unit{};
    unit.batch = batch;
    unit.keys = args_.seqlens_k == nullptr ? args_.seqlen_k : length(batch);
    place(head, unit);
    return unit;
  }

 private:
  __device__ __forceinline__ bool is_ragged() const {
    return has_segments<Tag>() || args_.seqlens_k != nullptr;
  }
  __device__ __forceinline__ int length(int b) const {
    if constexpr (has_segments<Tag>()) {
      if (args_.seqlens_k == nullptr || b < 0) {
        return b < 0 ? 0 : args_.seqlen_k;
      }
    }
    const int keys = b < args_.batch ? args_.seqlens_k[b] : 0;
    return min(max(keys, 0), args_.seqlen_k);
  }
  // Keys of the sequence that anybody sees, where there are several segments: positions may be anything.
  __device__ __forceinline__ void look(Unit& unit) const {
    unit.length = length(unit.batch);
    unit.position = unit.length - args_.seqlen_q;
    if (args_.q_positions != nullptr && static_cast<uint32_t>(unit.batch) < static_cast<uint32_t>(args_.batch)) {
      unit.position = args_.q_positions[unit.batch];
    }
    const int first = sight_of(args_, unit.position, unit.length).first;
    const int end = sight_of(args_, int64_t{unit.position} + args_.seqlen_q - 1, unit.length).end;
    unit.keys = first < end ? end : 0;
    unit.seen = first < end ? first : 0;
  }
  static __device__ __forceinline__ int chunks_of(int keys) {
    return keys <= kChunk ? 1 : static_cast<int>(static_cast<uint32_t>(keys + kChunk - 1) / kChunk);
  }
  // The first key that the sequence's first token sees (R2); later tokens see none before it.
  __device__ __forceinline__ int first_seen(int keys) const {
    return args_.window < 0 ? 0 : max(0, keys - args_.seqlen_q - args_.window);
  }
  // Units of sequence `batch`, which has `keys` keys.
  __device__ __forceinline__ int units_of([[maybe_unused]] int batch, int keys) const {
    if constexpr (has_segments<Tag>()) {
      Unit unit{};
      unit.batch = batch;
      look(unit);
      return (chunks_of(unit.keys) - unit.seen / kChunk) * heads();
    }
    return (chunks_of(keys) - first_seen(keys) / kChunk) * heads();
  }

  __device__ __forceinline__ int heads() const {
    return static_cast<int>(args_.heads.value);
  }

  // `inside` is the number among the units of the sequence.
  __device__ __forceinline__ void place(int inside, Unit& unit) const {
    const int row = divide(inside, args_.heads);
    unit.head = inside - row * heads();
    if constexpr (has_segments<Tag>()) {
      look(unit);
    } else {
      unit.seen = first_seen(unit.keys);
    }
    unit.first_chunk = unit.seen / kChunk;
    unit.chunk = unit.first_chunk + row;
    unit.kv_head = divide(unit.head, args_.row_tiles);
    unit.first_row = (unit.head - unit.kv_head * static_cast<int>(args_.row_tiles.value)) * Tag::kRows;
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
  static constexpr int kChunk = kChunkKeys;
  static constexpr int kGranule = granule_keys(Tag::kHeadDim);
  int begin, end;
  __device__ __forceinline__ explicit UnitKeys(const Unit& unit)
      : begin(max(unit.chunk * kChunk, unit.seen / kGranule * kGranule)),
        end(min(unit.keys, (unit.chunk + 1) * kChunk)) {}
  __device__ __forceinline__ int granules() const {
    return end <= begin ? 0 : static_cast<int>(static_cast<uint32_t>(end - begin + kGranule - 1) / kGranule);
  }
};

}  // namespace tessera::sm90
