// What kernels for modified scores do to them besides R1's product and R2's ranges: softcap, ALiBi and custom bits.
//
// A key that the bits hide from every row of a tile may hold NaN, in V too, and +0 times NaN is NaN: the score warps
// tell which keys are seen, and the output warps take the others' V for zeros.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/softcap.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/fmha_decode/visible.cuh"

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

  // R2 but for custom bits.
  template <int kRows>
  __device__ __forceinline__ VisibleKeys<kRows> visible(const DecodeArguments& args) const {
    Unit unit{};
    unit.first_row = first_row_;
    unit.keys = keys_;
    return {args, unit};
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

  // ALiBi for natural scores of two rows and two keys, x[2 h + r] of row r and key + 8 h.
  static __device__ __forceinline__ void add_slopes(const Row (&rows)[2], int key, float* x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = fma_rn(rows[i % 2].slope, static_cast<float>(key + 8 * (i / 2) - rows[i % 2].position), x[i]);
    }
  }

  // Which of the keys that the row sees otherwise its custom bits hide, as bits. Others are not looked at.
  template <int kKeys>
  __device__ __forceinline__ uint32_t hidden(const Row& row, const int (&keys)[kKeys], uint32_t sees) const {
    uint32_t bytes[kKeys];  // all at once
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const int bit = keys[n] - covered_;
      bytes[n] = load_byte(row.bits + (bit >> 3), bit >= 0 && (sees >> n & 1U) != 0);
    }
    uint32_t hides = 0;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      hides |= (~bytes[n] >> ((keys[n] - covered_) & 7) & 1U) << n;
    }
    return hides;
  }

 private:
  // All bits set, and no read, unless `wanted`.
  static __device__ __forceinline__ uint32_t load_byte(const uint8_t* from, bool wanted) {
    uint32_t byte = 0xff;
    asm("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.u8 %0, [%1];\n}"
        : "+r"(byte)
        : "l"(from), "r"(static_cast<uint32_t>(wanted)));
    return byte;
  }

  int batch_, kv_head_, first_row_;
  int keys_;     // of the sequence
  int covered_;  // the first one with a custom bit
};

__device__ __forceinline__ void store_half(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(static_cast<uint16_t>(value)) : "memory");
}

}  // namespace tessera::sm90
