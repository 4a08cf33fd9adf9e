// FP8 rows (R11) in a granule's panels: a thread's eight codes of a panel land in the lower half of the 16-byte piece
// that they become, scales in the upper half of some pieces, so that nothing waits in registers for memory and each
// thread converts what it has fetched itself.
#pragma once

#include <cstdint>

#include "contract/fp8_rows.h"
#include "kernels/sm90/fp8_rows.cuh"
#include "kernels/sm90/shared_memory.cuh"
#include "kernels/sm90/smem_tile.cuh"

namespace tessera::sm90 {

// kBytes (4 or 8) of global memory to shared memory, asynchronously; zeros, and no read at all, unless `present`.
template <int kBytes>
__device__ __forceinline__ void copy_small_piece(uint32_t destination, const uint8_t* source, bool present) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %3, %2;" ::"r"(destination), "l"(source),
               "r"(present ? kBytes : 0), "n"(kBytes)
               : "memory");
}
__device__ __forceinline__ uint2 load_half_piece(uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}

// The format of rows of a head dim, as panels of 64 dims.
template <int kHeadDim>
struct MqaFp8Format {
  static constexpr Fp8Format kRow = fp8_format(kHeadDim == 512 ? TESSERA_KV_FP8_V4_584 : TESSERA_KV_FP8_V32_656);
  static_assert(kRow.head_dim_qk == kHeadDim);
  static constexpr bool kFooter = kRow.footer_bytes != 0;  // scales are behind the rows of a page
  static constexpr int kCodedPanels = kRow.coded_dims / kPanelColumns;
  static constexpr int kTilePanels = kRow.tile_dims / kPanelColumns;
  static constexpr int kPlainAt = static_cast<int>(kRow.row_bytes) - (kHeadDim - kRow.coded_dims) * 2;
  // Where in a row the scale of a tile is.
  static constexpr int scale_at(int panel) { return static_cast<int>(kRow.coded_dims) + panel / kTilePanels * 4; }
};

// Eight codes become bf16 at a shared address.
template <class Four>
__device__ __forceinline__ void put_converted(uint32_t piece, const uint2& codes, const Four& convert_four) {
  const uint2 low = convert_four(codes.x);
  const uint2 high = convert_four(codes.y);
  store_piece(piece, make_uint4(low.x, low.y, high.x, high.y));
}

// The codes of a panel in a thread's pieces of kRows rows, `row_step` apart, become bf16. At `scales`, `scale_step`
// apart, are the words with the scales of the rows: of footers, or tiles' own.
template <int kHeadDim, int kRows>
__device__ __forceinline__ void convert_pieces(uint32_t pieces, int row_step, int panel, uint32_t scales,
                                               int scale_step) {
  constexpr bool kFooter = MqaFp8Format<kHeadDim>::kFooter;
  uint2 codes[kRows];
  uint32_t words[kRows];  // a scale, as UE8M0 or fp32
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    words[row] = static_cast<uint32_t>(load_shared(scales + row * scale_step));
    codes[row] = load_half_piece(pieces + row * row_step);
  }
  uint32_t marks = 0;
  bool plain = true;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    words[row] = kFooter ? words[row] >> (8 * (panel % 4)) & 0xffU : words[row];
    plain = plain && (kFooter ? words[row] <= kFp8LargestByte : fabsf(__uint_as_float(words[row])) < kFp8LargestScale);
    marks |= fp8_nan_marks(codes[row].x) | fp8_nan_marks(codes[row].y);
  }
  plain = plain && (marks & 0x80808080U) == 0;
  const auto convert = [&](const auto& four_of) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      put_converted(pieces + row * row_step, codes[row], four_of(words[row]));
    }
  };
  if (!plain) {
    convert([](uint32_t word) {
      const float scale = kFooter ? ue8m0_to_f32(static_cast<uint8_t>(word)) : __uint_as_float(word);
      return [=](uint32_t four) { return fp8x4_to_bf16x4(four, scale); };
    });
  } else if (kFooter) {
    convert([](uint32_t word) {
      const uint32_t factor = fp8_factor(word);
      return [=](uint32_t four) { return fp8x4_to_bf16x4_by_factor(four, factor); };
    });
  } else {
    convert([](uint32_t word) {
      const float scale_256 = __fmul_rn(__uint_as_float(word), 256.0F);
      return [=](uint32_t four) { return fp8x4_to_bf16x4_by_scale(four, scale_256); };
    });
  }
}

}  // namespace tessera::sm90
