// What kernels for modified scores do to them besides R1's product and R2's ranges: softcap, ALiBi and custom bits.
//
// A key that the bits hide from every row of a tile may hold NaN, in V too, and +0 times NaN is NaN: the score warps
// tell which keys are seen, and the output warps take the others' V for zeros.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/softcap.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"

namespace tessera::sm90 {

// Of one unit. What a row needs is found anew for each granule, because registers are few.
class ScoreModifiers {
 public:
  ScoreModifiers() = default;
  __device__ __forceinline__ ScoreModifiers(const DecodeArguments& args, const Unit& unit)
      : batch_(unit.batch), kv_head_(unit.kv_head), first_row_(unit.first_row), keys_(unit.keys) {
    const int64_t bits = args.mask.num_keys;
    covered_ = args.mask.data == nullptr      ? unit.keys
               : bits < 0 || bits > unit.keys ? 0
                                              : unit.keys - static_cast<int>(bits);
  }

  // Whether custom bits cover any key before `end`.
  __device__ __forceinline__ bool covers(int end) const { return end > covered_; }

  // A row of the tile. It may be none of the problem's; then nothing is read for it.
  struct Row {
    float slope;
    int position;
    const uint8_t* bits;
  };
  __device__ __forceinline__ Row row(const DecodeArguments& args, int in_tile) const {
    const auto group = static_cast<int>(args.group.value);
    const int row = first_row_ + in_tile;
    const int token = divide(row, args.group);
    const int64_t head = kv_head_ * group + row - token * group;
    return {
        args.alibi_slopes != nullptr && token < args.seqlen_q ? args.alibi_slopes[head] : 0.0F,
        keys_ - args.seqlen_q + token,
        args.mask.data + batch_ * args.mask.stride_batch + head * args.mask.stride_head + token * args.mask.stride_row};
  }

  // R1's modifiers of two rows' scores of two keys, x[2 h + r] of row r and key + 8 h, when they make scores natural.
  __device__ __forceinline__ void modify(const DecodeArguments& args, const Row (&rows)[2], int key,
                                         float (&x)[4]) const {
#pragma unroll
    for (float& score : x) {
      score = mul_rn(score, args.softmax_scale);
    }
    if (args.softcap != 0.0F) {
      cap_scores(x, args.softcap, args.softcap_inverse);
    }
    if (args.alibi_slopes != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = fma_rn(rows[i % 2].slope, static_cast<float>(key + 8 * (i / 2) - rows[i % 2].position), x[i]);
      }
    }
  }

  // The custom bit of a row that exists and a key below the length; set before the covered ones.
  __device__ __forceinline__ bool allows(const Row& row, int key) const {
    const int bit = key - covered_;
    return bit < 0 || (row.bits[bit >> 3] >> (bit & 7) & 1) != 0;
  }

 private:
  int batch_, kv_head_, first_row_;
  int keys_;     // of the sequence
  int covered_;  // the first one with a custom bit
};

__device__ __forceinline__ void store_half(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(static_cast<uint16_t>(value)) : "memory");
}

}  // namespace tessera::sm90
