#include "fmha/fp8_rows.h"

#include <cmath>
#include <cstring>

#include "base/numeric_types.h"

namespace tessera::test {
namespace {

bool is_v4(tessera_kv_format format) {
  return format == TESSERA_KV_FP8_V4_584;
}

int64_t tile_of(tessera_kv_format format, int64_t dim) {
  return dim / (is_v4(format) ? 64 : 128);
}

uint64_t mix(uint64_t row_hash, uint64_t salt) {
  uint64_t x = (row_hash ^ salt * 0x9e3779b97f4a7c15u) * 0xd1342543de82ef95u;
  return (x ^ x >> 29) * 0x2545f4914f6cdd1du >> 16;
}

// Every finite code, -0 and subnormals among them.
uint8_t code_of(uint64_t row_hash, int64_t dim) {
  const auto code = static_cast<uint8_t>(mix(row_hash, static_cast<uint64_t>(dim)));
  return (code & 0x7f) == 0x7f ? uint8_t{0x80} : code;
}

// V4: the byte of 2^(byte - 127). One tile in 16 is nearly nothing.
uint8_t scale_byte(uint64_t row_hash, int64_t tile) {
  const uint64_t h = mix(row_hash, 1000 + static_cast<uint64_t>(tile));
  return static_cast<uint8_t>(h % 16 == 0 ? h / 16 % 4 : 117 + h / 16 % 5);
}

// V32: any fraction.
float scale_float(uint64_t row_hash, int64_t tile) {
  const uint64_t h = mix(row_hash, 2000 + static_cast<uint64_t>(tile));
  const float fraction = 1.0f + static_cast<float>(h >> 8 & 0xffffu) / 65536.0f;
  return std::ldexp(fraction, h % 16 == 0 ? -130 : -10 + static_cast<int>(h / 16 % 4));
}

}  // namespace

int64_t fp8_coded_dims(tessera_kv_format format) {
  return is_v4(format) ? 448 : 512;
}

float fp8_value(tessera_kv_format format, uint64_t row_hash, int64_t dim) {
  const uint8_t code = code_of(row_hash, dim);
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  const double value = (code & 0x80) != 0 ? -magnitude : magnitude;
  const int64_t tile = tile_of(format, dim);
  const double scale = is_v4(format) ? std::ldexp(1.0, scale_byte(row_hash, tile) - 127)
                                     : static_cast<double>(scale_float(row_hash, tile));
  return bf16_to_f32(f32_to_bf16(static_cast<float>(value * scale)));
}

tessera_tensor fp8_strides(tessera_kv_format format, int64_t tokens, int64_t padding) {
  tessera_tensor t{};
  t.stride_dim = 1;
  t.stride_token = is_v4(format) ? 576 : 656 + 16 * padding;
  t.stride_batch = is_v4(format) ? ((tokens * 584 + 575) / 576 + padding) * 576 : tokens * t.stride_token;
  t.stride_head = 0;
  return t;
}

void put_fp8_row(tessera_kv_format format, uint8_t* page, int64_t tokens, const tessera_tensor& strides, int64_t token,
                 uint64_t row_hash, const uint16_t* rest) {
  uint8_t* const row = page + token * strides.stride_token;
  for (int64_t d = 0; d < fp8_coded_dims(format); ++d) row[d] = code_of(row_hash, d);
  if (is_v4(format)) {
    std::memcpy(row + 448, rest, 128);
    for (int64_t tile = 0; tile < 7; ++tile) page[tokens * 576 + token * 8 + tile] = scale_byte(row_hash, tile);
    return;
  }
  for (int64_t tile = 0; tile < 4; ++tile) {
    const float scale = scale_float(row_hash, tile);
    std::memcpy(row + 512 + 4 * tile, &scale, 4);
  }
  std::memcpy(row + 528, rest, 128);
}

}  // namespace tessera::test
