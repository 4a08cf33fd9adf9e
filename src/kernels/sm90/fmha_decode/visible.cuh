// R2: which keys the rows of a lane see.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/units.cuh"

namespace tessera::sm90 {

// A lane's rows 8 (i / 2) + 2 (lane mod 4) + i mod 2 of a unit's tile, i = 0 .. kRows / 4 - 1.
template <int kRows>
class VisibleKeys {
 public:
  VisibleKeys() = default;
  __device__ __forceinline__ VisibleKeys(const DecodeArguments& args, const Unit& unit) {
    const auto q = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int row = unit.first_row + 8 * (i / 2) + 2 * q + i % 2;
      const int token = divide(row, args.group);
      const int position = unit.keys - args.seqlen_q + token;
      int end = unit.keys;
      if (args.causal != 0) {
        end = min(end, position + 1);
      }
      if (args.window_right >= 0) {
        end = min(end, position + 1 + args.window_right);
      }
      first_[i] = args.window < 0 ? 0 : max(0, position - args.window);
      count_[i] = token < args.seqlen_q ? static_cast<uint32_t>(max(0, end - first_[i])) : 0;
    }
  }

  // Where there are several segments: the first query token stands at `position`.
  static __device__ __forceinline__ VisibleKeys of_segment(const DecodeArguments& args, int first_row, int position,
                                                           int keys) {
    VisibleKeys visible;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int token = divide(first_row + 8 * (i / 2) + 2 * static_cast<int>(threadIdx.x % 4) + i % 2, args.group);
      const Sight sight = sight_of(args, int64_t{position} + token, keys);
      visible.first_[i] = sight.first;
      visible.count_[i] = token < args.seqlen_q ? static_cast<uint32_t>(max(0, sight.end - sight.first)) : 0;
    }
    return visible;
  }

  __device__ __forceinline__ bool sees(int i, int key) const {
    return static_cast<uint32_t>(key - first_[i]) < count_[i];
  }

 private:
  int first_[kRows / 4];
  uint32_t count_[kRows / 4];
};

}  // namespace tessera::sm90
