// The warp that feeds K and V where lengths, windows or pages say which keys there are: boxes end with any key (see
// make_clipped_map()), and those of different pages are fetched by different lanes.
#pragma once

#include "kernels/sm90/fmha_prefill_512/producer.cuh"

namespace tessera::sm90 {

struct ClippedProducer512 : Producer512 {
  static constexpr int kLeastKeys = 8;  // of a box
  static constexpr int kBoxesOfPair = Layout::kPairKeys / kLeastKeys;

  __device__ __forceinline__ static int lane() { return thread_index() % 32; }

  // The page of the lane's keys 8 l .. 8 l + 7 of a pair, or the sequence; -1: there is none.
  __device__ __forceinline__ int find(const Tile512& tile, int pair) const {
    const RaggedArguments& r = args.ragged;
    if (r.page_table == nullptr) {
      return r.cu_seqlens_k != nullptr ? 0 : tile.get(Tile512::kBatch);
    }
    const int key = pair * Layout::kPairKeys + lane() * kLeastKeys;
    const int box = key >> r.box_shift << r.box_shift;  // its page has to be there if any of its keys is seen
    if (lane() >= kBoxesOfPair || box + (1 << r.box_shift) <= tile.get(Tile512::kFirstKey) ||
        box >= tile.get(Tile512::kStopKey)) {
      return 0;
    }
    const int entry = r.page_table[tile.get(Tile512::kBatch) * r.page_table_stride + key / r.page_size];
    return entry < 0 || entry >= r.num_pages ? -1 : entry;
  }

  __device__ __forceinline__ void produce() const {
    uint32_t turn = 0;
    for (uint32_t round = 0;; ++round) {
      const Tile512 tile = take_tile(shared, round);
      if (tile.get(Tile512::kBatch) < 0) {
        return;
      }
      int before = 0;  // find() of the pair whose V is due
#pragma unroll 1
      for (int i = tile.get(Tile512::kFirstPair); i < tile.get(Tile512::kEndPair); ++i) {
        const int own = find(tile, i);
        fetch_keys(tile, turn++, i, own);
        if (i > tile.get(Tile512::kFirstPair)) {
          fetch_values(tile, turn++, i - 1, before);
        }
        before = own;
      }
      if (tile.get(Tile512::kFirstPair) < tile.get(Tile512::kEndPair)) {
        fetch_values(tile, turn++, tile.get(Tile512::kEndPair) - 1, before);
      }
      __syncwarp();  // all lanes have read the tile
      if (lane() == 0) {
        leave_tile(shared, round);
      }
    }
  }

  __device__ __forceinline__ uint32_t begin_slice(uint32_t turn, int slice) const {
    const uint32_t full = shared + Layout::kFull + 8 * slice;
    barrier_wait(shared + Layout::kEmpty + 8 * slice, turn % 2 ^ 1U);
    if (lane() == 0) {
      barrier_arrive_expect(full, Layout::kSliceBytes);
    }
    __syncwarp();
    return full;
  }
  // A box of `keys` keys from `key` on, with `dim` its first one.
  template <bool kKeys>
  __device__ __forceinline__ void load(const Tile512& tile, uint32_t to, uint32_t full, int entry, int key, int keys,
                                       int dim) const {
    const RaggedArguments& r = args.ragged;
    const int row = r.page_table != nullptr ? key % r.page_size : tile.get(Tile512::kKeyOrigin) + key;
    const int stop = entry < 0 || dim >= (kKeys ? args.dims_qk : args.dims_v) ? 0 : tile.get(Tile512::kStopKey) - key;
    const ClippedBox box = clip_box(row, tile.get(Tile512::kFirstKey) - key, stop, keys);
    const CUtensorMap* const map =
        kKeys ? (box.begin ? &r.k_begin_map : &args.k_map) : (box.begin ? &r.v_begin_map : &args.v_map);
    const int head = tile.get(Tile512::kHead) / args.group;
    load_clipped_box(to, map, full, dim, box.row, box.sum, head, max(entry, 0));
  }
  __device__ __forceinline__ int box_keys(int most) const {
    return min(most, 1 << args.ragged.box_shift);
  }
  // Lanes have the boxes of the own granule.
  __device__ __forceinline__ void fetch_keys(const Tile512& tile, uint32_t turn, int pair, int entry) const {
    constexpr int kOwn = Layout::kGranule / kLeastKeys;
    const uint32_t absent = __ballot_sync(kAllLanes, entry < 0) >> (rank() * kOwn) & 0xffU;
    if (lane() == 0) {  // turn of K: 0 of the first pair of a tile, then every other one
      store_shared(shared + Layout::kAbsent + 4 * ((turn + 1) / 2 % Layout::kAbsentWords), static_cast<int>(absent));
    }
    const int within = lane() * kLeastKeys - rank() * Layout::kGranule;  // of the lane's keys in the granule
    const bool mine = within >= 0 && within < Layout::kGranule && within % box_keys(Layout::kGranule) == 0;
#pragma unroll 1
    for (int slice = 0; slice < Layout::kSlices; ++slice) {
      const uint32_t full = begin_slice(turn, slice);
      if (mine) {
        load<true>(tile, shared + Layout::kRing + slice * Layout::kSliceBytes + within * kPanelRowBytes, full, entry,
                   pair * Layout::kPairKeys + lane() * kLeastKeys, box_keys(Layout::kGranule), slice * kPanelColumns);
      }
    }
  }
  // Lanes have the panels of the 16 keys of a slice, or of both its halves.
  __device__ __forceinline__ void fetch_values(const Tile512& tile, uint32_t turn, int pair, int entry) const {
    const int panel = lane() % Layout::kSlicePanels;
    const int within = lane() / Layout::kSlicePanels * box_keys(Layout::kSliceKeys);  // of the lane's keys in the slice
#pragma unroll 1
    for (int slice = 0; slice < Layout::kSlices; ++slice) {
      const int own =
          __shfl_sync(kAllLanes, entry, (slice * Layout::kSliceKeys + within % Layout::kSliceKeys) / kLeastKeys);
      const uint32_t full = begin_slice(turn, slice);
      if (within < Layout::kSliceKeys) {
        load<false>(tile,
                    shared + Layout::kRing + slice * Layout::kSliceBytes + panel * panel_bytes(Layout::kSliceKeys) +
                        within * kPanelRowBytes,
                    full, own, pair * Layout::kPairKeys + slice * Layout::kSliceKeys + within,
                    box_keys(Layout::kSliceKeys), (rank() * Layout::kSlicePanels + panel) * kPanelColumns);
      }
    }
  }
};

}  // namespace tessera::sm90
