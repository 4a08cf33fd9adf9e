// The warpgroup that feeds a block: Q of every tile, and granules of keys from wherever their rows lie, in pieces of
// 16 bytes. FP8 rows (R11) come as codes and become bf16 where they have landed.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_mqa_512/fp8_panels.cuh"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"

namespace tessera::sm90 {

// 16 bytes of global memory to shared memory, asynchronously; zeros, and no read at all, unless `present`.
__device__ __forceinline__ void copy_row_piece(uint32_t destination, const void* source, bool present) {
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
// Whether the phase with this parity has completed.
__device__ __forceinline__ bool barrier_is_done(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// One arrival of the thread, once all its copies so far have landed.
__device__ __forceinline__ void arrive_behind_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// `kFp8`: some segments may have FP8 rows.
template <class Layout, bool kFp8>
class MqaProducer {
  using Words = MqaTileWords;
  using Fp8 = MqaFp8Format<Layout::kPanels * kPanelColumns>;
  static constexpr int kOwnRows = 4;  // of 64, per thread: eight threads have a row
  static constexpr int kRowStep = Layout::kGranule / kOwnRows;
  static constexpr uint32_t kNone = 8;
  static constexpr uint32_t kBarrier = 1;  // named barrier of the warpgroup

 public:
  __device__ __forceinline__ MqaProducer(const MqaArguments& args, uint32_t shared) : args_(args), shared_(shared) {}

  __device__ __forceinline__ void run() {
    uint32_t granules = 0;  // so far
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
      uint32_t codes = kNone;  // what is not bf16 yet of the granule before: 4 * its buffer + its first group of those
#pragma unroll 1
      while (place.valid()) {
        const bool fp8 = kFp8 && args_.segments[place.segment].fp8;
        const uint32_t buffer = granules % Layout::kBuffers;
        const uint32_t parity = granules / Layout::kBuffers % 2;
        while (kFp8 && codes != kNone && !is_empty(buffer, parity)) {
          codes = convert_group(codes, false);
        }
        place = fetch_granule(tile, walk, place, entries, buffer, parity);
        ++granules;
        while (kFp8 && codes != kNone) {
          codes = convert_group(codes, fp8);
        }
        codes = fp8 ? Layout::kGroups * buffer : kNone;
      }
      while (kFp8 && codes != kNone) {
        codes = convert_group(codes, false);
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

  // By the first warp; the slot was last read for tile round - 4, which the others have left: they gave back Q of
  // tile round - 2.
  __device__ __forceinline__ void describe(uint32_t round) const {
    if (uniform(thread() / 32) == 0) {
      describe_tile(args_, MqaTile::at<Layout>(shared_, round), MqaItem::at(args_, index_of(round)), thread());
    }
  }

  // Where the chunk that ends with granule `last` goes when the next one begins with `next`.
  __device__ __forceinline__ static int level_between(const MqaPlace& last, const MqaPlace& next) {
    constexpr int kSuperchunkGranules = Layout::kChunkGranules * kSuperchunkChunks;
    return last.segment != next.segment                                               ? 2
           : last.granule / kSuperchunkGranules != next.granule / kSuperchunkGranules ? 1
                                                                                      : 0;
  }
  // Flags of a granule; the one behind it is `next`.
  __device__ __forceinline__ int flags_of(const MqaWalk& walk, const MqaPlace& place, const MqaPlace& next) const {
    using Flags = MqaGranuleFlags;
    const int to = !next.valid() ? kMqaFinish : walk.is_fresh(next) ? level_between(place, next) : -1;
    return (walk.is_fresh(place) ? Flags::kFresh : 0) |
           (walk.is_masked(args_.segments[place.segment], place) ? Flags::kMasked : 0) | (to + 1) << Flags::kEndShift;
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
                                                    int32_t (&entries)[kOwnRows], uint32_t buffer,
                                                    uint32_t parity) const {
    const MqaSegment& s = args_.segments[place.segment];
    const int first_key = tile.get(place.segment, Words::kFirstKey);
    const int stop_key = tile.get(place.segment, Words::kStopKey);
    const int first_token = tile.get(place.segment, Words::kFirstToken);
    const bool paged = s.page_table != nullptr && s.sorted == nullptr;
    const MqaPlace next = walk.next(place);
    const int flags = flags_of(walk, place, next);
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
        offset = entries[i] * s.stride_batch + behind(key, s.page_size) * s.stride_token;
      } else {
        offset = entries[i] * s.stride_batch + (first_token + key) * s.stride_token;
      }
      present |= is ? 1U << i : 0U;
      rows_at[i] = s.k + (is ? offset : 0);
      rows_at[i] += thread() % 8 * (kFp8 && s.fp8 ? 4 : 8);
    }
    if (kFp8 && Fp8::kFooter && s.fp8) {
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const MqaSegment& again = args_.segments[opaque(place.segment)];
        const int key = place.granule * Layout::kGranule + own_row() + i * kRowStep;
        const int slot = again.sorted != nullptr ? behind(entries[i], again.page_rows) : behind(key, again.page_size);
        copy_small_piece<8>(
            scales_at(buffer, i),
            reinterpret_cast<const uint8_t*>(rows_at[i]) + footer_behind(again, slot) - thread() % 8 * 8,
            is_present(present, i));
      }
    }
    ask(tile, next, entries);
    const uint32_t full = full_of(buffer);
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
    if (thread() == 0) {
      store_shared(shared_ + Layout::kGranules + buffer * 16, make_int4(flags, place.segment, place.granule, 0));
    }
    barrier_arrive(full);  // releases the description, and what is absent
    const uint32_t to = pieces_at(buffer);
    if (kFp8 && s.fp8) {
      fetch_fp8_rows(to, full, buffer, parity, rows_at, present);
    } else {
      fetch_rows(to, full, buffer, parity, rows_at, present);
    }
    return next;
  }

  // All panels of the thread's rows, those that are not present as zeros; `to` is its first piece.
  __device__ __forceinline__ void fetch_rows(uint32_t to, uint32_t full, uint32_t buffer, uint32_t parity,
                                             const uint16_t* const (&rows_at)[kOwnRows], uint32_t present) const {
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      wait_for_panel(panel, buffer, parity);
      copy_panel(to, panel,
                 [&](uint32_t at, int i, int dim) { copy_row_piece(at, rows_at[i] + dim, is_present(present, i)); });
      if (Layout::ends_group(panel)) {
        arrive_behind_copies(full + 8 * Layout::group_of(panel));
      }
    }
  }

  // What remains of a number behind the last multiple.
  __device__ __forceinline__ static int behind(int number, const Divisor& divisor) {
    return number - divide(number, divisor) * static_cast<int>(divisor.value);
  }
  // Bytes from a row to its footer, behind the rows and the footers before it.
  __device__ __forceinline__ static int64_t footer_behind(const MqaSegment& s, int slot) {
    return (s.page_size.value - slot) * Fp8::kRow.row_bytes + slot * Fp8::kRow.footer_bytes;
  }
  __device__ __forceinline__ uint32_t scales_at(uint32_t buffer, int i) const {
    return shared_ + Layout::kScales + (buffer * kOwnRows + i) * Layout::kScaleStep + 8 * thread();
  }

  // The same of FP8 rows: all copies are on their way before the first codes become bf16.
  __device__ __forceinline__ void fetch_fp8_rows(uint32_t to, uint32_t full, uint32_t buffer, uint32_t parity,
                                                 const uint16_t* const (&rows_at)[kOwnRows], uint32_t present) const {
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      wait_for_panel(panel, buffer, parity);
      copy_panel(to, panel, [&](uint32_t at, int i, int dim) {
        const bool is = is_present(present, i);
        const auto* codes = reinterpret_cast<const uint8_t*>(rows_at[i]);
        const int own = thread() % 8 * 8;  // already in there
        if (panel >= Fp8::kCodedPanels) {
          copy_row_piece(at, codes + own + Fp8::kPlainAt + (panel - Fp8::kCodedPanels) * kPanelRowBytes, is);
          return;
        }
        copy_small_piece<8>(at, codes + dim, is);
        if (!Fp8::kFooter && Layout::begins_group(panel)) {
          copy_small_piece<4>(at + 8, codes + Fp8::scale_at(panel) - own, is);
        }
      });
      if (Layout::ends_group(panel)) {
        commit_copies();
      }
    }
  }
  // The first group of `codes` becomes bf16; returns what is left. `behind`: another granule's codes have been asked
  // for since. Loops rather than unrolled: the instruction cache has the other roles to hold too.
  __device__ __forceinline__ uint32_t convert_group(uint32_t codes, bool behind) const {
    const uint32_t buffer = codes / Layout::kGroups;
    const int group = static_cast<int>(codes % Layout::kGroups);
    wait_copies(Layout::kGroups - 1 - group + (behind ? Layout::kGroups : 0));
    const int first = group * Layout::kGroupPanels;
#pragma unroll 1
    for (int i = 0; i < Layout::kGroupPanels; ++i) {
      // A tile's scale lies where the codes of its first panel become bf16 last.
      const int panel = first + (Fp8::kFooter ? i : Layout::kGroupPanels - 1 - i);
      if (panel < Fp8::kCodedPanels) {
        const uint32_t pieces = pieces_at(buffer) + panel * panel_bytes(Layout::kGranule);
        const uint32_t scales = Fp8::kFooter ? scales_at(buffer, 0) + panel / 4 * 4
                                             : pieces_at(buffer) + first * panel_bytes(Layout::kGranule) + 8;
        constexpr int kTogether = Fp8::kFooter ? kOwnRows : kOwnRows / 2;  // rows whose codes are in registers
        constexpr int kStep = kRowStep * kPanelRowBytes;
        constexpr int kScaleStep = Fp8::kFooter ? Layout::kScaleStep : kStep;
#pragma unroll
        for (int row = 0; row < kOwnRows; row += kTogether) {
          convert_pieces<Layout::kPanels * kPanelColumns, kTogether>(pieces + row * kStep, kStep, panel,
                                                                     scales + row * kScaleStep, kScaleStep);
        }
      }
    }
    barrier_arrive(full_of(buffer) + 8 * group);
    return group + 1 < Layout::kGroups ? codes + 1 : kNone;
  }
  __device__ __forceinline__ uint32_t pieces_at(uint32_t buffer) const {
    return shared_ + Layout::kKeys + buffer * Layout::kBufferBytes + piece_at();
  }
  __device__ __forceinline__ uint32_t full_of(uint32_t buffer) const {
    return shared_ + Layout::kFull + 8 * Layout::kGroups * buffer;
  }

  // Opaque, so that it takes no register of its own.
  __device__ __forceinline__ static bool is_present(uint32_t present, int i) {
    return (opaque(static_cast<int>(present)) >> i & 1) != 0;
  }
  __device__ __forceinline__ void wait_for_panel(int panel, uint32_t buffer, uint32_t parity) const {
    if (Layout::begins_group(panel)) {
      wait_empty(buffer, Layout::group_of(panel), parity);
    }
  }
  // Whether all groups have been given back.
  __device__ __forceinline__ bool is_empty(uint32_t buffer, uint32_t parity) const {
    bool all = true;
#pragma unroll
    for (int group = 0; group < Layout::kGroups; ++group) {
      all = barrier_is_done(shared_ + Layout::kEmpty + 8 * (Layout::kGroups * buffer + group), parity ^ 1U) && all;
    }
    return all;
  }
  __device__ __forceinline__ void wait_empty(uint32_t buffer, int group, uint32_t parity) const {
    barrier_wait(shared_ + Layout::kEmpty + 8 * (Layout::kGroups * buffer + group), parity ^ 1U);
  }

  const MqaArguments& args_;
  uint32_t shared_;
};

}  // namespace tessera::sm90
