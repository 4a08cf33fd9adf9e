// States of chunks in memory: how they are stored, counted and chained (R8) by whoever hands in a sequence's last one.
#pragma once

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/alone.h"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/counters.cuh"
#include "kernels/sm90/fmha_decode/state.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

// Where the part of a chunk's state lies that a warp works on: 16 columns and eight rows.
template <class Tag>
class ChunkState {
  static constexpr int kEights = Tag::kRows / 8;

 public:
  // `chunk` counts from the sequence's first one with keys that anybody sees.
  __device__ __forceinline__ ChunkState(const DecodeArguments& args, const Unit& unit, int chunk,
                                        const PartOfState& part)
      : lane_(4 * part.e + part.q),
        has_rows_(unit.first_row + 8 * part.eight + 2 * part.q < args.seqlen_q * static_cast<int>(args.group.value)) {
    const auto heads = static_cast<int>(args.heads.value);
    at_ = args.states + ((int64_t{unit.batch} * args.state_chunks + chunk) * heads + unit.head) * kPieces +
          (part.group * kEights + part.eight) * kPartPieces;
  }

  __device__ __forceinline__ void store(const StatePart& part) const {
    if (!has_rows_) {
      return;
    }
    __stcg(at_ + lane_, make_float4(part.o[0], part.o[1], part.o[2], part.o[3]));
    if (lane_ < 4) {
      __stcg(at_ + 32 + lane_, make_float4(part.m[0], part.l[0], part.m[1], part.l[1]));
    }
  }

  // Zeros where the lane has no rows, or if it is not wanted.
  __device__ __forceinline__ void load(bool wanted, float4& outputs, float4& scalars) const {
    outputs = load_if(wanted && has_rows_, at_ + lane_);
    scalars = load_if(wanted && has_rows_, at_ + 32 + lane_ % 4);
  }
  // On to the same part of the chunk that is `chunks` further.
  __device__ __forceinline__ void advance(const DecodeArguments& args, int chunks) {
    at_ += chunks * static_cast<int64_t>(args.heads.value) * kPieces;
  }

 private:
  static constexpr int kPieces = state_pieces(Tag::kHeadDim, Tag::kRows);
  int lane_;
  bool has_rows_;
  float4* at_;
};

inline constexpr int kHandInWarps = 4;  // of each of the blocks that take units alone or share one

// R8 over all chunks of the unit's sequence: ascending inside superchunks, superchunks ascending. Over some empty
// states without a look at memory unless they are `real`. kAhead states are on their way at a time.
template <class Tag, int kAhead>
__device__ __forceinline__ StatePart chain_chunks(const DecodeArguments& args, const Unit& unit,
                                                  const PartOfState& part, bool real) {
  const int count = unit.chunks - unit.first_chunk;
  ChunkState<Tag> state(args, unit, 0, part);
  StatePart total;
  total.clear();
  StatePart inner;
  inner.clear();
#pragma unroll 1
  for (int first = 0; first < (real ? count : 1); first += kAhead) {
    float4 o[kAhead];
    float4 rows[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      state.load(real && first + i < count, o[i], rows[i]);
      state.advance(args, 1);
    }
    // Registers cannot be indexed: the loop works on the first ones, and the others move up.
#pragma unroll 1
    for (int chunk = first; chunk < min(count, first + kAhead); ++chunk) {
      inner.chain({{rows[0].x, rows[0].z}, {rows[0].y, rows[0].w}, {o[0].x, o[0].y, o[0].z, o[0].w}});
      if ((unit.first_chunk + chunk + 1) % kSuperchunkChunks == 0 || chunk + 1 == count) {
        total.chain(inner);
        inner.clear();
      }
#pragma unroll
      for (int i = 0; i + 1 < kAhead; ++i) {
        o[i] = o[i + 1];
        rows[i] = rows[i + 1];
      }
    }
  }
  return total;
}

// With up to four rows only half of a state's lanes have any: a warp then takes two groups of columns.
__host__ __device__ constexpr bool is_half_empty(int64_t rows) {
  return rows <= 4;
}

// The chunk of a unit is done: some warps have written its state, a share of the columns each, and each counts it.
// Whoever counts a sequence's last chunk chains all of them and finishes its columns.
template <class Tag, int kAhead>
class HandIn {
  static constexpr int kEights = Tag::kRows / 8;
  static constexpr int kWarps = kHandInWarps * share_of<Tag>();
  static constexpr int kColumnTiles = Tag::kHeadDim / kDecodeColumnGroup / kWarps;

 public:
  // `warp` of those that have the unit's columns.
  __device__ __forceinline__ HandIn(const DecodeArguments& args, const Unit& unit, int warp)
      : args_(args), unit_(unit), warp_(warp) {}

  // Before the first count, at any time.
  __device__ __forceinline__ void claim() const {
    if (threadIdx.x % 32 == 0) {
      claim_counter(counter());
    }
    __syncwarp();
  }

  // Memory is neither read nor written unless the unit is `real`.
  __device__ __forceinline__ void run(bool real) const {
    __syncwarp();
    if (real) {
      bool last = false;
      if (threadIdx.x % 32 == 0) {
        last = count_up(counter()) == static_cast<uint32_t>(unit_.chunks - unit_.first_chunk - 1);
        if (last) {
          *counter() = 0;
        }
      }
      if (!uniform(last)) {
        return;
      }
      __syncwarp();
    }
    // Lanes without rows take the columns of another tile.
    const bool half = kColumnTiles > 1 && is_half_empty(int64_t{args_.seqlen_q} * args_.group.value);
#pragma unroll 1
    for (int i = 0; i < (half ? kColumnTiles / 2 : kColumnTiles * kEights); ++i) {
      PartOfState at(warp_ * kColumnTiles + (half ? 2 * i : i / kEights), half ? 0 : i % kEights);
      if (half) {
        at.group += at.q / 2;
        at.q %= 2;
      }
      const StatePart total = chain_chunks<Tag, kAhead>(args_, unit_, at, real);
      at.q = opaque(at.q);  // where rows go is found out here and not before, for want of registers
      at.eight = opaque(at.eight);
      finish_rows<Tag::kBf16>(args_, unit_, at, RowPlaces(args_, unit_, at), total, real);
    }
  }

 private:
  __device__ __forceinline__ unsigned long long* counter() const {
    return args_.counters + (int64_t{unit_.batch} * args_.heads.value + unit_.head) * kWarps + warp_;
  }

  const DecodeArguments& args_;
  const Unit& unit_;
  int warp_;
};

}  // namespace tessera::sm90
