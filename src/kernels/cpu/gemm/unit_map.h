// Byte maps of the packed units, as compile-time constants that all instruction sets share (README.md, "Packed
// layout").
//
// A unit of a quantised type is `kSubs` sub-units of 16 rows x 32 k, then the scale planes. Inside a sub-unit, byte
// `row * 4 + b` of a 64-byte vector belongs to k = 4 g + b, where g = 0..7 is the k group:
//   4, 5, 6 bits: 4 vectors of nibbles, vector v: low nibble g = v, high nibble g = v + 4;
//   5 bits: then 1 vector, bit g is bit 4 of the quant;  6 bits: then 2 vectors, bits 2s, 2s+1 of vector v are bits 4,
//   5 of the quant of g = 4 v + s; 8 bits: 8 vectors, vector g, the int8 plus 128.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/cpu/gemm/weight_types.h"

namespace tessera::gemm {

struct UnitMap {
  int bits;       // of a stored quant
  int offset;     // subtracted from the stored unsigned quant (M2); 0 for affine types
  bool affine;    // has the minimum term of M3
  int subs;       // sub-units of 32 k
  int halves;     // float steps per 32 k: 2 for Q6_K
  bool k_scales;  // d is multiplied by 8-bit scales
  int sub_bytes;  // 64 * bits
  int scales_at;  // K types: byte scales, [subs * halves][16 rows]
  int mins_at;    // Q4_K, Q5_K: byte minima, [subs][16 rows]
  int d_at;       // f16[16 rows]
  int m_at;       // f16[16 rows]: m or dmin; affine types only
};

TESSERA_HD constexpr UnitMap unit_map(WeightType type) {
  UnitMap map{};
  switch (type) {
    case WeightType::kQ4_0:
      map.bits = 4;
      map.offset = 8;
      break;
    case WeightType::kQ4_1:
      map.bits = 4;
      map.affine = true;
      break;
    case WeightType::kQ5_0:
      map.bits = 5;
      map.offset = 16;
      break;
    case WeightType::kQ5_1:
      map.bits = 5;
      map.affine = true;
      break;
    case WeightType::kQ8_0:
      map.bits = 8;
      map.offset = 128;
      break;
    case WeightType::kQ4_K:
      map.bits = 4;
      map.affine = true;
      map.k_scales = true;
      break;
    case WeightType::kQ5_K:
      map.bits = 5;
      map.affine = true;
      map.k_scales = true;
      break;
    case WeightType::kQ6_K:
      map.bits = 6;
      map.offset = 32;
      map.k_scales = true;
      break;
    default:
      break;
  }
  map.subs = map.k_scales ? 8 : 1;
  map.halves = type == WeightType::kQ6_K ? 2 : 1;
  map.sub_bytes = 64 * map.bits;
  int at = map.subs * map.sub_bytes;
  if (map.k_scales) {
    map.scales_at = at;
    at += 16 * map.subs * map.halves;
    if (map.affine) {
      map.mins_at = at;
      at += 16 * map.subs;
    }
  }
  map.d_at = at;
  map.m_at = at + 32;
  return map;
}

// Stored (unsigned) quant of row `row` at k `kk` of the unit.
TESSERA_HD int unit_quant(const UnitMap& map, const uint8_t* unit, int kk, int row) {
  const uint8_t* sub = unit + (kk >> 5) * map.sub_bytes;
  const int g = (kk & 31) >> 2;
  const int lane_byte = row * 4 + (kk & 3);
  if (map.bits == 8) return sub[g * 64 + lane_byte];
  const int nibbles = sub[(g & 3) * 64 + lane_byte];
  int quant = g < 4 ? nibbles & 15 : nibbles >> 4;
  if (map.bits == 5) quant |= ((sub[256 + lane_byte] >> g) & 1) << 4;
  if (map.bits == 6) quant |= ((sub[256 + (g >> 2) * 64 + lane_byte] >> (2 * (g & 3))) & 3) << 4;
  return quant;
}

}  // namespace tessera::gemm
