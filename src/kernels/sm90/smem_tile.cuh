// Tiles in shared memory as the copy engine writes them and wgmma reads them: 16-bit elements in panels of 64 columns.
// A panel (rows, 64) has rows of 128 bytes; 16-byte piece p of row r stands at piece p ^ (r mod 8) ("128-byte
// swizzle"). Panels start at multiples of 1024 bytes; panel c of a tile holds columns 64c .. 64c + 63.
#pragma once

#include <cstdint>

namespace tessera::sm90 {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kSwizzleRows = 8;
inline constexpr int kSwizzleBytes = kSwizzleRows * kPanelRowBytes;

constexpr int panel_bytes(int rows) {
  return rows * kPanelRowBytes;
}

// Matrix descriptor of wgmma (PTX ISA "Matrix Descriptor Format"): address, leading and stride offsets in units of
// 16 bytes, and the swizzle mode in bits 62..63 (1: 128 bytes).
constexpr uint64_t descriptor_flags(uint32_t leading_bytes, uint32_t stride_bytes) {
  return (static_cast<uint64_t>(leading_bytes >> 4) << 16) | (static_cast<uint64_t>(stride_bytes >> 4) << 32) |
         (uint64_t{1} << 62);
}

// An operand whose k16 step runs along the panel's rows (K-major: Q and K, the 16 head dims of a step contiguous).
// Groups of 8 rows are 1024 bytes apart; the leading offset is not used in this mode.
struct KMajorTile {
  static constexpr uint64_t kFlags = descriptor_flags(16, kSwizzleBytes);

  // Descriptor of columns 16 step .. 16 step + 15 of a tile with `rows` rows, from its first row on.
  static __device__ __forceinline__ uint64_t step(uint64_t base, int rows, int step) {
    const int steps_per_panel = kPanelColumns / 16;
    const int bytes = step / steps_per_panel * panel_bytes(rows) + step % steps_per_panel * 32;
    return base + static_cast<uint64_t>(bytes >> 4);
  }
};

// An operand whose k16 step runs across rows (MN-major: V, the 16 keys of a step are 16 rows). Panels are the leading
// offset apart, groups of 8 rows the stride.
template <int kRows>
struct MnMajorTile {
  static constexpr uint64_t kFlags = descriptor_flags(panel_bytes(kRows), kSwizzleBytes);

  // Descriptor of rows 16 step .. 16 step + 15, all columns.
  static __device__ __forceinline__ uint64_t step(uint64_t base, int step) {
    return base + static_cast<uint64_t>(step * 16 * kPanelRowBytes >> 4);
  }
};

// Descriptor of the tile at a shared address.
template <class Tile>
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  return Tile::kFlags | (address >> 4);
}

// A descriptor with such flags whose low word (address and leading offset) was computed elsewhere.
__device__ __forceinline__ constexpr uint64_t with_low_word(uint64_t flags, uint32_t low) {
  return flags >> 32 << 32 | low;
}

// Byte offset of the pair of elements (row, column), (row, column + 1) of a tile with `rows` rows; column is even.
__device__ __forceinline__ uint32_t swizzled_offset(int rows, int row, int column) {
  const int panel = column / kPanelColumns;
  const int piece = column % kPanelColumns / 8;
  return static_cast<uint32_t>(panel * panel_bytes(rows) + row * kPanelRowBytes + ((piece ^ (row % 8)) << 4) +
                               column % 8 * 2);
}

}  // namespace tessera::sm90
