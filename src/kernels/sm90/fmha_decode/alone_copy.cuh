// The copying warps of a block that takes its units alone: K and V of a granule after another into one ring, row by
// row, from wherever pages put them.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/alone.h"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/rows.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

template <class Tag>
class AloneCopy {
  using Layout = AloneLayout<Tag>;
  static constexpr int kPieces = Layout::kHeadDim / 8;           // of 16 bytes, of a row
  static constexpr int kStep = 32 * kAloneCopyWarps / kPieces;   // rows that all threads copy at once
  static constexpr int kRowsAtOnce = 32 / kPieces;               // by a warp
  static constexpr int kStageRows = Layout::kStageKeys / kStep;  // of a stage, per thread
  static constexpr int kWarpRows = kStageRows * kRowsAtOnce;     // and per warp
  static constexpr int kAhead = 6;                               // granules whose rows are looked up
  static constexpr int kShuffled = 4;
  static_assert(kWarpRows * Layout::kGranuleStages <= 32, "lanes: allowed one per row of a granule");

 public:
  // `thread` of the copying warps'.
  __device__ __forceinline__ AloneCopy(const DecodeArguments& args, uint32_t smem, int thread)
      : args_(args), smem_(smem), row_(thread / kPieces), piece_(thread % kPieces), wanted_(8 * piece_ < args.dims) {}

  __device__ __forceinline__ void run() {
    UnitFinder<Tag> finder(args_);
#pragma unroll 1
    for (int number = static_cast<int>(blockIdx.x);; number += static_cast<int>(gridDim.x)) {
      const Unit unit = finder.find(number);
      if (uniform(unit.batch) < 0) {
        return;
      }
      const UnitKeys<Tag> keys(unit);
      const uint16_t* k = args_.k + unit.kv_head * args_.k_strides.head + 8 * piece_;
      const uint16_t* v = args_.v + unit.kv_head * args_.v_strides.head + 8 * piece_;
      if (args_.page_table != nullptr) {
        copy_pages(k, v, unit, keys);
      } else {
        copy_contiguous(k, v, unit, keys);
      }
    }
  }

 private:
  __device__ __forceinline__ void copy_contiguous(const uint16_t* k, const uint16_t* v, const Unit& unit,
                                                  const UnitKeys<Tag>& keys) {
    const Pages pages(args_, unit);
    const auto copy = [&](const uint16_t* data, const DecodeStrides& strides, int first) {
      if (first >= unit.seen && first + Layout::kGranule <= unit.keys && args_.dims == Layout::kHeadDim) {
        copy_whole(data + unit.batch * strides.batch, strides.token, first);
      } else {
        copy_found(pages, data, strides, first, pages.of(first + own_row()));
      }
    };
    if (keys.begin < keys.end) {
      copy(k, args_.k_strides, keys.begin);
    }
#pragma unroll 1
    for (int first = keys.begin; first < keys.end; first += Layout::kGranule) {
      if (first + Layout::kGranule < keys.end) {
        copy(k, args_.k_strides, first + Layout::kGranule);
      }
      copy(v, args_.v_strides, first);
    }
  }

  // A granule of K or V of which every row is there, one after another.
  __device__ __forceinline__ void copy_whole(const uint16_t* data, int64_t stride, int first) {
    data += (first + row_) * stride;
#pragma unroll
    for (int stage = 0; stage < Layout::kGranuleStages; ++stage) {
      const uint32_t to = next_stage();
#pragma unroll
      for (int i = 0; i < kStageRows; ++i) {
        copy_piece(place(to, i), data);
        data += kStep * stride;
      }
      end_stage();
    }
  }

  // The warp's rows of a granule are looked up one per lane, for K and V at once, and kAhead granules before the rows
  // are asked for: an answer of the table takes as long as a granule.
  __device__ __forceinline__ void copy_pages(const uint16_t* k, const uint16_t* v, const Unit& unit,
                                             const UnitKeys<Tag>& keys) {
    const Pages pages(args_, unit);
    int found[kAhead];  // of the granule whose V is next, and those behind it
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      found[i] = pages.of(keys.begin + i * Layout::kGranule + own_row());
    }
    if (keys.begin < keys.end) {
      copy_found(pages, k, args_.k_strides, keys.begin, found[0]);
    }
#pragma unroll 1
    for (int first = keys.begin; first < keys.end; first += Layout::kGranule) {
      const int after = pages.of(first + kAhead * Layout::kGranule + own_row());
      if (first + Layout::kGranule < keys.end) {
        copy_found(pages, k, args_.k_strides, first + Layout::kGranule, found[1]);
      }
      copy_found(pages, v, args_.v_strides, first, found[0]);
#pragma unroll
      for (int i = 0; i + 1 < kAhead; ++i) {
        found[i] = found[i + 1];
      }
      found[kAhead - 1] = after;
    }
  }

  // Of a granule, the row that the lane looks up: the warp's rows of the first stage, then those of the second one.
  __device__ __forceinline__ int own_row() const {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const int index = lane % kWarpRows;
    return row_ - lane / kPieces + lane / kWarpRows % Layout::kGranuleStages * Layout::kStageKeys +
           kStep * (index / kRowsAtOnce) + index % kRowsAtOnce;
  }
  // `found` is the page of the lane's own row.
  __device__ __forceinline__ void copy_found(const Pages& pages, const uint16_t* data, const DecodeStrides& strides,
                                             int first, int found) {
    const int64_t mine = pages.offset(first + own_row(), found, strides);
    const uint32_t there = __ballot_sync(kAllLanes, found >= 0);
#pragma unroll
    for (int stage = 0; stage < Layout::kGranuleStages; ++stage) {
      const uint32_t to = next_stage();
      __syncwarp();
#pragma unroll
      for (int begin = 0; begin < kStageRows; begin += kShuffled) {
        const int lane = stage * kWarpRows + kRowsAtOnce * begin + static_cast<int>(threadIdx.x % 32) / kPieces;
        int64_t rows[kShuffled];  // all of them, and then the copies: else every copy waits for its shuffle
#pragma unroll
        for (int i = 0; i < kShuffled; ++i) {
          rows[i] = __shfl_sync(kAllLanes, mine, lane + kRowsAtOnce * i);
        }
#pragma unroll
        for (int i = 0; i < kShuffled; ++i) {
          const bool present = wanted_ && (there >> (lane + kRowsAtOnce * i) & 1U) != 0;
          copy_piece(place(to, begin + i), data + rows[i], present);
        }
      }
      end_stage();
    }
  }

  // Where the thread's first piece of the next stage goes, once that is free.
  __device__ __forceinline__ uint32_t next_stage() const {
    barrier_wait(smem_ + Layout::kEmpty + 8 * at_.stage, at_.parity ^ 1U);
    return smem_ + Layout::kRing + at_.stage * Layout::kStageBytes +
           static_cast<uint32_t>(row_ * Layout::kRowBytes + 16 * (piece_ ^ row_ % 8));
  }
  // Of the thread's i-th piece of a stage: a known part of the swizzle differs, if any.
  static __device__ __forceinline__ uint32_t place(uint32_t first, int i) {
    return (first ^ static_cast<uint32_t>(kStep * i % 8 * 16)) + static_cast<uint32_t>(kStep * i * Layout::kRowBytes);
  }
  __device__ __forceinline__ void end_stage() {
    arrive_after_copies(smem_ + Layout::kFull + 8 * at_.stage);
    at_.advance();
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int row_, piece_;
  bool wanted_;
  StageAt<Layout::kStages> at_;
};

}  // namespace tessera::sm90
