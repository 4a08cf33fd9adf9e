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

 public:
  // Asks for the rows.
  __device__ __forceinline__ void fetch(const DecodeArguments& args, const Unit& unit) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int row = index(i) / kPieces;
      const int token = row / args.group;
      const int64_t head = unit.head * args.group + row % args.group;
      piece_[i] = make_uint4(0, 0, 0, 0);
      if (token < args.seqlen_q) {
        piece_[i] =
            *reinterpret_cast<const uint4*>(args.q + unit.batch * args.q_strides.batch + token * args.q_strides.token +
                                            head * args.q_strides.head + index(i) % kPieces * 8);
      }
    }
  }

  // Puts them into the next slot, once it is free.
  __device__ __forceinline__ void store(uint32_t smem) {
    barrier_wait(smem + Layout::kQEmpty + 8 * at_.stage, at_.parity ^ 1U);
    const uint32_t q = smem + Layout::kQ + at_.stage * Layout::kQBytes;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      store_piece(q + swizzled_offset(Layout::kRows, index(i) / kPieces, index(i) % kPieces * 8), piece_[i]);
    }
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(smem + Layout::kQFull + 8 * at_.stage);
    }
    at_.advance();
  }

 private:
  static __device__ __forceinline__ int index(int i) {
    return 32 * i + static_cast<int>(threadIdx.x % 32);
  }

  uint4 piece_[kPerLane];
  StageAt<kSlots> at_;
};

}  // namespace tessera::sm90
