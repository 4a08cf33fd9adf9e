// The copying warps of a block that takes units alone, or shares one: K and V of a granule after another into one ring,
// row by row, from wherever pages put them.
#pragma once

#include <cstdint>

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/alone.h"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/rows.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

// Copies granules of K, or of V: rows of a kShare-th of the head dim, of which a stage holds so many more. Where rows
// of K and V differ in length, both are copied in strips of 64 dims, because then a thread has the same rows of both;
// rows that are longer than a warp is wide, in strips of 256.
template <class Tag, bool kValues>
class GranuleCopy {
  using Layout = AloneLayout<Tag>;
  static constexpr int kShare = kValues ? Layout::kShare : 1;
  static constexpr int kDims = kValues ? Layout::kValueDim : Layout::kHeadDim;
  static constexpr int kRowBytes = kDims * 2 / kShare;
  static constexpr int kStripDims = Layout::kHeadDim == Layout::kValueDim ? 256 : 64;
  static constexpr int kStrips = kStripDims == 64 ? kDims / 64 : (kDims + kStripDims - 1) / kStripDims;
  static constexpr int kPieces = kRowBytes / 16 / kStrips;
  static constexpr int kStageKeys = Layout::kStageKeys * kShare;
  static constexpr int kStages = Layout::kGranuleStages / kShare;
  static constexpr int kStep = 32 * Layout::kCopyWarps / kPieces;  // rows that all threads copy at once
  static constexpr int kRowsAtOnce = 32 / kPieces;                 // by a warp
  static constexpr int kStageRows = kStageKeys / kStep;            // of a stage, per thread
  static constexpr int kWarpRows = kStageRows * kRowsAtOnce;       // and per warp
  static constexpr int kShuffled = kStageRows < 4 ? kStageRows : 4;
  using At = StageAt<Layout::kStages>;  // where the copying warps stand in the ring
  static_assert(kWarpRows * kStages <= 32, "lanes: allowed one per row of a granule");

 public:
  // `thread` of the copying warps'; rows' pieces from `first_piece` on.
  __device__ __forceinline__ GranuleCopy(const DecodeArguments& args, uint32_t smem, int thread, int first_piece)
      : smem_(smem),
        row_(thread / kPieces),
        piece_(thread % kPieces),
        column_(8 * (first_piece + piece_)),
        wanted_(column_ < dims(args)) {}

  // Elements from the first of a row to the thread's piece.
  __device__ __forceinline__ int column() const { return column_; }

  // Whether the rows are as long as the kernel's.
  static __device__ __forceinline__ bool is_full(const DecodeArguments& args) { return dims(args) == kDims; }

  // A granule of which every row is there, one after another.
  __device__ __forceinline__ void whole(At& at, const uint16_t* data, int64_t stride, int first) const {
    data += (first + row_) * stride;
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      const uint32_t to = next_stage(at);
#pragma unroll
      for (int i = 0; i < kStageRows; ++i) {
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip) {
          copy_piece(place(to, i, strip), data + strip * kStripDims);
        }
        data += kStep * stride;
      }
      end_stage(at);
    }
  }

  // Of a granule, the row that the lane looks up: the warp's rows of the first stage, then those of the next one.
  __device__ __forceinline__ int own_row() const {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const int index = lane % kWarpRows;
    return row_ - lane / kPieces + lane / kWarpRows % kStages * kStageKeys + kStep * (index / kRowsAtOnce) +
           index % kRowsAtOnce;
  }
  // `entry` is what the table says of the lane's own row.
  __device__ __forceinline__ void found(At& at, const Pages& pages, const uint16_t* data, const DecodeStrides& strides,
                                        int first, int32_t entry, const DecodeArguments& args) const {
    const int page = pages.page(first + own_row(), entry);
    const int64_t mine = pages.offset(first + own_row(), page, strides);
    const uint32_t there = __ballot_sync(kAllLanes, page >= 0);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      const uint32_t to = next_stage(at);
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
          const bool present = (there >> (lane + kRowsAtOnce * i) & 1U) != 0;
#pragma unroll
          for (int strip = 0; strip < kStrips; ++strip) {
            const bool wanted = kStrips == 1 ? wanted_ : column_ + strip * kStripDims < dims(args);
            copy_piece(place(to, begin + i, strip), data + rows[i] + strip * kStripDims, wanted && present);
          }
        }
      }
      end_stage(at);
    }
  }

 private:
  static __device__ __forceinline__ int dims(const DecodeArguments& args) {
    return Tag::kTwoDims && !kValues ? args.qk_dims : args.dims;
  }
  // Where the thread's first piece of the next stage goes, once that is free.
  __device__ __forceinline__ uint32_t next_stage(const At& at) const {
    barrier_wait(smem_ + Layout::kEmpty + 8 * at.stage, at.parity ^ 1U);
    return smem_ + Layout::kRing + at.stage * Layout::kStageBytes +
           static_cast<uint32_t>(row_ * kRowBytes + 16 * (piece_ ^ row_ % 8));
  }
  // Of the thread's piece of its i-th row of a stage, in a strip: a known part of the swizzle differs, if any.
  static __device__ __forceinline__ uint32_t place(uint32_t first, int i, int strip) {
    return (first ^ static_cast<uint32_t>(kStep * i % 8 * 16)) +
           static_cast<uint32_t>(kStep * i * kRowBytes + strip * kStripDims * 2);
  }
  __device__ __forceinline__ void end_stage(At& at) const {
    arrive_after_copies(smem_ + Layout::kFull + 8 * at.stage);
    at.advance();
  }

  uint32_t smem_;
  int row_, piece_, column_;
  bool wanted_;
};

template <class Tag>
class AloneCopy {
  using Layout = AloneLayout<Tag>;
  static constexpr int kShare = Layout::kShare;
  static constexpr int kAhead = 6 / kShare;  // rounds whose rows are looked up: an answer takes as long as a granule

 public:
  // `thread` of the copying warps'.
  __device__ __forceinline__ AloneCopy(const DecodeArguments& args, uint32_t smem, int thread)
      : args_(args),
        rank_(kShare == 1 ? 0 : static_cast<int>(cluster_rank())),
        keys_(args, smem, thread, 0),
        values_(args, smem, thread, rank_ * Layout::kValueRowBytes / 16) {}

  __device__ __forceinline__ void run() {
    UnitFinder<Tag> finder(args_);
#pragma unroll 1
    for (int number = static_cast<int>(blockIdx.x) / kShare;; number += static_cast<int>(gridDim.x)) {
      const Unit unit = finder.find(number);
      if (uniform(unit.batch) < 0) {
        return;
      }
      const UnitKeys<Tag> keys(unit);
      const uint16_t* k = args_.k + unit.kv_head * args_.k_strides.head + keys_.column();
      const uint16_t* v = args_.v + unit.kv_head * args_.v_strides.head + values_.column();
      if (args_.page_table != nullptr) {
        copy_pages(k, v, unit, keys);
      } else {
        copy_contiguous(k, v, unit, keys);
      }
      if (kShare > 1) {
        return;
      }
    }
  }

 private:
  __device__ __forceinline__ void copy_contiguous(const uint16_t* k, const uint16_t* v, const Unit& unit,
                                                  const UnitKeys<Tag>& keys) {
    const Pages pages(args_, unit);
    const auto copy = [&](const auto& copier, const uint16_t* data, const DecodeStrides& strides, int first) {
      if (first >= unit.seen && first + Layout::kGranule <= unit.keys && copier.is_full(args_)) {
        copier.whole(at_, data + unit.batch * strides.batch, strides.token, first);
      } else {
        copier.found(at_, pages, data, strides, first, pages.ask(first + copier.own_row()), args_);
      }
    };
    const int own = rank_ * Layout::kGranule;
    if (keys.begin + own < keys.end) {
      copy(keys_, k, args_.k_strides, keys.begin + own);
    }
#pragma unroll 1
    for (int first = keys.begin; first < keys.end; first += Layout::kRound) {
      if (first + Layout::kRound + own < keys.end) {
        copy(keys_, k, args_.k_strides, first + Layout::kRound + own);
      }
#pragma unroll 1
      for (int i = 0; i < kShare && first + i * Layout::kGranule < keys.end; ++i) {
        copy(values_, v, args_.v_strides, first + i * Layout::kGranule);
      }
    }
  }

  // What the table says of the rows that the lane looks up for a round: of V, and of K where those are other ones.
  struct Found {
    int32_t values[kShare];
    int32_t keys;
  };
  __device__ __forceinline__ Found look_up(const Pages& pages, int first) const {
    Found found;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      found.values[i] = pages.ask(first + i * Layout::kGranule + values_.own_row());
    }
    found.keys = kShare == 1 ? found.values[0] : pages.ask(first + rank_ * Layout::kGranule + keys_.own_row());
    return found;
  }

  __device__ __forceinline__ void copy_pages(const uint16_t* k, const uint16_t* v, const Unit& unit,
                                             const UnitKeys<Tag>& keys) {
    const Pages pages(args_, unit);
    const int own = rank_ * Layout::kGranule;
    if (keys.begin >= keys.end) {
      return;
    }
    Found found[kAhead];  // of the round whose V is next, and those behind it
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      found[i] = look_up(pages, keys.begin + i * Layout::kRound);
    }
    if (keys.begin + own < keys.end) {
      keys_.found(at_, pages, k, args_.k_strides, keys.begin + own, found[0].keys, args_);
    }
#pragma unroll 1
    for (int first = keys.begin; first < keys.end; first += Layout::kRound) {
      const Found after = look_up(pages, first + kAhead * Layout::kRound);
      const int next = first + Layout::kRound + own;
      if (next < keys.end) {
        keys_.found(at_, pages, k, args_.k_strides, next, found[1].keys, args_);
      }
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        if (first + i * Layout::kGranule < keys.end) {
          values_.found(at_, pages, v, args_.v_strides, first + i * Layout::kGranule, found[0].values[i], args_);
        }
      }
#pragma unroll
      for (int i = 0; i + 1 < kAhead; ++i) {
        found[i] = found[i + 1];
      }
      found[kAhead - 1] = after;
    }
  }

  const DecodeArguments& args_;
  int rank_;
  StageAt<Layout::kStages> at_;
  GranuleCopy<Tag, false> keys_;
  GranuleCopy<Tag, true> values_;
};

}  // namespace tessera::sm90
