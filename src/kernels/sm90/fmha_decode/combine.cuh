// The second kernel of blocks that take units alone: chains the states of a sequence's chunks (R8) and finishes its
// rows (R9). It is launched while the first one still runs, and waits for it.
#pragma once

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm90/dependent_launch.cuh"
#include "kernels/sm90/fmha_decode/config.h"
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
        has_rows_(has_rows(args, unit.first_row + 8 * part.eight + 2 * part.q, part.group)) {
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
  static constexpr int kPieces = state_pieces(Tag::kValueDim, Tag::kRows);
  // Whether row `row` or the next one exists and, with two heads, has those columns.
  static __device__ __forceinline__ bool has_rows(const DecodeArguments& args, int row, int group) {
    const bool exists = row < args.seqlen_q * static_cast<int>(args.group.value);
    if constexpr (is_twin<Tag>()) {
      const int half = group / (Tag::kValueDim / kDecodeColumnGroup / 2);
      return exists && (RowPlaces<Tag>::half_of(args, row) == half || RowPlaces<Tag>::half_of(args, row + 1) == half);
    }
    return exists;
  }
  int lane_;
  bool has_rows_;
  float4* at_;
};

// R8 over all chunks of the unit's sequence: ascending inside superchunks, superchunks ascending. Over empty states
// without a look at memory unless they are `real`. kAhead states are on their way at a time; those before the first
// chunk or behind the last one count as empty, which changes nothing and needs no branch.
template <class Tag, int kAhead>
__device__ __forceinline__ StatePart chain_chunks(const DecodeArguments& args, const Unit& unit,
                                                  const PartOfState& part, bool real) {
  static_assert(kSuperchunkChunks % kAhead == 0, "states: a superchunk has to end where some of them do");
  const int begin = unit.first_chunk;
  const int end = real ? unit.chunks : begin + 1;
  int first = begin / kAhead * kAhead;
  ChunkState<Tag> state(args, unit, first - begin, part);
  StatePart total;
  total.clear();
  StatePart inner;
  inner.clear();
  float4 o[kAhead];
  float4 rows[kAhead];
  const auto ask = [&](int i, int chunk) {
    state.load(real && chunk >= begin && chunk < end, o[i], rows[i]);
    state.advance(args, 1);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    ask(i, first + i);
  }
#pragma unroll 1
  for (; first < end; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool there = first + i >= begin && first + i < end;
      inner.chain({{there ? rows[i].x : minus_infinity(), there ? rows[i].z : minus_infinity()},
                   {rows[i].y, rows[i].w},
                   {o[i].x, o[i].y, o[i].z, o[i].w}});
      ask(i, first + kAhead + i);
    }
    if ((first + kAhead) % kSuperchunkChunks == 0 || first + kAhead >= end) {
      total.chain(inner);
      inner.clear();
    }
  }
  return total;
}

// With up to four rows only half of a state's lanes have any: a warp then takes two groups of columns.
__host__ __device__ constexpr bool is_half_empty(int64_t rows) {
  return rows <= 4;
}

// Blocks of the kernel below that the device surely holds beside the first kernel's.
inline constexpr uint32_t kFewBlocks = 264;
inline constexpr int kStatesAhead = kSuperchunkChunks < 8 ? kSuperchunkChunks : 8;

// The part of a tile's state that a thread of the second kernel chains.
template <class Tag>
__device__ __forceinline__ PartOfState part_to_chain(const DecodeArguments& args) {
  PartOfState part(static_cast<int>(threadIdx.x / 32), static_cast<int>(blockIdx.y));
  if constexpr (combine_blocks(Tag::kValueDim) > 1) {
    part.group += static_cast<int>(blockIdx.z * (blockDim.x / 32));
  }
  if (is_half_empty(int64_t{args.seqlen_q} * args.group.value)) {
    part.group = 2 * part.group + part.q / 2;
    part.q %= 2;
  }
  return part;
}

// A block takes 8 rows of a tile of a sequence and K/V head, a warp 16 columns of them. The first blocks run everything
// twice, the first time over no states, before there is anything to wait for, so that the second time finds its
// instructions, and so do other blocks.
template <class Tag>
__global__ void __launch_bounds__(combine_warps(Tag::kValueDim) * 32)
    combine_chunks_sm90(const __grid_constant__ DecodeArguments args) {
  fetch_arguments(args);
  const int heads = static_cast<int>(args.heads.value);
  const int batch = divide(static_cast<int>(blockIdx.x), args.heads);
  const PartOfState part = part_to_chain<Tag>(args);
  const UnitFinder<Tag> finder(args);
  const Unit unit = finder.first_of(batch, static_cast<int>(blockIdx.x) - batch * heads);
  const RowPlaces<Tag> places(args, unit, part);
#pragma unroll 1
  for (int pass = blockIdx.y * gridDim.x + blockIdx.x < kFewBlocks ? 0 : 1; pass < 2; ++pass) {
    const bool real = pass == 1;
    if (real) {
      wait_for_primary();
      if (unit.chunks - unit.first_chunk == 1) {
        return;  // finished by the first kernel
      }
    }
    const StatePart total = chain_chunks<Tag, kStatesAhead>(args, unit, part, real);
    finish_rows<Tag>(args, unit, part, places, total, real);
  }
}

}  // namespace tessera::sm90
