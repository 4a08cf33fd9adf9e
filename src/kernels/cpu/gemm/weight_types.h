// The weight types of the matrix product: file blocks, packed units and their sizes.
//
// A packed matrix is a list of row groups (16 rows each, the last one padded with zero rows); a row group is a list of
// units in ascending k; a unit holds `unit_k` consecutive k of the 16 rows. The byte maps are in README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"

namespace tessera::gemm {

// Numbers of GGUF (and of tessera_weight_type).
enum class WeightType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

inline constexpr int64_t kGroupRows = 16;  // rows of a row group; lane = row
inline constexpr int64_t kBlockK = 32;     // k of one activation block (M1) and one integer dot (M2)
inline constexpr int64_t kChunkK = 1024;   // k of one accumulation chunk (M4)

struct WeightTraits {
  WeightType type;
  const char* name;
  int32_t file_block_k;      // elements of a GGUF block
  int32_t file_block_bytes;  // bytes of a GGUF block
  int32_t unit_k;            // k of a packed unit
  int32_t unit_bytes;        // bytes of a packed unit (16 rows x unit_k)
  bool quantized;            // false: F32, F16, BF16, multiplied without activation quantisation
};

// nullptr for a number that is no supported type.
const WeightTraits* weight_traits(int32_t type);

// Row groups of n rows.
TESSERA_HD constexpr int64_t row_groups(int64_t n) {
  return (n + kGroupRows - 1) / kGroupRows;
}

// Bytes of one packed row group; k is a multiple of unit_k.
TESSERA_HD constexpr size_t group_bytes(const WeightTraits& traits, int64_t k) {
  return static_cast<size_t>(k / traits.unit_k) * static_cast<size_t>(traits.unit_bytes);
}

// Bytes of the packed (n, k) matrix. The shape has been checked.
size_t packed_size(const WeightTraits& traits, int64_t n, int64_t k);

// Bytes of one GGUF row of k elements.
TESSERA_HD constexpr size_t file_row_bytes(const WeightTraits& traits, int64_t k) {
  return static_cast<size_t>(k / traits.file_block_k) * static_cast<size_t>(traits.file_block_bytes);
}

}  // namespace tessera::gemm
