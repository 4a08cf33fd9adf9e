// Query tiles, how the two blocks of a cluster learn of them, and which keys they see.
#pragma once

#include <cstdint>

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_prefill/ragged_tiles.h"
#include "kernels/sm90/fmha_prefill_512/config.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

// 128 query rows of a head, described at a shared address. Fields are read where they are used, so that they take no
// registers.
struct Tile512 {
  uint32_t address;

  enum Field {
    kBatch,     // -1: no further tile
    kHead,      // the first one
    kFirstRow,  // of the sequence; row r is query token r / packed, head r % packed behind the first one
    kRows,      // of the sequence
    kFirstToken,
    kPosition0,
    kFirstKey,  // keys that any row of the tile sees
    kStopKey,
    kFirstPair,  // pairs of granules that have such keys
    kEndPair,
    kOpenFirst,  // those that all rows see whole
    kOpenEnd,
    kBeginBase,  // RaggedSight
    kEndBase,
    kSightLastKey,
    kKeyOrigin,  // of the sequence in packed K and V
    kFields
  };

  __device__ __forceinline__ int get(Field field) const { return load_shared(address + 4 * field); }
  __device__ __forceinline__ int4 vector(Field field) const { return load_shared_int4(address + 4 * field); }
  __device__ __forceinline__ RaggedSight sight(const RaggedArguments& r) const {
    const int4 s = vector(kBeginBase);
    return {s.x, s.y, r.first_key, s.z, get(kPosition0), r.compress_ratio};
  }
};
static_assert(Tile512::kFields * 4 == Layout512::kTileBytes);

// One thread of the first block draws tiles for both.
struct TileGiver {
  const Arguments512& args;
  uint32_t shared;

  // A place in the order of tiles: (sequence, head) pairs in sections whose K and V fit the L2 cache, in each all heads
  // of the last query tile first, which is the longest under a causal mask. Sequences with lengths of their own are
  // sections of their own.
  struct Place {
    int batch, head;
    int row_tile;
  };
  __device__ __forceinline__ Place place_of(int index) const {
    const int32_t* const prefix = args.ragged.tile_prefix;
    int first_pair = 0;
    int pairs = args.tile_heads * args.batch;
    int tiles = args.query_tiles;
    if (prefix != nullptr) {
      const int rank = index / args.tile_heads;
      int low = 0;
      int high = args.batch;  // the last sequence with no more tiles before it
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (prefix[middle] <= rank ? low : high) = middle;
      }
      const int before = prefix[low];
      index -= before * args.tile_heads;
      first_pair = low * args.tile_heads;
      pairs = args.tile_heads;
      tiles = prefix[low + 1] - before;
    }
    const int per_section = args.section_heads * tiles;
    const int section = index / per_section;
    const int within = index - section * per_section;
    const int first = section * args.section_heads;
    const int width = min(args.section_heads, pairs - first);
    const int row_tile = within / width;
    const int pair = first_pair + first + within - row_tile * width;
    const int batch = pair / args.tile_heads;
    return {batch, pair - batch * args.tile_heads, tiles - 1 - row_tile};
  }

  // The description of tile `index`, word by word: the thread has few registers.
  __device__ __forceinline__ void describe(int index) const {
    constexpr int kPairKeys = Layout512::kPairKeys;
    const RaggedArguments& r = args.ragged;
    const Tile512 tile{shared + Layout512::kDraft};
    const auto put = [&](Tile512::Field field, int value) { store_shared(tile.address + 4 * field, value); };
    {
      const Place place = place_of(index);
      put(Tile512::kBatch, place.batch);
      put(Tile512::kHead, place.head * args.packed);
      put(Tile512::kFirstRow, place.row_tile * Layout512::kBlockM);
    }
    const int batch = tile.get(Tile512::kBatch);
    {
      const TokenRange q = token_range(r.cu_seqlens_q, r.seqlens_q, args.seqlen_q, batch);
      put(Tile512::kFirstToken, q.first);
      put(Tile512::kRows, q.count * args.packed);
    }
    {
      const TokenRange k = token_range(r.cu_seqlens_k, r.seqlens_k, args.seqlen_k, batch);
      put(Tile512::kKeyOrigin, k.first);
      put(Tile512::kStopKey, k.count);
    }
    {
      const int keys = tile.get(Tile512::kStopKey);
      put(Tile512::kPosition0,
          r.q_positions != nullptr ? r.q_positions[batch] : keys - tile.get(Tile512::kRows) / args.packed);
      const RaggedSight sight = sight_of(r, tile.get(Tile512::kPosition0), keys);
      put(Tile512::kBeginBase, sight.begin_base);
      put(Tile512::kEndBase, sight.end_base);
      put(Tile512::kSightLastKey, sight.last_key);
    }
    const int first_row = tile.get(Tile512::kFirstRow);
    const int last_row = first_row + Layout512::kBlockM - 1;
    const int rows = tile.get(Tile512::kRows);
    // The token of a row, as far as there are rows.
    const auto token = [&](int row) { return min(row, rows - 1) / args.packed; };
    const int begin = tile.sight(r).begin(token(first_row));
    const int end = max(begin, first_row < rows ? tile.sight(r).end(token(last_row)) : 0);
    put(Tile512::kFirstKey, begin);
    put(Tile512::kStopKey, end);
    put(Tile512::kFirstPair, begin / kPairKeys);
    put(Tile512::kEndPair, begin < end ? (end - 1) / kPairKeys + 1 : begin / kPairKeys);
    put(Tile512::kOpenFirst, (tile.sight(r).begin(token(last_row)) + kPairKeys - 1) / kPairKeys);
    put(Tile512::kOpenEnd, max(0, tile.sight(r).end(token(first_row))) / kPairKeys);
  }
  // To both blocks.
  __device__ __forceinline__ void tell(uint32_t round) const {
#pragma unroll 1
    for (uint32_t block = 0; block < 2; ++block) {
      const uint32_t slot = round % Layout512::kTileSlots;
      const uint32_t full = in_block(shared + Layout512::kTileFull + 8 * slot, block);
      asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(full),
                   "r"(Layout512::kTileBytes)
                   : "memory");
      const uint32_t to = in_block(shared + Layout512::kTiles + Layout512::kTileBytes * slot, block);
#pragma unroll 1
      for (int at = 0; at < Layout512::kTileBytes; at += 16) {
        send(to + at, full, load_piece(shared + Layout512::kDraft + at));
      }
    }
  }

  __device__ __forceinline__ int tiles_of_all() const {
    const int32_t* const prefix = args.ragged.tile_prefix;
    return prefix != nullptr ? prefix[args.batch] * args.tile_heads : args.total_tiles;
  }
  __device__ __forceinline__ void run() const {
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      barrier_wait(shared + Layout512::kTileEmpty + 8 * (round % Layout512::kTileSlots),
                   round / Layout512::kTileSlots % 2 ^ 1U);
      const int index = atomicAdd(args.tile_counter, 1);
      if (index >= tiles_of_all()) {
        if (index == tiles_of_all() + static_cast<int>(gridDim.x) / 2 - 1) {
          *args.tile_counter = 0;  // the last number that anybody draws
        }
        store_shared(shared + Layout512::kDraft + 4 * Tile512::kBatch, -1);
        tell(round);
        return;
      }
      describe(index);
      tell(round);
    }
  }
};

// Of every thread that works on tiles: the next one, in the order in which they are given.
__device__ __forceinline__ Tile512 tile_at(uint32_t shared, uint32_t round) {
  return {shared + Layout512::kTiles + Layout512::kTileBytes * (round % Layout512::kTileSlots)};
}
__device__ __forceinline__ Tile512 take_tile(uint32_t shared, uint32_t round) {
  barrier_wait(shared + Layout512::kTileFull + 8 * (round % Layout512::kTileSlots), round / Layout512::kTileSlots % 2);
  return tile_at(shared, round);
}
// One of a role's threads, once all have read it.
__device__ __forceinline__ void leave_tile(uint32_t shared, uint32_t round) {
  arrive_in_block(shared + Layout512::kTileEmpty + 8 * (round % Layout512::kTileSlots), 0);
}
inline constexpr uint32_t kTileReaders = 2 * (1 + 2 * Layout512::kConsumers);  // producers, Q threads, consumers

}  // namespace tessera::sm90
