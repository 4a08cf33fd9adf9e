// The producer of a prefill kernel: one thread draws query tiles and feeds the copy engine.
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
  // Hands `index` to the consumers.
  __device__ __forceinline__ void post_tile(TilePosition& at, int index) const {
    barrier_wait(Base::tile_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
    store_shared(Base::tile_slot(at.stage()), index);
    barrier_arrive(Base::tile_ring().full + 8 * at.stage());
    at.advance();
  }

  __device__ __forceinline__ void produce() const {
    RingPosition<1> q_at;
    TilePosition tile_at;
    Position at;  // of V; K is at most one use ahead
    int index = static_cast<int>(blockIdx.x);
    post_tile(tile_at, index);
    while (index < args.order.total) {
      const int next = draw_tile();
      post_tile(tile_at, next);
      const QueryTile query = Base::tile(index);
      const int tiles = Base::key_tiles(query.first_row, query.rows);
      const int head_kv = query.head / args.group;
      // K runs kAhead granules before V: consumers let go of them in this order.
      constexpr int kAhead = Layout::kWide ? 1 : 0;
      Position k_at = at;
#pragma unroll 1
      for (int j = 0; j < tiles + kAhead; ++j) {
        if (j < tiles) {
          load_kv(Base::k_ring().begin_fill(k_at, Layout::kKvBytes), &args.k_map, Layout::kK, k_at.stage(), j, head_kv,
                  query.batch);
          k_at.advance();
        }
        if (j == 0) {
          load_q(query, q_at);
        }
        if (j >= kAhead) {
          load_kv(Base::v_ring().begin_fill(at, Layout::kKvBytes), &args.v_map, Layout::kV, at.stage(), j - kAhead,
                  head_kv, query.batch);
          at.advance();
        }
      }
      if (tiles + kAhead == 0) {
        load_q(query, q_at);  // not needed, but consumers count tiles, not Qs
      }
      q_at.advance();
      index = next;
    }
  }

  __device__ __forceinline__ void load_q(const QueryTile& query, const RingPosition<1>& at) const {
    for (int w = 0; w < kConsumers; ++w) {
      const uint32_t barrier = Base::q_ring(w).begin_fill(at, Layout::kQBytes);
      for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
        load_box(shared + Layout::kQ + w * Layout::kQBytes + panel * panel_bytes(kWarpgroupRows), &args.q_map, barrier,
                 panel * kPanelColumns, query.first_row + w * kWarpgroupRows, query.head, query.batch);
      }
    }
  }

  __device__ __forceinline__ void load_kv(uint32_t barrier, const CUtensorMap* map, int ring_offset, uint32_t stage,
                                          int j, int head_kv, int batch) const {
    const uint32_t destination = shared + ring_offset + stage * Layout::kKvBytes;
    for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
      load_box(destination + panel * panel_bytes(kTileKeys), map, barrier, panel * kPanelColumns, j * kTileKeys,
               head_kv, batch);
    }
  }
};

}  // namespace tessera::sm90
