// The producer warps of a ragged kernel: one feeds K and V, lanes of another Q; ragged_scheduler.cuh tells them which.
#pragma once

#include "kernels/sm90/fmha_prefill/ragged.cuh"

namespace tessera::sm90 {

template <class Tag>
struct RaggedProducer : PrefillCommon<Tag> {
  using Base = PrefillCommon<Tag>;
  using Base::args, Base::shared;
  using Base::kDim, Base::kTileKeys;
  using typename Base::Layout, typename Base::Position, typename Base::TilePosition;
  static constexpr unsigned kAllLanes = 0xffffffffU;

  __device__ __forceinline__ static int lane() { return thread_index() % 32; }

  // The next tile's slot, or an address of 0 behind the last one.
  __device__ __forceinline__ RaggedSlot take(const TilePosition& at) const {
    Base::tile_ring().wait_full(at);
    const RaggedSlot slot{Base::tile_slot(at.stage())};
    return slot.get(RaggedSlot::kBatch) < 0 ? RaggedSlot{0} : slot;
  }
  __device__ __forceinline__ void give_back(TilePosition& at) const {
    __syncwarp();  // all lanes have read it
    if (lane() == 0) {
      Base::tile_ring().release(at);
    }
    at.advance();
  }

  // All threads of the block, before any role begins: panels of Q and K beyond the problem's head dim become zeros and
  // stay so, because they are never fetched. (Boxes that begin behind the last dim are out of bounds: see tma_map.h.)
  __device__ __forceinline__ void clear_unused_panels() const {
    const auto clear = [](uint32_t at, int bytes) {
      for (int i = 16 * thread_index(); i < bytes; i += 16 * Layout::kThreads) {
        store_shared(at + i, make_int4(0, 0, 0, 0));
      }
    };
    for (int panel = args.ragged.qk_panels; panel < kDim / kPanelColumns; ++panel) {
      for (int consumer = 0; consumer < Base::kConsumers; ++consumer) {
        clear(shared + Layout::kQ + consumer * Layout::kQBytes + panel * panel_bytes(kWarpgroupRows),
              panel_bytes(kWarpgroupRows));
      }
      for (int stage = 0; stage < Base::kSchedule.stages; ++stage) {
        clear(shared + Layout::kK + stage * Layout::kKvBytes + panel * panel_bytes(kTileKeys), panel_bytes(kTileKeys));
      }
    }
    fence_async_proxy();
  }

  // ---------------------------------------------------------------- K and V

  // What a lane fetches of a granule: its box of keys, in K and in V.
  struct Box {
    ClippedBox at;
    int page;     // or sequence
    bool absent;  // keys that rows see, but whose page the pool does not have
  };
  // `key`: the first one of the lane's box.
  __device__ __forceinline__ Box box_of(RaggedSlot slot, int key) const {
    const RaggedArguments& r = args.ragged;
    const int box = 1 << r.box_shift;
    const int lead = slot.get(RaggedSlot::kFirstKey) - key;
    const int stop = slot.get(RaggedSlot::kLastKey) - key;
    if (r.page_table == nullptr) {
      return {clip_box(slot.get(RaggedSlot::kKeyOrigin) + key, lead, stop, box),
              r.cu_seqlens_k != nullptr ? 0 : slot.get(RaggedSlot::kBatch), false};
    }
    if (lead >= box || stop <= 0) {
      return {clip_box(0, box, 0, box), 0, false};
    }
    const int entry = key / r.page_size;
    const int page = r.page_table[slot.get(RaggedSlot::kBatch) * r.page_table_stride + entry];
    const bool absent = page < 0 || page >= r.num_pages;
    return {clip_box(key - entry * r.page_size, lead, absent ? 0 : stop, box), absent ? 0 : page, absent};
  }

  __device__ __forceinline__ void load_panels(const CUtensorMap* end, const CUtensorMap* begin, uint32_t barrier,
                                              uint32_t destination, const Box& box, int head_kv, int panels) const {
    const CUtensorMap* const map = box.at.begin ? begin : end;
#pragma unroll
    for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
      if (panel < panels) {
        load_clipped_box(destination + panel * panel_bytes(kTileKeys), map, barrier, panel * kPanelColumns, box.at.row,
                         box.at.sum, head_kv, box.page);
      }
    }
  }

  // Lanes fetch the boxes of a granule together; those of the next granule are looked up while its stage is waited for.
  __device__ __forceinline__ void produce_keys() const {
    const RaggedArguments& r = args.ragged;
    const int boxes = kTileKeys >> r.box_shift;
    const int t = lane();
    const int own_key = t << r.box_shift;
    TilePosition tile_at;
    Position at;  // K and V advance together
#pragma unroll 1
    for (RaggedSlot slot = take(tile_at); slot.address != 0; slot = take(tile_at)) {
      if (t == 0) {
        barrier_arrive(Base::taken());
      }
      const int head_kv = slot.get(RaggedSlot::kHead) / args.group;
      const int end = slot.get(RaggedSlot::kEndGranule);
#pragma unroll 1
      for (int j = slot.get(RaggedSlot::kFirstGranule); j < end; ++j, at.advance()) {
        Box box{};
        if (t < boxes) {
          box = box_of(slot, j * kTileKeys + own_key);
        }
        const uint32_t absent = __ballot_sync(kAllLanes, box.absent);
        const uint32_t within = static_cast<uint32_t>(own_key) * kPanelRowBytes;
        const uint32_t stage = at.stage() * Layout::kKvBytes;
        barrier_wait(Base::k_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
        if (t == 0) {
          store_shared(Base::absent_word(at.stage()), static_cast<int>(absent));
          barrier_arrive_expect(Base::k_ring().full + 8 * at.stage(), r.qk_panels * panel_bytes(kTileKeys));
        }
        __syncwarp();
        if (t < boxes) {
          load_panels(&args.k_map, &r.k_begin_map, Base::k_ring().full + 8 * at.stage(),
                      shared + Layout::kK + stage + within, box, head_kv, r.qk_panels);
        }
        barrier_wait(Base::v_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
        if (t == 0) {
          barrier_arrive_expect(Base::v_ring().full + 8 * at.stage(), r.v_panels * panel_bytes(kTileKeys));
        }
        __syncwarp();
        if (t < boxes) {
          load_panels(&args.v_map, &r.v_begin_map, Base::v_ring().full + 8 * at.stage(),
                      shared + Layout::kV + stage + within, box, head_kv, r.v_panels);
        }
      }
      give_back(tile_at);
    }
  }

  // ---------------------------------------------------------------- Q

  // Feeds Q of one consumer, tile after tile. One lane per consumer: they wait for different things.
  __device__ __forceinline__ void produce_queries(int consumer) const {
    TilePosition tile_at;
#pragma unroll 1
    while (true) {
      barrier_poll(Base::tile_ring().full + 8 * tile_at.stage(), tile_at.parity());
      const RaggedSlot slot{Base::tile_slot(tile_at.stage())};
      const int4 place = slot.vector(RaggedSlot::kBatch);  // batch, head, first row, tokens
      const int first_token = slot.get(RaggedSlot::kFirstToken);
      if (place.x < 0) {
        return;
      }
      Base::tile_ring().release(tile_at);
      const int row = place.z + consumer * kWarpgroupRows;
      const RingPosition<1> q_at{tile_at.use};
      barrier_poll(Base::q_ring(consumer).empty, q_at.parity() ^ 1U);
      if (row < 0) {
        barrier_arrive(Base::q_ring(consumer).full);  // no such rows, and nobody looks at their Q
      } else {
        const ClippedBox box = clip_box(first_token + row, 0, place.w - row, kWarpgroupRows);
        const int panels = args.ragged.qk_panels;
        const uint32_t barrier = Base::q_ring(consumer).full;
        barrier_arrive_expect(barrier, panels * panel_bytes(kWarpgroupRows));
#pragma unroll
        for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
          if (panel < panels) {
            load_clipped_box(shared + Layout::kQ + consumer * Layout::kQBytes + panel * panel_bytes(kWarpgroupRows),
                             &args.q_map, barrier, panel * kPanelColumns, box.row, box.sum, place.y,
                             args.ragged.cu_seqlens_q != nullptr ? 0 : place.x);
          }
        }
      }
      tile_at.advance();
    }
  }
};

}  // namespace tessera::sm90
