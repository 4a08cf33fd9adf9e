// The warpgroup that feeds a block: Q of every tile, and granules of keys from wherever their rows lie, in pieces of
// 16 bytes.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_mqa_512/tiles.cuh"

namespace tessera::sm90 {

// 16 bytes of global memory to shared memory, asynchronously; zeros, and no read at all, unless `present`.
__device__ __forceinline__ void copy_row_piece(uint32_t destination, const uint16_t* source, bool present) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(present ? 16 : 0)
               : "memory");
}
// The same of bytes that nobody else reads.
__device__ __forceinline__ void copy_own_piece(uint32_t destination, const uint16_t* source, bool present) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(destination), "l"(source),
               "r"(present ? 16 : 0), "l"(read_once_policy())
               : "memory");
}
// One arrival of the thread, once all its copies so far have landed.
__device__ __forceinline__ void arrive_behind_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

template <class Layout>
class MqaProducer {
  using Words = MqaTileWords;
  static constexpr int kOwnRows = 4;  // of 64, per thread: eight threads have a row
  static constexpr int kRowStep = Layout::kGranule / kOwnRows;
  static constexpr uint32_t kBarrier = 1;  // named barrier of the warpgroup

 public:
  __device__ __forceinline__ MqaProducer(const MqaArguments& args, uint32_t shared) : args_(args), shared_(shared) {}

  __device__ __forceinline__ void run() {
    uint32_t turns = 0;  // bit b: parity of the next use of buffer b
#pragma unroll 1
    for (uint32_t round = 0; index_of(round) < args_.total_items; ++round) {
      describe(round);
      named_barrier_sync(kBarrier, 128);  // the description is there
      const MqaTile tile = MqaTile::at<Layout>(shared_, round);
      const MqaWalk walk(tile, args_.count);
      barrier_wait(shared_ + Layout::kQEmpty, round % 2 ^ 1U);
      if (uniform(tile.get(Words::kWork)) == Words::kKeys) {
        fetch_queries(tile);
      }
      arrive_behind_copies(shared_ + Layout::kQFull);
      if (thread() == 0) {
        barrier_arrive(shared_ + Layout::kQFull);  // releases the description
      }
      MqaPlace place = walk.first();
      int32_t entries[kOwnRows];
      ask(tile, place, entries);
      int before = -1;  // the granule before, and its segment
      int segment = -1;
      uint32_t buffer = 0;
#pragma unroll 1
      while (place.valid()) {
        const bool fresh = walk.is_fresh(place);
        buffer = fresh ? 0 : buffer;  // a chunk begins with a pair
        const int level = segment < 0 || !fresh ? 0 : 1 + level_between(segment, before, place);
        const MqaPlace next = fetch_granule(tile, walk, place, entries, buffer, turns >> buffer & 1U, level);
        turns ^= 1U << buffer;
        buffer ^= 1U;
        segment = place.segment;
        before = place.granule;
        place = next;
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

 private:
  __device__ __forceinline__ static int thread() {
    return thread_index() & 127;  // and not %, which minds negative numbers
  }
  __device__ __forceinline__ static int own_row() {
    return thread() / 8;
  }
  __device__ __forceinline__ static int index_of(uint32_t round) {
    return static_cast<int>(blockIdx.x + round * gridDim.x);
  }

  // By the first warp; the slot was last read for tile round - 4, which the consumers have left: they gave back Q of
  // tile round - 2.
  __device__ __forceinline__ void describe(uint32_t round) const {
    if (uniform(thread() / 32) == 0) {
      describe_tile(args_, MqaTile::at<Layout>(shared_, round), MqaItem::at(args_, index_of(round)), thread());
    }
  }

  // Where the chunk that ends with granule `last` goes when the next one begins with `next`.
  __device__ __forceinline__ static int level_between(int segment, int last, const MqaPlace& next) {
    constexpr int kSuperchunkGranules = Layout::kChunkGranules * kSuperchunkChunks;
    return segment != next.segment ? 2 : last / kSuperchunkGranules != next.granule / kSuperchunkGranules ? 1 : 0;
  }
  // For the consumers: flags of the pair that begins with a granule, where the chunk before it goes, and what follows
  // it.
  __device__ __forceinline__ int flags_of(const MqaWalk& walk, const MqaPlace& first, const MqaPlace& next,
                                          int level) const {
    using Flags = MqaPairFlags;
    const MqaSegment& segment = args_.segments[first.segment];
    const bool second = next.valid() && !walk.is_fresh(next);
    const bool last = !(second ? walk.next(next) : next).valid();
    return (walk.is_fresh(first) ? Flags::kFresh : 0) | (second ? Flags::kSecond : 0) | (last ? Flags::kLast : 0) |
           (walk.is_masked(segment, first) ? Flags::kFirstMasked : 0) |
           (second && walk.is_masked(segment, next) ? Flags::kSecondMasked : 0) | level << Flags::kLevelShift;
  }

  // Where the thread's pieces of panel 0 go, in a tile of 64 rows; those of its next row are kRowStep rows further.
  __device__ __forceinline__ static uint32_t piece_at() {
    return swizzled_offset(Layout::kGranule, own_row(), thread() % 8 * 8);
  }
  // A panel of the thread's rows of the tile `to`.
  template <class Source>
  __device__ __forceinline__ static void copy_panel(uint32_t to, int panel, const Source& source) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      source(to + panel * panel_bytes(Layout::kGranule) + i * kRowStep * kPanelRowBytes, i, panel * kPanelColumns);
    }
  }

  __device__ __forceinline__ void fetch_queries(const MqaTile& tile) const {
    const int64_t batch = tile.get(Words::kBatch);
    const int first_token = tile.get(Words::kTensorToken);
    const int first_row = tile.get(Words::kFirstRow) + own_row();
    const int rows = tile.get(Words::kRows);
    const uint16_t* rows_at[kOwnRows];
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = first_row + i * kRowStep;
      const int behind = divide(row, args_.heads);
      const int head = row - behind * static_cast<int>(args_.heads.value);
      rows_at[i] = row >= rows
                       ? nullptr
                       : args_.q + batch * args_.q_stride_batch + int64_t{first_token + behind} * args_.q_stride_token +
                             head * args_.q_stride_head + thread() % 8 * 8;
    }
    const uint32_t to = shared_ + Layout::kQ + piece_at();
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      copy_panel(to, panel, [&](uint32_t at, int i, int dim) {
        const bool present = rows_at[i] != nullptr;
        copy_own_piece(at, present ? rows_at[i] + dim : args_.q, present);
      });
    }
  }

  // What tables say of the thread's rows of a granule: the page, the row of a gathered key, or the sequence. Nothing is
  // done with it here, so that it is on its way while others are waited for.
  __device__ __forceinline__ void ask(const MqaTile& tile, const MqaPlace& place, int32_t (&entries)[kOwnRows]) const {
    if (!place.valid()) {
      return;
    }
    const MqaSegment& s = args_.segments[place.segment];
    const int first_key = tile.get(place.segment, Words::kFirstKey);
    const int stop_key = tile.get(place.segment, Words::kStopKey);
    const int64_t batch = tile.get(Words::kBatch);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int key = place.granule * Layout::kGranule + own_row() + i * kRowStep;
      const int32_t* from = nullptr;
      if (s.sorted != nullptr) {
        from = s.sorted + (batch * args_.seqlen_q + tile.get(Words::kToken)) * s.topk + key;
      } else if (s.page_table != nullptr) {
        from = s.page_table + batch * s.page_table_stride + divide(key, s.page_size);
      }
      entries[i] = static_cast<int32_t>(batch);
      if (from != nullptr && key >= first_key && key < stop_key) {
        asm volatile("ld.global.b32 %0, [%1];" : "=r"(entries[i]) : "l"(from) : "memory");
      }
    }
  }

  // The granule at `place`, whose tables' `entries` are known; asks for those of the next one, which is returned.
  __device__ __forceinline__ MqaPlace fetch_granule(const MqaTile& tile, const MqaWalk& walk, const MqaPlace& place,
                                                    int32_t (&entries)[kOwnRows], uint32_t buffer, uint32_t parity,
                                                    int level) const {
    const MqaSegment& s = args_.segments[place.segment];
    const int first_key = tile.get(place.segment, Words::kFirstKey);
    const int stop_key = tile.get(place.segment, Words::kStopKey);
    const int first_token = tile.get(place.segment, Words::kFirstToken);
    const bool paged = s.page_table != nullptr && s.sorted == nullptr;
    const MqaPlace next = walk.next(place);
    const int flags = buffer == 0 ? flags_of(walk, place, next, level) : 0;
    const uint16_t* rows_at[kOwnRows];
    uint32_t present = 0;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int key = place.granule * Layout::kGranule + own_row() + i * kRowStep;
      bool is = key >= first_key && key < stop_key;
      int64_t offset = 0;
      if (s.sorted != nullptr) {
        offset = entries[i] * s.stride_token;
      } else if (paged) {
        is = is && static_cast<uint32_t>(entries[i]) < static_cast<uint32_t>(s.num_pages);
        const int slot = key - divide(key, s.page_size) * static_cast<int>(s.page_size.value);
        offset = entries[i] * s.stride_batch + slot * s.stride_token;
      } else {
        offset = entries[i] * s.stride_batch + (first_token + key) * s.stride_token;
      }
      present |= is ? 1U << i : 0U;
      rows_at[i] = s.k + (is ? offset : 0) + thread() % 8 * 8;
    }
    ask(tile, next, entries);
    const uint32_t full = shared_ + Layout::kFull + 8 * Layout::kGroups * buffer;
    if (paged && thread() % 8 == 0) {
      wait_empty(buffer, 0, parity);
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(shared_ + Layout::kAbsent + buffer * Layout::kAbsentBytes +
                                                    own_row() + i * kRowStep),
                     "r"(~present >> i & 1U)
                     : "memory");
      }
    }
    wait_empty(buffer, 0, parity);
    if (buffer == 0 && thread() == 0) {
      store_shared(shared_ + Layout::kPairs + parity * 16, make_int4(flags, place.segment, place.granule, 0));
      barrier_arrive(shared_ + Layout::kPairFull + 8 * parity);
    }
    barrier_arrive(full);  // releases what is absent
    const uint32_t to = shared_ + Layout::kKeys + buffer * Layout::kBufferBytes + piece_at();
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      const int group = Layout::group_of(panel);
      if (Layout::begins_group(panel) && group % Layout::kGroupsOfHalf == 0) {
        wait_empty(buffer, group / Layout::kGroupsOfHalf, parity);
      }
      copy_panel(to, panel, [&](uint32_t at, int i, int dim) {
        // Opaque, so that sizes take no registers.
        copy_row_piece(at, rows_at[i] + dim, (opaque(static_cast<int>(present)) >> i & 1) != 0);
      });
      if (Layout::ends_group(panel)) {
        arrive_behind_copies(full + 8 * group);
      }
    }
    return next;
  }

  // The consumer of a half has left it.
  __device__ __forceinline__ void wait_empty(uint32_t buffer, int half, uint32_t parity) const {
    barrier_wait(shared_ + Layout::kEmpty + 8 * (Layout::kHalves * buffer + half), parity ^ 1U);
  }

  const MqaArguments& args_;
  uint32_t shared_;
};

}  // namespace tessera::sm90
