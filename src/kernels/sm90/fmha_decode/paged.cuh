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
  Divisor page_size;
  int seen, keys;  // of the sequence: others are not read
};

struct PagedRow {
  uint64_t address;
  bool present;
};

// Where a row lies, in two steps, so that the table's answer can be on its way while other rows are copied.
struct PagedLookup {
  int page;  // of the table
  uint32_t slot;
  bool wanted;
};
__device__ __forceinline__ PagedLookup look_up(const PagedRows& rows, int key) {
  PagedLookup lookup{rows.only_page, static_cast<uint32_t>(key), key >= rows.seen && key < rows.keys};
  if (lookup.wanted && rows.table != nullptr) {
    const int index = divide(key, rows.page_size);
    lookup.slot -= static_cast<uint32_t>(index) * rows.page_size.value;
    lookup.page = rows.table[index];
  }
  return lookup;
}
__device__ __forceinline__ PagedRow resolve(const PagedRows& rows, const PagedLookup& lookup) {
  const bool present = lookup.wanted && lookup.page >= 0 && lookup.page < rows.pages;
  const int64_t offset = lookup.page * rows.stride_page + lookup.slot * rows.stride_slot;
  return {reinterpret_cast<uint64_t>(rows.data) + (present ? 2 * static_cast<uint64_t>(offset) : 0), present};
}

// 32 rows of kColumns elements from `column` on, lane l having found row l, to rows of `panel` columns of a stage whose
// panels are `panel_bytes` apart. `first` is the number of the first row in the stage.
template <int kColumns, int kPanel>
__device__ __forceinline__ void copy_rows(uint32_t stage, int panel_bytes, int first, const PagedRow& found, int column,
                                          int dims) {
  constexpr int kPieces = kColumns / 8;
  constexpr int kPanelPieces = kPanel / 8;
  const auto lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 4
  for (int i = 0; i < kPieces; ++i) {
    const int row = (32 * i + lane) / kPieces;
    const int piece = (32 * i + lane) % kPieces;
    const uint64_t source = __shfl_sync(0xffffffffU, found.address, row);
    const bool present = __shfl_sync(0xffffffffU, static_cast<int>(found.present), row) != 0;
    // The swizzle of the copy engine: address bits 4.. are xored with bits 7...
    const int offset = (first + row) * 2 * kPanel + piece % kPanelPieces * 16;
    const int swizzled = offset ^ ((offset >> 7 & (kPanelPieces - 1)) << 4);
    copy_piece(stage + static_cast<uint32_t>(piece / kPanelPieces * panel_bytes + swizzled),
               source + static_cast<uint64_t>(2 * (column + 8 * piece)), present && column + 8 * piece < dims);
  }
}

inline constexpr int kPagedWarps = 2;  // of K, and of V

__device__ __forceinline__ PagedRows rows_of(const DecodeArguments& args, const uint16_t* data,
                                             const DecodeStrides& strides, const Unit& unit) {
  return {data + unit.kv_head * strides.head,
          args.page_table == nullptr ? nullptr : args.page_table + unit.batch * args.page_table_stride,
          unit.batch,
          strides.batch,
          strides.token,
          args.num_pages,
          args.page_size,
          unit.seen,
          unit.keys};
}

// Warp 0 of them also finds the units and copies Q.
template <class Tag>
__device__ __forceinline__ void load_paged_keys(const DecodeArguments& args, uint32_t smem, int warp, int rank) {
  using Layout = DecodeLayout<Tag>;
  constexpr int kStep = 32 * kPagedWarps;
  constexpr int kSteps = Layout::kGranule / kStep;
  UnitDispatcher<Tag> units(args, smem);
  UnitReader<Tag> reader(smem);
  Unit unit;
  StageAt<Layout::kKStages> at;
  QueryCopy<Tag> queries;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  while (warp == 0 ? units.next(unit) : reader.next(unit)) {
    const UnitKeys<Tag> keys(unit);
    const PagedRows rows = rows_of(args, args.k, args.k_strides, unit);
    const int granules = keys.granules();
    PagedLookup next = look_up(rows, keys.begin + rank * Layout::kGranule + 32 * warp + lane);
    if (warp == 0) {
      queries.copy(args, smem, unit);
    }
    const int ask_at = max(rank, granules - kAskAhead);
#pragma unroll 1
    for (int granule = rank; granule < max(granules, 1); granule += Layout::kCluster) {
      if (warp == 0 && granule == ask_at) {
        units.ask();
      }
      if (granule == granules) {
        break;
      }
      barrier_wait(smem + Layout::kKEmpty + 8 * at.stage, at.parity ^ 1U);
      const uint32_t stage = smem + Layout::kK + at.stage * Layout::kKBytes;
#pragma unroll 1
      for (int i = 0; i < kSteps; ++i) {
        const PagedRow found = resolve(rows, next);
        const int following = i + 1 < kSteps ? granule * Layout::kGranule + (i + 1) * kStep
                                             : (granule + Layout::kCluster) * Layout::kGranule;
        next = look_up(rows, keys.begin + following + 32 * warp + lane);
        const int row = kStep * i + 32 * warp;
        copy_rows<Layout::kHeadDim, kPanelColumns>(stage, panel_bytes(Layout::kGranule), row, found, 0, args.dims);
        store_shared_byte(smem + Layout::kPresent + at.stage * Layout::kGranule + static_cast<uint32_t>(row + lane),
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
__device__ __forceinline__ void load_paged_values(const DecodeArguments& args, uint32_t smem, int warp, int rank) {
  using Layout = DecodeLayout<Tag>;
  constexpr int kStep = 32 * kPagedWarps;
  UnitReader<Tag> units(smem);
  Unit unit;
  StageAt<Layout::kVStages> at;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  while (units.next(unit)) {
    const UnitKeys<Tag> keys(unit);
    const PagedRows rows = rows_of(args, args.v, args.v_strides, unit);
    const int granules = keys.granules();
    PagedLookup next = look_up(rows, keys.begin + 32 * warp + lane);
#pragma unroll 1
    for (int begin = 0; begin < granules; begin += Layout::kCluster) {
      const int count = granules - begin < Layout::kCluster ? granules - begin : Layout::kCluster;
      barrier_wait(smem + Layout::kVEmpty + 8 * at.stage, at.parity ^ 1U);
      const uint32_t stage = smem + Layout::kV + at.stage * Layout::kVBytes;
#pragma unroll 1
      for (int row = 32 * warp; row < count * Layout::kGranule; row += kStep) {
        const PagedRow found = resolve(rows, next);
        next = look_up(rows, keys.begin + begin * Layout::kGranule + row + kStep + lane);
        copy_rows<Layout::kSlice, Layout::kPanel>(stage, Layout::kPanelGranule * Layout::kCluster, row, found,
                                                  rank * Layout::kSlice, args.dims);
      }
      arrive_after_copies(smem + Layout::kVFull + 8 * at.stage);
      at.advance();
    }
  }
}

}  // namespace tessera::sm90
