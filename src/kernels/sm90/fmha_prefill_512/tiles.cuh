// Query tiles, how the two blocks of a cluster learn of them, and which keys they see.
#pragma once

#include <cstdint>

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_prefill_512/config.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

// 128 query rows of a head, and the pairs of granules that they see; head < 0: no tile is left.
struct Tile512 {
  int first_row;
  int head, batch;
  int end;         // pairs 0 .. end - 1 are seen by some row
  int first_mask;  // from this one on not by all of them
};

// Keys before this one are seen by query token `token` (R2).
__device__ __forceinline__ int key_end(const Arguments512& args, int token) {
  return args.causal ? min(args.seqlen_k, max(0, args.seqlen_k - args.seqlen_q + token + 1)) : args.seqlen_k;
}

// Sections of heads, in each all heads of the last query tile first: under a causal mask it is the longest.
__device__ __forceinline__ Tile512 tile_512(const Arguments512& args, int index) {
  Tile512 tile{};
  if (index >= args.total_tiles) {
    tile.head = -1;
    return tile;
  }
  const int per_section = args.section_heads * args.query_tiles;
  const int section = index / per_section;
  const int within = index - section * per_section;
  const int first = section * args.section_heads;
  const int width = min(args.section_heads, args.heads_q * args.batch - first);
  const int row_tile = within / width;
  const int pair = first + within - row_tile * width;
  tile.batch = pair / args.heads_q;
  tile.head = pair - tile.batch * args.heads_q;
  tile.first_row = (args.query_tiles - 1 - row_tile) * Layout512::kBlockM;
  const int last = min(tile.first_row + Layout512::kBlockM, args.seqlen_q) - 1;
  tile.end = (key_end(args, last) + Layout512::kPairKeys - 1) / Layout512::kPairKeys;
  tile.first_mask = key_end(args, tile.first_row) / Layout512::kPairKeys;
  return tile;
}

// Relaxed: whoever arrives has only read.
__device__ __forceinline__ void arrive_in_block(uint32_t barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(in_block(barrier, rank))
               : "memory");
}

// One thread of the first block draws tiles for both.
struct TileGiver {
  const Arguments512& args;
  uint32_t shared;

  __device__ __forceinline__ void run() const {
    const int clusters = static_cast<int>(gridDim.x) / 2;
    for (uint32_t round = 0;; ++round) {
      const uint32_t slot = round % Layout512::kTileSlots;
      barrier_wait(shared + Layout512::kTileEmpty + 8 * slot, round / Layout512::kTileSlots % 2 ^ 1U);
      const int index = atomicAdd(args.tile_counter, 1);
      if (index == args.total_tiles + clusters - 1) {
        *args.tile_counter = 0;  // the last number that anybody draws
      }
#pragma unroll
      for (uint32_t block = 0; block < 2; ++block) {
        const uint32_t full = in_block(shared + Layout512::kTileFull + 8 * slot, block);
        asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], 4;" ::"r"(full)
                     : "memory");
        send(in_block(shared + Layout512::kTiles + 16 * slot, block), full, __int_as_float(index));
      }
      if (index >= args.total_tiles) {
        return;
      }
    }
  }
};

// Of every thread that works on tiles: the next one, in the order in which they are given.
__device__ __forceinline__ Tile512 take_tile(const Arguments512& args, uint32_t shared, uint32_t round) {
  const uint32_t slot = round % Layout512::kTileSlots;
  barrier_wait(shared + Layout512::kTileFull + 8 * slot, round / Layout512::kTileSlots % 2);
  return tile_512(args, load_shared(shared + Layout512::kTiles + 16 * slot));
}
// One of a role's threads, once all have taken it.
__device__ __forceinline__ void leave_tile(uint32_t shared, uint32_t round) {
  arrive_in_block(shared + Layout512::kTileEmpty + 8 * (round % Layout512::kTileSlots), 0);
}
inline constexpr uint32_t kTileReaders = 2 * (1 + 2 * Layout512::kConsumers);  // producers, Q threads, consumers

}  // namespace tessera::sm90
