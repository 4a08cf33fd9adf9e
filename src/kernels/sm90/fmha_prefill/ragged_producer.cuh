// The producer warps of a ragged kernel: one feeds K and V, or two do at head dim 256, where V would come late after
// all that finding K takes; lanes of another feed Q. ragged_scheduler.cuh tells them which.
#pragma once

#include "kernels/sm90/fmha_prefill/ragged.cuh"

namespace tessera::sm90 {

template <class Tag>
struct RaggedProducer : PrefillCommon<Tag> {
  using Base = PrefillCommon<Tag>;
  using Base::args, Base::shared;
  using Base::kDim, Base::kTileKeys;
  using typename Base::Layout, typename Base::Position, typename Base::TilePosition;
  // The next tile is drawn when that many granules of the current one are left to fetch: what a block has drawn no
  // other block can take, but the tile has to be found before its K is due.
  static constexpr int kDrawAhead = Layout::kWide ? 4 : 2;

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

  // Where the lane's box of keys of a granule lies. The table is read a granule ahead: its latency then passes while
  // the stage before is waited for, as long as nobody looks at the entry.
  struct Place {
    int key;    // the first one of the box
    int row;    // of its tensor or page
    int entry;  // page, or sequence; of the table as it is
    bool any;   // whether rows see a key of it
  };
  __device__ __forceinline__ Place place_of(RaggedSlot slot, int j) const {
    const RaggedArguments& r = args.ragged;
    Place place{j * kTileKeys + own_key(), 0, 0, false};
    if (!has_box()) {
      return place;
    }
    place.any =
        slot.get(RaggedSlot::kFirstKey) < place.key + (1 << r.box_shift) && place.key < slot.get(RaggedSlot::kLastKey);
    if (r.page_table == nullptr) {
      place.row = slot.get(RaggedSlot::kKeyOrigin) + place.key;
      place.entry = r.cu_seqlens_k != nullptr ? 0 : slot.get(RaggedSlot::kBatch);
    } else if (place.any) {
      const int page = place.key / r.page_size;
      place.row = place.key - page * r.page_size;
      place.entry = r.page_table[slot.get(RaggedSlot::kBatch) * r.page_table_stride + page];
    }
    return place;
  }

  // What a lane fetches of a granule: its box of keys, in K and in V.
  struct Box {
    ClippedBox at;
    int page;     // or sequence
    bool absent;  // keys that rows see, but whose page the pool does not have
  };
  __device__ __forceinline__ Box box_of(RaggedSlot slot, const Place& place) const {
    const RaggedArguments& r = args.ragged;
    const bool absent = r.page_table != nullptr && place.any && (place.entry < 0 || place.entry >= r.num_pages);
    const int stop = place.any && !absent ? slot.get(RaggedSlot::kLastKey) - place.key : 0;
    return {clip_box(place.row, slot.get(RaggedSlot::kFirstKey) - place.key, stop, 1 << r.box_shift),
            absent ? 0 : place.entry, absent};
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

  // Lanes fetch the boxes of a granule together: `own` is the lane's, K or V of use `at` is due.
  __device__ __forceinline__ void fetch_keys(const Box& own, const Position& at, int head_kv) const {
    const RaggedArguments& r = args.ragged;
    const uint32_t absent = __ballot_sync(kAllLanes, own.absent);
    const uint32_t barrier = Base::k_ring().full + 8 * at.stage();
    barrier_wait(Base::k_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
    if (lane() == 0) {
      if (r.page_table != nullptr) {
        store_shared(Base::absent_word(at.stage()), static_cast<int>(absent));
      }
      barrier_arrive_expect(barrier, r.qk_panels * panel_bytes(kTileKeys));
    }
    __syncwarp();
    if (has_box()) {
      load_panels(&args.k_map, &r.k_begin_map, barrier,
                  shared + Layout::kK + at.stage() * Layout::kKvBytes + own_key() * kPanelRowBytes, own, head_kv,
                  r.qk_panels);
    }
  }
  // V that is not `clean` goes to the cleaner first.
  __device__ __forceinline__ void fetch_values(const Box& own, const Position& at, int head_kv, bool clean) const {
    const RaggedArguments& r = args.ragged;
    const uint32_t barrier = clean ? Base::v_ring().full + 8 * at.stage() : Base::raw(at.stage());
    barrier_wait(Base::v_ring().empty + 8 * at.stage(), at.parity() ^ 1U);
    if (lane() == 0) {
      barrier_arrive_expect(barrier, r.v_panels * panel_bytes(kTileKeys));
    }
    __syncwarp();
    if (has_box()) {
      load_panels(&args.v_map, &r.v_begin_map, barrier,
                  shared + Layout::kV + at.stage() * Layout::kKvBytes + own_key() * kPanelRowBytes, own, head_kv,
                  r.v_panels);
    }
  }
  // First key of the lane's box within a granule, and whether there is one.
  __device__ __forceinline__ int own_key() const {
    return lane() << args.ragged.box_shift;
  }
  __device__ __forceinline__ bool has_box() const {
    return own_key() < kTileKeys;
  }

  // Feeds K, V or both, tile after tile. Where V alone is fed and is not clean, `hand_over` gets its stage once the
  // next V is on its way as well.
  template <bool kKeys, bool kValues, class HandOver>
  __device__ __forceinline__ void produce(const HandOver& hand_over) const {
    TilePosition tile_at;
    Position at;
#pragma unroll 1
    for (RaggedSlot slot = take(tile_at); slot.address != 0; slot = take(tile_at)) {
      const int head_kv = slot.get(RaggedSlot::kHead) / args.group;
      const int first = slot.get(RaggedSlot::kFirstGranule);
      const int end = slot.get(RaggedSlot::kEndGranule);
      const bool clean = slot.get(RaggedSlot::kUnclean) == 0;
      Place place{};
      if (first < end) {
        place = place_of(slot, first);
      } else if (kKeys && lane() == 0) {
        barrier_arrive(Base::taken());
      }
#pragma unroll 1
      for (int j = first; j < end; ++j, at.advance()) {
        if (kKeys && j == max(first, end - kDrawAhead) && lane() == 0) {
          barrier_arrive(Base::taken());
        }
        const Box box = box_of(slot, place);
        if constexpr (kKeys && kValues) {
          fetch_keys(box, at, head_kv);
        }
        if (j + 1 < end) {
          place = place_of(slot, j + 1);
        }
        if constexpr (kKeys && !kValues) {
          fetch_keys(box, at, head_kv);
        }
        if constexpr (kValues) {
          fetch_values(box, at, head_kv, clean);
        }
        if constexpr (!kKeys) {
          if (!clean && j > first) {
            hand_over(Position{at.use - 1}.stage());
          }
          if (!clean && j + 1 == end) {
            hand_over(at.stage());
          }
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
            load_clipped_box_as(shared + Layout::kQ + consumer * Layout::kQBytes + panel * panel_bytes(kWarpgroupRows),
                                &args.q_map, barrier, panel * kPanelColumns, box.row, box.sum, place.y,
                                args.ragged.cu_seqlens_q != nullptr ? 0 : place.x, read_once_policy());
          }
        }
      }
      tile_at.advance();
    }
  }
};

}  // namespace tessera::sm90
