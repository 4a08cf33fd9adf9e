// The threads that feed a block: K and V in slices through one ring, Q of each consumer.
#pragma once

#include "kernels/sm90/fmha_prefill_512/copies.cuh"
#include "kernels/sm90/fmha_prefill_512/tiles.cuh"

namespace tessera::sm90 {

struct Producer512 {
  using Layout = Layout512;
  const Arguments512& args;
  uint32_t shared;

  // Asked for anew, so that it takes no register.
  __device__ __forceinline__ static int rank() { return static_cast<int>(cluster_rank()); }

  // A turn of the ring is the K, or the V, of a pair. Order: K 0, K 1, V 0, K 2, V 1, ..
  __device__ __forceinline__ void produce() const {
    uint32_t turn = 0;
    for (uint32_t round = 0;; ++round) {
      const Tile512 tile = take_tile(shared, round);
      const int batch = tile.get(Tile512::kBatch);
      const int head = tile.get(Tile512::kHead) / args.group;
      // Clusters read the same K and V at about the same time: one in 8 has the next pair fetched from memory for all.
      const bool ahead = tile.get(Tile512::kFirstRow) / Layout::kBlockM % 8 == 7;
      const int first = tile.get(Tile512::kFirstPair);
      const int end = tile.get(Tile512::kEndPair);
      if (batch < 0) {
        return;
      }
      leave_tile(shared, round);
#pragma unroll 1
      for (int i = first; i <= end && first < end; ++i) {
        if (i < end) {
          fetch_keys(turn++, i, head, batch, ahead);
        }
        if (i > first) {
          fetch_values(turn++, i - 1, head, batch, ahead);
        }
      }
    }
  }

  __device__ __forceinline__ uint32_t begin_slice(uint32_t turn, int slice) const {
    const uint32_t full = shared + Layout::kFull + 8 * slice;
    barrier_wait(shared + Layout::kEmpty + 8 * slice, turn % 2 ^ 1U);
    barrier_arrive_expect(full, Layout::kSliceBytes);
    return full;
  }
  __device__ __forceinline__ void fetch_keys(uint32_t turn, int pair, int head, int batch, bool ahead) const {
#pragma unroll 1
    for (int slice = 0; slice < Layout::kSlices; ++slice) {
      const uint32_t full = begin_slice(turn, slice);
      load_box(shared + Layout::kRing + slice * Layout::kSliceBytes, &args.k_map, full, slice * kPanelColumns,
               pair * Layout::kPairKeys + rank() * Layout::kGranule, head, batch);
      if (ahead) {
        prefetch_box(&args.k_map, slice * kPanelColumns, (pair + 1) * Layout::kPairKeys + rank() * Layout::kGranule,
                     head, batch);
      }
    }
  }
  __device__ __forceinline__ void fetch_values(uint32_t turn, int pair, int head, int batch, bool ahead) const {
#pragma unroll 1
    for (int slice = 0; slice < Layout::kSlices; ++slice) {
      const uint32_t full = begin_slice(turn, slice);
      const uint32_t to = shared + Layout::kRing + slice * Layout::kSliceBytes;
      const int key = pair * Layout::kPairKeys + slice * Layout::kSliceKeys;
      if (args.whole_slices) {
        load_panels_box(to, &args.v_map, full, key, rank() * Layout::kSlicePanels, head, batch);
        if (ahead) {
          prefetch_panels_box(&args.v_map, key + Layout::kPairKeys, rank() * Layout::kSlicePanels, head, batch);
        }
        continue;
      }
#pragma unroll 1
      for (int panel = 0; panel < Layout::kSlicePanels; ++panel) {
        load_box(to + panel * panel_bytes(Layout::kSliceKeys), &args.v_map, full,
                 rank() * Layout::kColumns + panel * kPanelColumns, key, head, batch);
      }
    }
  }

  __device__ __forceinline__ void produce_queries(int consumer) const {
    const uint32_t full = shared + Layout::kQFull + 8 * consumer;
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      const Tile512 tile = take_tile(shared, round);
      const int4 place = tile.vector(Tile512::kBatch);
      const int4 pairs = tile.vector(Tile512::kFirstPair);
      if (place.x < 0) {
        return;
      }
      const int row = place.z + consumer * Layout::kRows;
      if (args.packed != 1) {
        leave_tile(shared, round);
        continue;
      }
      if (args.clipped) {
        fetch_clipped_queries(tile, consumer, round);
        continue;
      }
      leave_tile(shared, round);
#pragma unroll 1
      for (int panel = 0; panel < Layout::kDims / kPanelColumns; ++panel) {
        prefetch_box(&args.q_map, panel * kPanelColumns, row, place.y, place.x);
      }
      barrier_wait(shared + Layout::kQEmpty + 8 * consumer, round % 2 ^ 1U);
      barrier_arrive_expect(full, Layout::kQBytes);
      const uint64_t policy = read_once_policy();
#pragma unroll 1
      for (int panel = 0; panel < Layout::kDims / kPanelColumns; ++panel) {
        load_box_as(shared + Layout::kQ + consumer * Layout::kQBytes + panel * panel_bytes(Layout::kRows), &args.q_map,
                    full, panel * kPanelColumns, row, place.y, place.x, policy);
      }
    }
  }
  // The same for rows of a sequence that begins and ends anywhere.
  __device__ __forceinline__ void fetch_clipped_queries(const Tile512& tile, int consumer, uint32_t round) const {
    const int4 place = tile.vector(Tile512::kBatch);  // batch, head, first row, tokens
    const int row = place.z + consumer * Layout::kRows;
    const ClippedBox box = clip_box(tile.get(Tile512::kFirstToken) + row, 0, place.w - row, Layout::kRows);
    leave_tile(shared, round);
    const uint32_t full = shared + Layout::kQFull + 8 * consumer;
    const int batch = args.ragged.cu_seqlens_q != nullptr ? 0 : place.x;
    barrier_wait(shared + Layout::kQEmpty + 8 * consumer, round % 2 ^ 1U);
    barrier_arrive_expect(full, Layout::kQBytes);
#pragma unroll 1
    for (int panel = 0; panel < Layout::kDims / kPanelColumns; ++panel) {
      const uint32_t to = shared + Layout::kQ + consumer * Layout::kQBytes + panel * panel_bytes(Layout::kRows);
      const int dim = panel * kPanelColumns;
      // Wholly out of bounds only in the map that begins with the tensor.
      if (box.begin || dim >= args.dims_qk) {
        load_clipped_box(to, &args.q_begin_map, full, 0, Layout::kRows, 0, place.y, batch);
      } else {
        load_clipped_box(to, &args.q_map, full, dim, box.row, box.sum, place.y, batch);
      }
    }
  }
};

}  // namespace tessera::sm90
