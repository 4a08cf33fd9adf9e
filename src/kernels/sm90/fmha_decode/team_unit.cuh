// What every warp of a team knows of its unit, and the copies: all of the block's K and V is asked for at once,
// straight to its place.
//
// Block r scores granules r, r + n, ... Its k16 blocks are dealt to the warps: number w + 8 t is tile t of warp w.
#pragma once

#include <cstdint>

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/rows.cuh"
#include "kernels/sm90/fmha_decode/team.h"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

template <class Tag>
class TeamUnit {
  using Layout = TeamLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kTeam = Layout::kTeam;
  static constexpr int kTiles = Layout::kTiles;

 public:
  __device__ __forceinline__ TeamUnit(const DecodeArguments& args, uint32_t smem, const Unit& unit)
      : args_(args),
        smem_(smem),
        unit_(unit),
        keys_(unit),
        warp_(uniform(static_cast<int>(threadIdx.x) / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        rank_(static_cast<int>(cluster_rank())) {
    granules_ = uniform(keys_.granules());
  }

 protected:
  // Rows of the tile that exist; P of the others is never sent.
  __device__ __forceinline__ int rows() const {
    return min(kRows, args_.seqlen_q * static_cast<int>(args_.group.value) - unit_.first_row);
  }

  // Number of the tile among the block's k16 blocks; their granule, and its first key.
  __device__ __forceinline__ int number_of(int tile) const { return warp_ + kTeamWarps * tile; }
  __device__ __forceinline__ int granule_of(int tile) const {
    return number_of(tile) / Layout::kGranuleBlocks * kTeam + rank_;
  }
  __device__ __forceinline__ int first_key(int tile) const {
    return keys_.begin + granule_of(tile) * Layout::kGranule + number_of(tile) % Layout::kGranuleBlocks * 16;
  }
  // The tile's k16 block among those of the unit.
  __device__ __forceinline__ int block_of(int tile) const {
    return granule_of(tile) * Layout::kGranuleBlocks + number_of(tile) % Layout::kGranuleBlocks;
  }

  // Whether all of these keys have rows, one after another and as wide as the kernel's.
  __device__ __forceinline__ bool all_there(int first, int count) const {
    return args_.page_table == nullptr && args_.dims == Layout::kHeadDim && first >= unit_.seen &&
           first + count <= min(keys_.end, unit_.keys);
  }

  // Every thread asks for 32 bytes of the unit's part of the page table, so that later look-ups need not wait for
  // memory. The answer has no meaning; who drops it waits for it.
  __device__ __forceinline__ int32_t touch_pages() const {
    int32_t entry = 0;
    if (args_.page_table != nullptr && granules_ > 0) {
      constexpr int kEntries = 8;
      const int last = divide(keys_.end - 1, args_.page_size);
      const int own = divide(keys_.begin, args_.page_size) + kEntries * static_cast<int>(threadIdx.x);
      const int32_t* from = args_.page_table + unit_.batch * args_.page_table_stride + min(own, last);
      asm volatile("ld.global.b32 %0, [%1];" : "=r"(entry) : "l"(from) : "memory");
    }
    return entry;
  }
  static __device__ __forceinline__ void drop(int32_t entry) { asm volatile("" ::"r"(entry) : "memory"); }

  // The warp's own keys: nobody else reads them.
  __device__ __forceinline__ void copy_keys() {
    constexpr int kPieces = Layout::kKRow / 16;
    const uint16_t* data = args_.k + unit_.kv_head * args_.k_strides.head;
    const Pages pages(args_, unit_);
    int32_t entries[kTiles];
    if (args_.page_table != nullptr && granules_ > 0) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        entries[t] = pages.ask(first_key(t) + lane_ % 16);
      }
    }
    if (granules_ > 0) {
      // Asked for behind K's copies, an answer would come behind K.
#pragma unroll
      for (int i = 0; i < kEarlyRows; ++i) {
        early_[i] = pages.ask(keys_.begin + value_row<0, kTeamThreads>(i));
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (granule_of(t) >= granules_) {
        there_[t] = 0;
        continue;  // the place may be somebody's already: nobody waits for this warp
      }
      const uint32_t to = smem_ + Layout::kK + static_cast<uint32_t>(16 * number_of(t) * Layout::kKRow);
      if (all_there(first_key(t), 16)) {
        there_[t] = kAllLanes;
        const int64_t stride = args_.k_strides.token;
        // Rows that are copied one after another differ in a known part of the swizzle.
        const uint32_t swizzled =
            to + static_cast<uint32_t>(lane_ / kPieces * Layout::kKRow + (lane_ % kPieces ^ lane_ / kPieces % 8) * 16);
        const uint16_t* from = data + unit_.batch * args_.k_strides.batch + (first_key(t) + lane_ / kPieces) * stride +
                               lane_ % kPieces * 8;
#pragma unroll
        for (int i = 0; i < kPieces / 2; ++i) {
          constexpr int kRowsAtOnce = 32 / kPieces;
          copy_piece((swizzled ^ static_cast<uint32_t>(kRowsAtOnce * i % 8 * 16)) +
                         static_cast<uint32_t>(kRowsAtOnce * i * Layout::kKRow),
                     from);
          from += 32 / kPieces * stride;
        }
        continue;
      }
      if (args_.page_table == nullptr) {
        entries[t] = pages.ask(first_key(t) + lane_ % 16);
      }
      const int page = pages.page(first_key(t) + lane_ % 16, entries[t]);
      there_[t] = __ballot_sync(kAllLanes, page >= 0);
      const int64_t mine = pages.offset(first_key(t) + lane_ % 16, page, args_.k_strides);
      constexpr int kShuffled = 8;
#pragma unroll
      for (int begin = 0; begin < kPieces / 2; begin += kShuffled) {
        int64_t rows[kShuffled];  // all of them, and then the copies: else every copy waits for its shuffle
#pragma unroll
        for (int i = 0; i < kShuffled && begin + i < kPieces / 2; ++i) {
          rows[i] = __shfl_sync(kAllLanes, mine, (32 * (begin + i) + lane_) / kPieces);
        }
#pragma unroll
        for (int i = 0; i < kShuffled && begin + i < kPieces / 2; ++i) {
          const int row = (32 * (begin + i) + lane_) / kPieces;
          const int piece = (32 * (begin + i) + lane_) % kPieces;
          copy_piece(to + static_cast<uint32_t>(row * Layout::kKRow + (piece ^ row % 8) * 16),
                     data + rows[i] + 8 * piece, (there_[t] >> row & 1U) != 0 && 8 * piece < args_.dims);
        }
      }
    }
    commit_copies();
  }

  // Row number i of V that a thread of the last kThreads copies of a half.
  template <int kHalf, int kThreads>
  static __device__ __forceinline__ int value_row(int i) {
    const auto thread = static_cast<int>(threadIdx.x) - (kTeamThreads - kThreads);
    return kHalf * Layout::kHalf + thread / 2 + i * (kThreads / 2);
  }

  // Columns 16 rank .. of half of the unit's rows of V: two of the last kThreads threads take a row, and of their rows
  // numbers kFrom .. kTo - 1.
  template <int kHalf, int kThreads, int kFrom, int kTo>
  __device__ __forceinline__ void copy_values() const {
    constexpr int kValueRows = kThreads / 2;
    const auto thread = static_cast<int>(threadIdx.x) - (kTeamThreads - kThreads);
    const int piece = thread % 2;
    const int column = rank_ * kDecodeColumnGroup + 8 * piece;
    const int end = min(granules_ * Layout::kGranule, (kHalf + 1) * Layout::kHalf);
    const uint32_t to = smem_ + (kHalf == 0 ? Layout::kV : Layout::kV2) +
                        static_cast<uint32_t>(thread / 2 * Layout::kVRow + (piece ^ thread / 8 % 2) * 16);
    const uint16_t* data = args_.v + unit_.kv_head * args_.v_strides.head + column;
    if (all_there(keys_.begin + kHalf * Layout::kHalf, Layout::kHalf)) {
      const int64_t stride = args_.v_strides.token;
      data += unit_.batch * args_.v_strides.batch + (keys_.begin + value_row<kHalf, kThreads>(kFrom)) * stride;
#pragma unroll
      for (int i = kFrom; i < kTo; ++i) {
        copy_piece(to + static_cast<uint32_t>(i * kValueRows * Layout::kVRow), data);
        data += kValueRows * stride;
      }
    } else if (granules_ > 0) {
      const Pages pages(args_, unit_);
      constexpr int kLookups = 4;  // on their way at a time
#pragma unroll 1
      for (int first = kFrom; first < kTo; first += kLookups) {
        int32_t entries[kLookups];
#pragma unroll
        for (int i = 0; i < kLookups; ++i) {
          static_assert(kHalf == 1 || (kThreads == kTeamThreads && kTo - kFrom == kLookups), "rows asked for early");
          entries[i] = kHalf == 0 ? early_[kFrom % kEarlyRows + i]
                                  : pages.ask(keys_.begin + value_row<kHalf, kThreads>(first + i));
        }
#pragma unroll
        for (int i = 0; i < kLookups; ++i) {
          const int row = value_row<kHalf, kThreads>(first + i);
          if (row < end) {
            const int page = pages.page(keys_.begin + row, entries[i]);
            copy_piece(to + static_cast<uint32_t>((first + i) * kValueRows * Layout::kVRow),
                       data + pages.offset(keys_.begin + row, page, args_.v_strides), page >= 0 && column < args_.dims);
          }
        }
      }
    }
    if (kTo * kValueRows == Layout::kHalf) {
      if (kHalf == 0 || granules_ > Layout::kGranules / 2) {  // else nobody waits for it
        arrive_after_copies(smem_ + Layout::kVFull + 8 * kHalf);
      }
    }
    commit_copies();
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  Unit unit_;
  UnitKeys<Tag> keys_;
  int warp_, lane_, rank_;
  int granules_;            // of the unit
  uint32_t there_[kTiles];  // bit r: row r of the tile is a key whose page exists
  // Entries of the page table of the thread's rows of V's first half.
  static constexpr int kEarlyRows = Layout::kHalf / (kTeamThreads / 2);
  int32_t early_[kEarlyRows];
};

}  // namespace tessera::sm90
