// The producers for K/V in pages of any size: rows are looked up and copied in pieces of 16 bytes (cp.async), swizzled
// as the copy engine would. Rows that no query may see, or whose page the pool does not have, are zeros and are not
// read.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/queries.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"
#include "kernels/sm90/smem_tile.cuh"

namespace tessera::sm90 {

// 16 bytes of global memory to shared memory, asynchronously; zeros, and no read at all, unless `present`.
__device__ __forceinline__ void copy_piece(uint32_t destination, uint64_t source, bool present) {
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

// One arrival per thread, once all its copies so far have landed.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Where rows of one sequence and head lie.
struct PagedRows {
  const uint16_t* data;  // of the head
  const int32_t* table;  // of the sequence; null: all rows lie in page `only_page`
  int only_page;
  int64_t stride_page, stride_slot;  // elements
  int64_t pages;
  uint32_t page_size;
  int keys;  // of the sequence
};

struct PagedRow {
  uint64_t address;
  bool present;
};

__device__ __forceinline__ PagedRow find_row(const PagedRows& rows, int key) {
  PagedRow row{reinterpret_cast<uint64_t>(rows.data), false};
  if (key < rows.keys) {
    uint32_t slot = static_cast<uint32_t>(key);
    int page = rows.only_page;
    if (rows.table != nullptr) {
      const uint32_t index = slot / rows.page_size;
      slot -= index * rows.page_size;
      page = rows.table[index];
    }
    if (page >= 0 && page < rows.pages) {
      row.address += 2 * static_cast<uint64_t>(page * rows.stride_page + slot * rows.stride_slot);
      row.present = true;
    }
  }
  return row;
}

// 32 rows of kColumns elements from `column` on, lane l having found row l, to rows of `panel` columns of a stage whose
// panels are `panel_bytes` apart. `first` is the number of the first row in the stage.
template <int kColumns, int kPanel>
__device__ __forceinline__ void copy_rows(uint32_t stage, int panel_bytes, int first, const PagedRow& found,
                                          int column) {
  constexpr int kPieces = kColumns / 8;
  constexpr int kPanelPieces = kPanel / 8;
  const auto lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int row = (32 * i + lane) / kPieces;
    const int piece = (32 * i + lane) % kPieces;
    const uint64_t source = __shfl_sync(0xffffffffU, found.address, row);
    const bool present = __shfl_sync(0xffffffffU, static_cast<int>(found.present), row) != 0;
    // The swizzle of the copy engine: address bits 4.. are xored with bits 7...
    const int offset = (first + row) * 2 * kPanel + piece % kPanelPieces * 16;
    const int swizzled = offset ^ ((offset >> 7 & (kPanelPieces - 1)) << 4);
    copy_piece(stage + static_cast<uint32_t>(piece / kPanelPieces * panel_bytes + swizzled),
               source + static_cast<uint64_t>(2 * (column + 8 * piece)), present);
  }
}

inline constexpr int kPagedWarps = 2;  // of K, and of V

// Warp 0 of them also copies Q.
template <class Tag>
__device__ __forceinline__ void load_paged_keys(const DecodeArguments& args, uint32_t smem, int warp, int rank,
                                                int64_t first, int64_t step) {
  using Layout = DecodeLayout<Tag>;
  constexpr int kChunk = Tag::kNumbers.chunk_keys;
  UnitWalker<kChunk> walker(args);
  Unit unit;
  StageAt<Layout::kKStages> at;
  QueryCopy<Tag> queries;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t number = first; walker.find(number, unit); number += step) {
    const UnitKeys<kChunk> keys(unit);
    const PagedRows rows{args.k + unit.head * args.k_strides.head,
                         args.page_table == nullptr ? nullptr : args.page_table + unit.batch * args.page_table_stride,
                         unit.batch,
                         args.k_strides.batch,
                         args.k_strides.token,
                         args.num_pages,
                         static_cast<uint32_t>(args.page_size),
                         unit.keys};
    if (warp == 0) {
      queries.fetch(args, unit);
      queries.store(smem);
    }
    for (int granule = rank; granule < keys.granules(); granule += Layout::kCluster) {
      barrier_wait(smem + Layout::kKEmpty + 8 * at.stage, at.parity ^ 1U);
      const uint32_t stage = smem + Layout::kK + at.stage * Layout::kKBytes;
#pragma unroll 1
      for (int row = 32 * warp; row < kDecodeGranule; row += 32 * kPagedWarps) {
        const PagedRow found = find_row(rows, keys.begin + granule * kDecodeGranule + row + lane);
        copy_rows<Layout::kHeadDim, kPanelColumns>(stage, panel_bytes(kDecodeGranule), row, found, 0);
        store_shared_byte(smem + Layout::kPresent + at.stage * kDecodeGranule + static_cast<uint32_t>(row + lane),
                          found.present ? 1U : 0U);
      }
      const uint32_t full = smem + Layout::kKFull + 8 * at.stage;
      arrive_after_copies(full);
      barrier_arrive(full);  // for the bytes of presence
      at.advance();
    }
  }
}

template <class Tag>
__device__ __forceinline__ void load_paged_values(const DecodeArguments& args, uint32_t smem, int warp, int rank,
                                                  int64_t first, int64_t step) {
  using Layout = DecodeLayout<Tag>;
  constexpr int kChunk = Tag::kNumbers.chunk_keys;
  UnitWalker<kChunk> walker(args);
  Unit unit;
  StageAt<Layout::kVStages> at;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t number = first; walker.find(number, unit); number += step) {
    const UnitKeys<kChunk> keys(unit);
    const PagedRows rows{args.v + unit.head * args.v_strides.head,
                         args.page_table == nullptr ? nullptr : args.page_table + unit.batch * args.page_table_stride,
                         unit.batch,
                         args.v_strides.batch,
                         args.v_strides.token,
                         args.num_pages,
                         static_cast<uint32_t>(args.page_size),
                         unit.keys};
    const int granules = keys.granules();
    for (int begin = 0; begin < granules; begin += Layout::kCluster) {
      const int count = granules - begin < Layout::kCluster ? granules - begin : Layout::kCluster;
      barrier_wait(smem + Layout::kVEmpty + 8 * at.stage, at.parity ^ 1U);
      const uint32_t stage = smem + Layout::kV + at.stage * Layout::kVBytes;
#pragma unroll 1
      for (int row = 32 * warp; row < count * kDecodeGranule; row += 32 * kPagedWarps) {
        const PagedRow found = find_row(rows, keys.begin + begin * kDecodeGranule + row + lane);
        copy_rows<Layout::kSlice, Layout::kPanel>(stage, Layout::kPanelGranule * Layout::kCluster, row, found,
                                                  rank * Layout::kSlice);
      }
      arrive_after_copies(smem + Layout::kVFull + 8 * at.stage);
      at.advance();
    }
  }
}

}  // namespace tessera::sm90
