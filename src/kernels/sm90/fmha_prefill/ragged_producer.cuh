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
      return {clip_box(0, 0, 0, box), 0, false};
    }
    const int entry = key / r.page_size;
    const int page = r.page_table[slot.get(RaggedSlot::kBatch) * r.page_table_stride + entry];
    const bool absent = page < 0 || page >= r.num_pages;
    return {clip_box(key - entry * r.page_size, lead, absent ? 0 : stop, box), absent ? 0 : page, absent};
  }

  __device__ __forceinline__ void load_panels(const CUtensorMap* map, uint32_t barrier, uint32_t destination,
                                              const Box& box, int head_kv) const {
#pragma unroll
    for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
      load_clipped_box(destination + panel * panel_bytes(kTileKeys), map, barrier, panel * kPanelColumns, box.at.row,
                       box.at.sum, head_kv, box.page);
    }
  }

  // Lanes fetch the boxes of a granule together; those of the next granule are looked up while its stage is waited for.
  __device__ __forceinline__ void produce_keys() const {
    const int boxes = kTileKeys >> args.ragged.box_shift;
    const int t = lane();
    const int own_key = t << args.ragged.box_shift;
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
          barrier_arrive_expect(Base::k_ring().full + 8 * at.stage(), Layout::kKvBytes);
        }
        __syncwarp();
        if (t < boxes) {
          load_panels(&args.k_map, Base::k_ring().full + 8 * at.stage(), shared + Layout::kK + stage + within, box,
                      head_kv);
        }
        barrier_wait(Base::v_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
        if (t == 0) {
          barrier_arrive_expect(Base::v_ring().full + 8 * at.stage(), Layout::kKvBytes);
        }
        __syncwarp();
        if (t < boxes) {
          load_panels(&args.v_map, Base::v_ring().full + 8 * at.stage(), shared + Layout::kV + stage + within, box,
                      head_kv);
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
        // No such rows, and nobody looks at their Q. Their box would begin before the tensor, where nothing may be
        // mapped: calls with such boxes ended in illegal accesses.
        barrier_arrive(Base::q_ring(consumer).full);
      } else {
        const ClippedBox box = clip_box(first_token + row, 0, place.w - row, kWarpgroupRows);
        const uint32_t barrier = Base::q_ring(consumer).begin_fill(q_at, Layout::kQBytes);
#pragma unroll
        for (int panel = 0; panel < kDim / kPanelColumns; ++panel) {
          load_clipped_box(shared + Layout::kQ + consumer * Layout::kQBytes + panel * panel_bytes(kWarpgroupRows),
                           &args.q_map, barrier, panel * kPanelColumns, box.row, box.sum, place.y,
                           args.ragged.cu_seqlens_q != nullptr ? 0 : place.x);
        }
      }
      tile_at.advance();
    }
  }
};

}  // namespace tessera::sm90
