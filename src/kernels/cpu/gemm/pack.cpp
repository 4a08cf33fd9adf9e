#include "kernels/cpu/gemm/pack.h"

#include <cstring>

#include "base/numeric_types.h"
#include "kernels/cpu/gemm/unit_map.h"

namespace tessera::gemm {
namespace {

// One packed unit's worth of one row, taken out of its GGUF block. Quants are the stored unsigned ones (int8 plus 128
// for Q8_0), in ascending k.
struct RowUnit {
  uint8_t quants[256];
  uint8_t scales[16];  // K types: 6-bit scales, or the bits of Q6_K's int8 scales
  uint8_t mins[8];
  uint16_t d;
  uint16_t m;
};

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void store_u16(uint8_t* p, uint16_t value) {
  std::memcpy(p, &value, sizeof(value));
}

// 32 nibbles: the low ones are the first 16 elements.
void split_nibbles(const uint8_t* qs, uint8_t* quants) {
  for (int j = 0; j < 16; ++j) {
    quants[j] = qs[j] & 15;
    quants[j + 16] = qs[j] >> 4;
  }
}

// Bit j of the little-endian 32-bit word becomes bit 4 of element j.
void add_fifth_bits(const uint8_t* qh, uint8_t* quants) {
  for (int j = 0; j < 32; ++j) {
    quants[j] = static_cast<uint8_t>(quants[j] | ((qh[j >> 3] >> (j & 7)) & 1) << 4);
  }
}

// The eight 6-bit scales and minima in 12 bytes: entries 0..3 are the low 6 bits of bytes 0..3 (scales) and 4..7
// (minima); entries 4..7 take 4 bits from bytes 8..11 and their upper 2 bits from the top of bytes 0..7.
void split_six_bit_scales(const uint8_t* s, RowUnit& unit) {
  for (int i = 0; i < 4; ++i) {
    unit.scales[i] = s[i] & 63;
    unit.mins[i] = s[i + 4] & 63;
    unit.scales[i + 4] = static_cast<uint8_t>((s[i + 8] & 15) | (s[i] >> 6) << 4);
    unit.mins[i + 4] = static_cast<uint8_t>((s[i + 8] >> 4) | (s[i + 4] >> 6) << 4);
  }
}

// Q4_K, Q5_K: 32 bytes per pair of sub-blocks, low nibbles the even one.
void split_pair_nibbles(const uint8_t* qs, uint8_t* quants) {
  for (int pair = 0; pair < 4; ++pair) {
    for (int l = 0; l < 32; ++l) {
      quants[64 * pair + l] = qs[32 * pair + l] & 15;
      quants[64 * pair + 32 + l] = qs[32 * pair + l] >> 4;
    }
  }
}

void decode_q6_k(const uint8_t* block, RowUnit& unit) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  for (int half = 0; half < 2; ++half) {
    for (int l = 0; l < 32; ++l) {
      const int h = high[32 * half + l];
      const int first = low[64 * half + l];
      const int second = low[64 * half + 32 + l];
      uint8_t* out = unit.quants + 128 * half + l;
      out[0] = static_cast<uint8_t>((first & 15) | (h & 3) << 4);
      out[32] = static_cast<uint8_t>((second & 15) | (h >> 2 & 3) << 4);
      out[64] = static_cast<uint8_t>(first >> 4 | (h >> 4 & 3) << 4);
      out[96] = static_cast<uint8_t>(second >> 4 | h >> 6 << 4);
    }
  }
  std::memcpy(unit.scales, block + 192, 16);
  unit.d = load_u16(block + 208);
}

void decode_block(WeightType type, const uint8_t* block, RowUnit& unit) {
  switch (type) {
    case WeightType::kQ4_0:
      unit.d = load_u16(block);
      split_nibbles(block + 2, unit.quants);
      break;
    case WeightType::kQ4_1:
      unit.d = load_u16(block);
      unit.m = load_u16(block + 2);
      split_nibbles(block + 4, unit.quants);
      break;
    case WeightType::kQ5_0:
      unit.d = load_u16(block);
      split_nibbles(block + 6, unit.quants);
      add_fifth_bits(block + 2, unit.quants);
      break;
    case WeightType::kQ5_1:
      unit.d = load_u16(block);
      unit.m = load_u16(block + 2);
      split_nibbles(block + 8, unit.quants);
      add_fifth_bits(block + 4, unit.quants);
      break;
    case WeightType::kQ8_0:
      unit.d = load_u16(block);
      for (int j = 0; j < 32; ++j) unit.quants[j] = block[2 + j] ^ 0x80;
      break;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: {
      const bool five = type == WeightType::kQ5_K;
      unit.d = load_u16(block);
      unit.m = load_u16(block + 2);
      split_six_bit_scales(block + 4, unit);
      split_pair_nibbles(block + (five ? 48 : 16), unit.quants);
      if (five) {
        for (int j = 0; j < 256; ++j) {
          unit.quants[j] = static_cast<uint8_t>(unit.quants[j] | (block[16 + (j & 31)] >> (j >> 5) & 1) << 4);
        }
      }
      break;
    }
    case WeightType::kQ6_K:
      decode_q6_k(block, unit);
      break;
    default:
      break;
  }
}

// Writes the 32 quants of one row into a sub-unit (unit_map.h).
void place_quants(const UnitMap& map, const uint8_t* quants, int row, uint8_t* sub) {
  if (map.bits == 8) {
    for (int g = 0; g < 8; ++g) std::memcpy(sub + g * 64 + row * 4, quants + 4 * g, 4);
    return;
  }
  uint8_t nibbles[16];
  for (int i = 0; i < 16; ++i) nibbles[i] = static_cast<uint8_t>((quants[i] & 15) | (quants[i + 16] & 15) << 4);
  for (int v = 0; v < 4; ++v) std::memcpy(sub + v * 64 + row * 4, nibbles + 4 * v, 4);
  if (map.bits == 5) {
    for (int b = 0; b < 4; ++b) {
      int bits = 0;
      for (int g = 0; g < 8; ++g) bits |= (quants[4 * g + b] >> 4) << g;
      sub[256 + row * 4 + b] = static_cast<uint8_t>(bits);
    }
  }
  if (map.bits == 6) {
    for (int i = 0; i < 8; ++i) {
      const int v = i >> 2;
      const int b = i & 3;
      int bits = 0;
      for (int s = 0; s < 4; ++s) bits |= (quants[16 * v + 4 * s + b] >> 4) << (2 * s);
      sub[256 + v * 64 + row * 4 + b] = static_cast<uint8_t>(bits);
    }
  }
}

void place_row_unit(const UnitMap& map, const RowUnit& row_unit, int row, uint8_t* unit) {
  for (int sub = 0; sub < map.subs; ++sub) {
    place_quants(map, row_unit.quants + 32 * sub, row, unit + sub * map.sub_bytes);
  }
  store_u16(unit + map.d_at + 2 * row, row_unit.d);
  if (map.affine) store_u16(unit + map.m_at + 2 * row, row_unit.m);
  if (map.k_scales) {
    for (int i = 0; i < map.subs * map.halves; ++i) unit[map.scales_at + 16 * i + row] = row_unit.scales[i];
    if (map.affine) {
      for (int i = 0; i < map.subs; ++i) unit[map.mins_at + 16 * i + row] = row_unit.mins[i];
    }
  }
}

void pack_quantized(const WeightTraits& traits, int64_t k, const uint8_t* row, int lane, uint8_t* group) {
  const UnitMap map = unit_map(traits.type);
  RowUnit row_unit{};
  for (int64_t u = 0; u < k / traits.unit_k; ++u) {
    decode_block(traits.type, row + u * traits.file_block_bytes, row_unit);
    place_row_unit(map, row_unit, lane, group + u * traits.unit_bytes);
  }
}

void pack_plain(const WeightTraits& traits, int64_t k, const uint8_t* row, int lane, uint8_t* group) {
  const int64_t size = traits.file_block_bytes;
  for (int64_t i = 0; i < k; ++i) {
    std::memcpy(group + i * traits.unit_bytes + lane * size, row + i * size, static_cast<size_t>(size));
  }
}

// Value of one quant, rounded after every operation in the order of the contract.
float dequantize(const UnitMap& map, const uint8_t* unit, int kk, int row) {
  const float d = f16_to_f32(load_u16(unit + map.d_at + 2 * row));
  const float quant = static_cast<float>(unit_quant(map, unit, kk, row) - map.offset);
  const int step = kk / (32 / map.halves);
  if (!map.k_scales) {
    const float product = d * quant;
    return map.affine ? product + f16_to_f32(load_u16(unit + map.m_at + 2 * row)) : product;
  }
  const uint8_t scale = unit[map.scales_at + 16 * step + row];
  if (!map.affine) {  // Q6_K: signed scales
    return d * static_cast<float>(static_cast<int8_t>(scale)) * quant;
  }
  const float dmin = f16_to_f32(load_u16(unit + map.m_at + 2 * row));
  return d * static_cast<float>(scale) * quant - dmin * static_cast<float>(unit[map.mins_at + 16 * step + row]);
}

float widen_plain(WeightType type, const uint8_t* p) {
  if (type == WeightType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  return type == WeightType::kF16 ? f16_to_f32(load_u16(p)) : bf16_to_f32(load_u16(p));
}

}  // namespace

void pack_rows(const WeightTraits& traits, int64_t k, int64_t row_begin, int64_t row_end, const uint8_t* rows,
               uint8_t* packed) {
  const size_t bytes_per_group = group_bytes(traits, k);
  const size_t bytes_per_row = file_row_bytes(traits, k);
  for (int64_t first = row_begin; first < row_end; first += kGroupRows) {
    uint8_t* group = packed + static_cast<size_t>(first / kGroupRows) * bytes_per_group;
    const int64_t count = row_end - first < kGroupRows ? row_end - first : kGroupRows;
    if (count < kGroupRows) std::memset(group, 0, bytes_per_group);
    for (int64_t lane = 0; lane < count; ++lane) {
      const uint8_t* row = rows + static_cast<size_t>(first + lane - row_begin) * bytes_per_row;
      if (traits.quantized) {
        pack_quantized(traits, k, row, static_cast<int>(lane), group);
      } else {
        pack_plain(traits, k, row, static_cast<int>(lane), group);
      }
    }
  }
}

void unpack_row(const WeightTraits& traits, int64_t k, const uint8_t* packed, int64_t row, float* dst) {
  const uint8_t* group = packed + static_cast<size_t>(row / kGroupRows) * group_bytes(traits, k);
  const int lane = static_cast<int>(row % kGroupRows);
  if (!traits.quantized) {
    for (int64_t i = 0; i < k; ++i) {
      dst[i] = widen_plain(traits.type, group + i * traits.unit_bytes + lane * traits.file_block_bytes);
    }
    return;
  }
  const UnitMap map = unit_map(traits.type);
  for (int64_t i = 0; i < k; ++i) {
    dst[i] = dequantize(map, group + i / traits.unit_k * traits.unit_bytes, static_cast<int>(i % traits.unit_k), lane);
  }
}

}  // namespace tessera::gemm
