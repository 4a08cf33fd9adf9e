// The producer of a prefill kernel: one thread draws query tiles and has K and V copied, one thread per consumer its Q.
#pragma once

#include "kernels/sm90/fmha_prefill/common.cuh"

namespace tessera::sm90 {

template <class Tag>
struct PrefillProducer : PrefillCommon<Tag> {
  using Base = PrefillCommon<Tag>;
  using Base::args, Base::shared;
  using Base::kConsumers, Base::kDim, Base::kTileKeys;
  using typename Base::Layout, typename Base::Position, typename Base::TilePosition;

  // The tile after the ones handed out so far. Blocks start with tile blockIdx.x. Every tile and every block's end take
  // one number each; whoever draws the last one leaves the counter at 0 for the next launch.
  __device__ __forceinline__ int draw_tile() const {
    const int drawn = atomicAdd(args.tile_counter, 1);
    if (drawn == args.order.total - 1) {
      *args.tile_counter = 0;
    }
    return drawn + static_cast<int>(gridDim.x);
  }
  // Hands the tile to the consumers. It is worked out here once and for all: divisions take hundreds of clocks.
  __device__ __forceinline__ void post_tile(TilePosition& at, const QueryTile& query) const {
    barrier_wait(Base::tile_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
    const uint32_t slot = Base::tile_slot(at.stage());
    store_tile(slot, query);
    for (int w = 0; w < kConsumers; ++w) {
      store_shared(own_granules_slot(slot, w), Base::key_tiles(Base::own_rows(query, w).first_row, kWarpgroupRows));
    }
    barrier_arrive(Base::tile_ring().full + 8 * at.stage());
    at.advance();
  }

  // Granules of a tile that are left to copy when the next one is drawn: enough to hide the drawing and the copies of
  // Q.
  static constexpr int kLateGranules = Layout::kWide ? 4 : 2;

  // Draws the block's tiles and feeds K and V.
  __device__ __forceinline__ void produce() const {
    TilePosition tile_at;
    Position at;  // of V; K is kAhead uses before it
    QueryTile query = Base::tile(static_cast<int>(blockIdx.x));
    post_tile(tile_at, query);
    while (query.granules >= 0) {
      QueryTile next{};
      const auto draw = [&] {
        next = Base::tile(draw_tile());
        post_tile(tile_at, next);
      };
      const int head_kv = query.head / args.group;
      // K runs kAhead granules before V: consumers let go of them in this order.
      constexpr int kAhead = Layout::kWide ? 1 : 0;
      if (kAhead == 0 && query.granules == 0) {
        draw();
      }
      Position k_at = at;
#pragma unroll 1
      for (int j = -kAhead; j < query.granules; ++j) {
        // Late: who draws while it has much to do leaves the others nothing to balance with.
        if (j == max(-kAhead, query.granules - kLateGranules)) {
          draw();
        }
        if (j + kAhead < query.granules) {
          load_kv(Base::k_ring().begin_fill(k_at, Layout::kKvBytes), &args.k_map, Layout::kK, k_at.stage(), j + kAhead,
                  head_kv, query.batch);
          k_at.advance();
        }
        if (j >= 0) {
          load_kv(Base::v_ring().begin_fill(at, Layout::kKvBytes), &args.v_map, Layout::kV, at.stage(), j, head_kv,
                  query.batch);
          at.advance();
        }
      }
      query = next;
    }
  }

  // Feeds Q of one consumer, tile after tile, by a thread of its own: a consumer that is done with its rows goes on to
  // the next tile while others still multiply.
  __device__ __forceinline__ void produce_queries(int consumer) const {
    RingPosition<1> q_at;
    TilePosition tile_at;
    while (true) {
      Base::tile_ring().wait_full(tile_at);
      const QueryTile query = load_tile(Base::tile_slot(tile_at.stage()));
      Base::tile_ring().release(tile_at);
      tile_at.advance();
      if (query.granules < 0) {
        return;
      }
      const uint32_t barrier = Base::q_ring(consumer).begin_fill(q_at, Layout::kQBytes);
      for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
        load_box_as(shared + Layout::kQ + consumer * Layout::kQBytes + panel * panel_bytes(kWarpgroupRows), &args.q_map,
                    barrier, panel * kPanelColumns, query.first_row + consumer * kWarpgroupRows, query.head,
                    query.batch, read_once_policy());
      }
      q_at.advance();
    }
  }

  __device__ __forceinline__ void load_kv(uint32_t barrier, const CUtensorMap* map, int ring_offset, uint32_t stage,
                                          int j, int head_kv, int batch) const {
    const uint32_t destination = shared + ring_offset + stage * Layout::kKvBytes;
    for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
      const uint32_t to = destination + panel * panel_bytes(kTileKeys);
      if constexpr (Layout::kWide) {
        load_box_as(to, map, barrier, panel * kPanelColumns, j * kTileKeys, head_kv, batch, read_often_policy());
      } else {
        load_box(to, map, barrier, panel * kPanelColumns, j * kTileKeys, head_kv, batch);
      }
    }
  }
};

}  // namespace tessera::sm90
