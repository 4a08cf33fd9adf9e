// The second kernel of problems whose tiles are cut: chains the states of a tile's chunks in the order of R8 and
// finishes its rows (R9). It is launched while the first one still runs, and waits for it.
#pragma once

#include "contract/plan.h"
#include "kernels/sm90/dependent_launch.cuh"
#include "kernels/sm90/fmha_mqa_512/finish.cuh"
#include "kernels/sm90/fmha_mqa_512/outputs.cuh"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"

namespace tessera::sm90 {

// What of a state a block chains: a group of pieces of one multiplier.
struct MqaSlice {
  static constexpr int kPieces = kMqaPieceGroup;
  static constexpr int kPerMultiplier = MqaState::kPieces / kPieces;
  static constexpr int kCount = kPerMultiplier * MqaTiling::kMultipliers;
  static constexpr int kThreads = 128;
};

// A thread's part of a state that others are chained to.
struct MqaPart {
  StateRows rows;
  float o[4 * MqaSlice::kPieces];

  __device__ __forceinline__ void clear() {
    rows.clear();
#pragma unroll
    for (float& x : o) {
      x = 0.0F;
    }
  }
  // *this := chain(*this, next).
  __device__ __forceinline__ void chain(const MqaPart& next) {
    const ChainWeights w = chain_scalars(rows, next.rows);
#pragma unroll
    for (int i = 0; i < 4 * MqaSlice::kPieces; ++i) {
      o[i] = chain_output(o[i], next.o[i], w, i);
    }
  }
};

// A state on its way.
struct MqaArriving {
  float4 scalars;
  float4 o[MqaSlice::kPieces];

  __device__ __forceinline__ void ask(bool wanted, const float4* state, int slice) {
    scalars = load_if(wanted, state + MqaState::kPieces * 128);
#pragma unroll
    for (int i = 0; i < MqaSlice::kPieces; ++i) {
      o[i] = load_if(wanted, state + (slice * MqaSlice::kPieces + i) * 128);
    }
  }
  __device__ __forceinline__ MqaPart part() const {
    MqaPart to{{{scalars.x, scalars.y}, {scalars.z, scalars.w}}, {}};
#pragma unroll
    for (int i = 0; i < MqaSlice::kPieces; ++i) {
      to.o[4 * i] = o[i].x;
      to.o[4 * i + 1] = o[i].y;
      to.o[4 * i + 2] = o[i].z;
      to.o[4 * i + 3] = o[i].w;
    }
    return to;
  }
};

// Chunks of a segment that the tile sees keys of.
struct MqaChunks {
  int first, end;
};
__device__ __forceinline__ MqaChunks chunks_of(const MqaTile& tile, int segment) {
  constexpr int kChunk = MqaTiling::kChunkGranules;
  return {tile.get(segment, MqaTileWords::kFirst) / kChunk,
          (tile.get(segment, MqaTileWords::kEnd) + kChunk - 1) / kChunk};
}

// A tile by blockIdx.x, a slice of its columns by blockIdx.y.
template <class Tag>
__global__ void __launch_bounds__(MqaSlice::kThreads) combine_mqa_512_sm90(const __grid_constant__ MqaArguments args) {
  using Words = MqaTileWords;
  constexpr int kAhead = 4;
  __shared__ int words[Words::kWords];
  const MqaTile tile{shared_address(words)};
  if (threadIdx.x < 32) {
    describe_tile(args, tile, {static_cast<int>(blockIdx.x), MqaItem::kAllParts}, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  wait_for_primary();
  const int first_state = tile.get(Words::kState);
  if (first_state < 0) {
    return;  // the first kernel has finished it
  }
  const int multiplier = static_cast<int>(blockIdx.y) / MqaSlice::kPerMultiplier;
  const int slice = static_cast<int>(blockIdx.y) % MqaSlice::kPerMultiplier;
  MqaArriving ahead[kAhead];
  int asked = 0;
  int states = 0;
#pragma unroll 1
  for (int segment = 0; segment < args.count; ++segment) {
    states += chunks_of(tile, segment).end - chunks_of(tile, segment).first;
  }
  const auto ask = [&](MqaArriving& to) {
    to.ask(asked < states, MqaState::at(args.states, int64_t{first_state} + asked, multiplier), slice);
    ++asked;
  };
#pragma unroll
  for (MqaArriving& x : ahead) {
    ask(x);
  }
  MqaPart total;  // of the segments before
  total.clear();
#pragma unroll 1
  for (int segment = 0; segment < args.count; ++segment) {
    const auto [first, end] = chunks_of(tile, segment);
    MqaPart superchunks;
    superchunks.clear();
    MqaPart chunks;
    chunks.clear();
#pragma unroll 1
    for (int chunk = first; chunk < end; ++chunk) {
      chunks.chain(ahead[0].part());
#pragma unroll
      for (int i = 1; i < kAhead; ++i) {
        ahead[i - 1] = ahead[i];
      }
      ask(ahead[kAhead - 1]);
      if ((chunk + 1) % kSuperchunkChunks == 0 || chunk + 1 == end) {
        superchunks.chain(chunks);
        chunks.clear();
      }
    }
    total.chain(superchunks);
  }
  const MqaOutputs<Tag> outputs(args, multiplier);
  outputs.template finish<MqaSlice::kPieces>(total.o, slice * MqaSlice::kPieces, total.rows, blockIdx.y == 0, tile);
  outputs.template store<MqaSlice::kPieces>(total.o, slice * MqaSlice::kPieces, tile);
}

}  // namespace tessera::sm90
