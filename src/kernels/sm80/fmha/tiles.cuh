// Global memory to swizzled shared memory: tiles of rows of 16-bit elements, zero where there is no row or no element.
//
// A row of a tile is a whole number of panels of 128 bytes. The 16-byte piece c of a panel lies at c ^ (row mod 8), so
// that the eight rows of an 8 x 8 matrix lie in different banks. Eight neighbouring threads copy the pieces of a panel.
#pragma once

#include <cstdint>

#include "kernels/sm80/fmha/config.h"
#include "kernels/sm80/fmha/ptx.cuh"
#include "kernels/sm80/fmha/visibility.cuh"

namespace tessera::sm80 {

inline constexpr int kPieceElements = 8;  // 16 bytes
inline constexpr int kPanelPieces = 8;
inline constexpr int kPieceBytes = 16;
inline constexpr int kPanelBytes = 128;

// Address of piece 0 of row `row` with the row's swizzle in it: piece c of panel i is at
// (address ^ c * kPieceBytes) + i * kPanelBytes. Tiles are aligned to 128 bytes.
template <int kRowBytes>
__device__ __forceinline__ uint32_t swizzled_row(uint32_t tile, int row) {
  return (tile + static_cast<uint32_t>(row * kRowBytes)) ^ static_cast<uint32_t>(row % 8 * kPieceBytes);
}

// Copies the pieces `piece` of all panels of one row of `dims` elements.
template <int kRowBytes>
__device__ __forceinline__ void copy_pieces(uint32_t destination, const uint16_t* row, int piece, int dims,
                                            bool present) {
#pragma unroll
  for (int panel = 0; panel < kRowBytes / kPanelBytes; ++panel) {
    const int element = panel * kPanelElements + piece * kPieceElements;
    const bool inside = present && element < dims;
    copy_async(destination + panel * kPanelBytes, inside ? row + element : row, inside);
  }
}

// The same for rows without alignment, element by element and at once.
template <int kRowBytes>
__device__ __forceinline__ void copy_pieces_unaligned(uint32_t destination, const uint16_t* row, int piece, int dims,
                                                      bool present) {
#pragma unroll 1
  for (int panel = 0; panel < kRowBytes / kPanelBytes; ++panel) {
    const int element = panel * kPanelElements + piece * kPieceElements;
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t low = present && element + 2 * w < dims ? row[element + 2 * w] : 0U;
      const uint32_t high = present && element + 2 * w + 1 < dims ? row[element + 2 * w + 1] : 0U;
      words[w] = low | high << 16;
    }
    store_shared(destination + panel * kPanelBytes, make_uint4(words[0], words[1], words[2], words[3]));
  }
}

// K or V of one segment as one (sequence, K/V head) sees it.
struct KeySource {
  const uint16_t* data;  // dim 0 of key 0, or of slot 0 of page 0
  int64_t stride_token;
  int64_t stride_page;
  const int32_t* pages;  // of this sequence; null: not paged
  int32_t page_size;
  int64_t num_pages;
  int dims;
  bool vectors;

  __device__ __forceinline__ KeySource(const tessera_kv_segment& s, const tessera_tensor& tensor, int head_dim,
                                       bool aligned, int64_t b, int64_t head_kv, int64_t first_token)
      : data(static_cast<const uint16_t*>(tensor.data) + head_kv * tensor.stride_head),
        stride_token(tensor.stride_token),
        stride_page(tensor.stride_batch),
        pages(s.page_table == nullptr ? nullptr : s.page_table + b * s.page_table_stride),
        page_size(s.page_size),
        num_pages(s.num_pages),
        dims(head_dim),
        vectors(aligned) {
    if (pages == nullptr) {
      data += b * tensor.stride_batch + first_token * tensor.stride_token;
    }
  }
};

// Where a key lies: slot of a page, or, without pages, slot of the one page there is. Moves on by a fixed number of
// keys.
struct KeyPlace {
  uint32_t page;
  uint32_t slot;
  uint32_t pages_per_step;
  uint32_t slots_per_step;

  __device__ __forceinline__ KeyPlace(const KeySource& source, int key, int keys_per_step) {
    const bool paged = source.pages != nullptr;
    const auto size = static_cast<uint32_t>(source.page_size);
    page = paged ? static_cast<uint32_t>(key) / size : 0;
    slot = static_cast<uint32_t>(key) - page * size;
    pages_per_step = paged ? static_cast<uint32_t>(keys_per_step) / size : 0;
    slots_per_step = static_cast<uint32_t>(keys_per_step) - pages_per_step * size;
  }

  __device__ __forceinline__ void step(const KeySource& source) {
    page += pages_per_step;
    slot += slots_per_step;
    if (source.pages != nullptr && slot >= static_cast<uint32_t>(source.page_size)) {
      slot -= static_cast<uint32_t>(source.page_size);
      ++page;
    }
  }
};

// Keys [first_key, first_key + kRows) -> tile; zeros outside `wanted` and for pages that the pool does not have.
// `present`, if not null: bytes that receive 1 per key that is there, else 0.
template <int kRows, int kRowBytes, int kThreads>
__device__ __forceinline__ void load_keys(uint32_t tile, const KeySource& source, int first_key, KeyInterval wanted,
                                          uint8_t* present, int thread) {
  constexpr int kRowStep = kThreads / kPanelPieces;
  static_assert((kRowStep % 8 == 0 || kRowStep == 4) && kRows % kRowStep == 0, "a thread keeps or flips its swizzle");
  const int piece = thread % kPanelPieces;
  const int first_row = thread / kPanelPieces;
  const uint32_t destination = swizzled_row<kRowBytes>(tile, first_row) ^ static_cast<uint32_t>(piece * kPieceBytes);
  // Row i of this thread. Steps of four rows flip bit 2 of the row, which is bit 2 of the swizzle.
  const auto place_of = [destination](int i) {
    const uint32_t flip = kRowStep % 8 == 0 ? 0U : static_cast<uint32_t>(i % 2 * 4 * kPieceBytes);
    return (destination ^ flip) + i * kRowStep * kRowBytes;
  };
  if (source.pages == nullptr && source.vectors) {
    const uint16_t* row = source.data + static_cast<int64_t>(first_key + first_row) * source.stride_token;
    const int64_t step = source.stride_token * kRowStep;
#pragma unroll
    for (int i = 0; i < kRows / kRowStep; ++i) {
      const int key = first_key + first_row + i * kRowStep;
      const bool there = key >= wanted.begin && key < wanted.end;
      copy_pieces<kRowBytes>(place_of(i), there ? row : source.data, piece, source.dims, there);
      row += step;
    }
    return;
  }
  // A few rows at a time, so that their page-table entries are asked for together; fewer where O fills the registers.
  constexpr int kAtOnce = kRowBytes > 256 ? 1 : kRows / kRowStep < 4 ? 2 : 4;
  KeyPlace place(source, first_key + first_row, kRowStep);
#pragma unroll 1
  for (int i = 0; i < kRows / kRowStep; i += kAtOnce) {
    int32_t entry[kAtOnce];  // page; -1: the key is not wanted
    uint32_t slot[kAtOnce];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      const int key = first_key + first_row + (i + t) * kRowStep;
      entry[t] = key >= wanted.begin && key < wanted.end ? 0 : -1;
      if (source.pages != nullptr && entry[t] == 0) {
        entry[t] = source.pages[place.page];
      }
      slot[t] = place.slot;
      place.step(source);
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      const bool there = entry[t] >= 0 && (source.pages == nullptr || entry[t] < source.num_pages);
      const uint16_t* from =
          source.data +
          (there ? slot[t] * source.stride_token + (source.pages != nullptr ? entry[t] * source.stride_page : 0) : 0);
      const uint32_t to = place_of(i + t);
      if (present != nullptr && piece == 0) {
        present[first_row + (i + t) * kRowStep] = there ? 1 : 0;
      }
      if (source.vectors) {
        copy_pieces<kRowBytes>(to, from, piece, source.dims, there);
      } else {
        copy_pieces_unaligned<kRowBytes>(to, from, piece, source.dims, there);
      }
    }
  }
}

}  // namespace tessera::sm80
