// Q of a unit, from global to swizzled shared memory by one warp; rows beyond the last one are zeros.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"
#include "kernels/sm90/smem_tile.cuh"

namespace tessera::sm90 {

template <class Tag>
class QueryCopy {
  using Layout = DecodeLayout<Tag>;
  static constexpr int kPieces = Layout::kHeadDim / 8;  // of 16 bytes, of a row
  static constexpr int kPerLane = Layout::kRows * kPieces / 32;
  static constexpr int kAhead = kPerLane < 4 ? kPerLane : 4;  // pieces in flight

 public:
  // Fills the next slot, once it is free.
  __device__ __forceinline__ void copy(const DecodeArguments& args, uint32_t smem, const Unit& unit) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    barrier_wait(smem + Layout::kQEmpty + 8 * at_.stage, at_.parity ^ 1U);
    const uint32_t q = smem + Layout::kQ + at_.stage * Layout::kQBytes;
#pragma unroll 1
    for (int first = lane; first < 32 * kPerLane; first += 32 * kAhead) {
      uint4 pieces[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int row = unit.first_row + (first + 32 * i) / kPieces;
        const int dim = (first + 32 * i) % kPieces * 8;
        const int token = divide(row, args.group);
        const auto group = static_cast<int>(args.group.value);
        const int64_t head = unit.kv_head * group + row - token * group;
        pieces[i] = make_uint4(0, 0, 0, 0);
        if (token < args.seqlen_q && dim < args.dims) {
          pieces[i] = *reinterpret_cast<const uint4*>(args.q + unit.batch * args.q_strides.batch +
                                                      token * args.q_strides.token + head * args.q_strides.head + dim);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        store_piece(q + swizzled_offset(Layout::kRows, (first + 32 * i) / kPieces, (first + 32 * i) % kPieces * 8),
                    pieces[i]);
      }
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(smem + Layout::kQFull + 8 * at_.stage);
    }
    at_.advance();
  }

 private:
  StageAt<kSlots> at_;
};

}  // namespace tessera::sm90
