#include "engine/gguf/dequant.h"

#include <fmt/format.h>

#include <array>

#include "base/numeric_types.h"
#include "engine/gguf/cursor.h"

namespace tessera {
namespace {

// Every product and sum below is one statement-level f32 operation; the build's -ffp-contract=off keeps it that way.

float load_f16(const std::byte* p) {
  return f16_to_f32(load_le<uint16_t>(p));
}

uint32_t u8(std::byte b) {
  return std::to_integer<uint32_t>(b);
}

void f32_block(const std::byte* src, float* dst) {
  dst[0] = load_le<float>(src);
}
void f16_block(const std::byte* src, float* dst) {
  dst[0] = load_f16(src);
}
void bf16_block(const std::byte* src, float* dst) {
  dst[0] = bf16_to_f32(load_le<uint16_t>(src));
}

void q4_0_block(const std::byte* src, float* dst) {
  const float d = load_f16(src);
  const std::byte* qs = src + 2;
  for (int j = 0; j < 16; ++j) {
    dst[j] = d * static_cast<float>(static_cast<int>(u8(qs[j]) & 15) - 8);
    dst[j + 16] = d * static_cast<float>(static_cast<int>(u8(qs[j]) >> 4) - 8);
  }
}

void q4_1_block(const std::byte* src, float* dst) {
  const float d = load_f16(src);
  const float m = load_f16(src + 2);
  const std::byte* qs = src + 4;
  for (int j = 0; j < 16; ++j) {
    dst[j] = d * static_cast<float>(u8(qs[j]) & 15) + m;
    dst[j + 16] = d * static_cast<float>(u8(qs[j]) >> 4) + m;
  }
}

// Codes j and j + 16 of a 5-bit block, whose fifth bits are bits j and j + 16 of qh.
uint32_t low5(uint32_t qh, const std::byte* qs, int j) {
  return (u8(qs[j]) & 15) | ((qh >> j & 1) << 4);
}
uint32_t high5(uint32_t qh, const std::byte* qs, int j) {
  return (u8(qs[j]) >> 4) | ((qh >> (j + 16) & 1) << 4);
}

void q5_0_block(const std::byte* src, float* dst) {
  const float d = load_f16(src);
  const auto qh = load_le<uint32_t>(src + 2);
  const std::byte* qs = src + 6;
  for (int j = 0; j < 16; ++j) {
    dst[j] = d * static_cast<float>(static_cast<int>(low5(qh, qs, j)) - 16);
    dst[j + 16] = d * static_cast<float>(static_cast<int>(high5(qh, qs, j)) - 16);
  }
}

void q5_1_block(const std::byte* src, float* dst) {
  const float d = load_f16(src);
  const float m = load_f16(src + 2);
  const auto qh = load_le<uint32_t>(src + 4);
  const std::byte* qs = src + 8;
  for (int j = 0; j < 16; ++j) {
    dst[j] = d * static_cast<float>(low5(qh, qs, j)) + m;
    dst[j + 16] = d * static_cast<float>(high5(qh, qs, j)) + m;
  }
}

void q8_0_block(const std::byte* src, float* dst) {
  const float d = load_f16(src);
  for (int j = 0; j < 32; ++j) dst[j] = d * static_cast<float>(load_le<int8_t>(src + 2 + j));
}

// Scale and minimum of a 32-value sub-block as f32.
struct ScaleMin {
  float scale;  // d * sc
  float min;    // dmin * mn
};

// Sub-block i of 8: its 6-bit sc and mn are packed into 12 bytes. The first four pairs are the low six bits of bytes i
// and i + 4; the last four take four bits from byte i + 4 and their top two bits from the spare ones of the first
// eight.
ScaleMin scale_min(const std::byte* src, int i) {
  const float d = load_f16(src);
  const float dmin = load_f16(src + 2);
  const std::byte* s = src + 4;
  uint32_t sc = 0;
  uint32_t mn = 0;
  if (i < 4) {
    sc = u8(s[i]) & 63;
    mn = u8(s[i + 4]) & 63;
  } else {
    sc = (u8(s[i + 4]) & 15) | (u8(s[i - 4]) >> 6 << 4);
    mn = (u8(s[i + 4]) >> 4) | (u8(s[i]) >> 6 << 4);
  }
  return {d * static_cast<float>(sc), dmin * static_cast<float>(mn)};
}

void q4_k_block(const std::byte* src, float* dst) {
  const std::byte* qs = src + 16;
  for (int pair = 0; pair < 4; ++pair, qs += 32, dst += 64) {
    const ScaleMin lo = scale_min(src, 2 * pair);
    const ScaleMin hi = scale_min(src, 2 * pair + 1);
    for (int l = 0; l < 32; ++l) {
      dst[l] = lo.scale * static_cast<float>(u8(qs[l]) & 15) - lo.min;
      dst[l + 32] = hi.scale * static_cast<float>(u8(qs[l]) >> 4) - hi.min;
    }
  }
}

void q5_k_block(const std::byte* src, float* dst) {
  const std::byte* qh = src + 16;
  const std::byte* qs = src + 48;
  for (int pair = 0; pair < 4; ++pair, qs += 32, dst += 64) {
    const ScaleMin lo = scale_min(src, 2 * pair);
    const ScaleMin hi = scale_min(src, 2 * pair + 1);
    for (int l = 0; l < 32; ++l) {
      const uint32_t q_lo = (u8(qs[l]) & 15) | ((u8(qh[l]) >> (2 * pair) & 1) << 4);
      const uint32_t q_hi = (u8(qs[l]) >> 4) | ((u8(qh[l]) >> (2 * pair + 1) & 1) << 4);
      dst[l] = lo.scale * static_cast<float>(q_lo) - lo.min;
      dst[l + 32] = hi.scale * static_cast<float>(q_hi) - hi.min;
    }
  }
}

void q6_k_block(const std::byte* src, float* dst) {
  const float d = load_f16(src + 208);
  for (int half = 0; half < 2; ++half, dst += 128) {
    const std::byte* ql = src + 64 * half;
    const std::byte* qh = src + 128 + 32 * half;
    const std::byte* sc = src + 192 + 8 * half;
    // Quarter k covers dst[32k .. 32k + 32): low four bits from ql[l + 32 * (k & 1)], its low (k < 2) or high nibble;
    // top two bits from bit pair k of qh[l]; one scale per 16 values.
    for (int k = 0; k < 4; ++k) {
      for (int l = 0; l < 32; ++l) {
        const uint32_t low = u8(ql[l + 32 * (k & 1)]) >> (4 * (k >> 1)) & 15;
        const uint32_t q = low | ((u8(qh[l]) >> (2 * k) & 3) << 4);
        const float scale = d * static_cast<float>(load_le<int8_t>(sc + l / 16 + 2 * k));
        dst[32 * k + l] = scale * static_cast<float>(static_cast<int>(q) - 32);
      }
    }
  }
}

using BlockFn = void (*)(const std::byte* src, float* dst);

// The loop is instantiated per type so that the block function is inlined into it.
template <BlockFn block>
void each_block(TensorType type, const std::byte* src, float* dst, int64_t n) {
  const int64_t elements = block_elements(type);
  const int64_t bytes = block_bytes(type);
  for (int64_t i = 0; i < n / elements; ++i) block(src + i * bytes, dst + i * elements);
}

using RowFn = void (*)(TensorType type, const std::byte* src, float* dst, int64_t n);

RowFn row_function(TensorType type) {
  switch (type) {
    case TensorType::F32:
      return each_block<f32_block>;
    case TensorType::F16:
      return each_block<f16_block>;
    case TensorType::BF16:
      return each_block<bf16_block>;
    case TensorType::Q4_0:
      return each_block<q4_0_block>;
    case TensorType::Q4_1:
      return each_block<q4_1_block>;
    case TensorType::Q5_0:
      return each_block<q5_0_block>;
    case TensorType::Q5_1:
      return each_block<q5_1_block>;
    case TensorType::Q8_0:
      return each_block<q8_0_block>;
    case TensorType::Q4_K:
      return each_block<q4_k_block>;
    case TensorType::Q5_K:
      return each_block<q5_k_block>;
    case TensorType::Q6_K:
      return each_block<q6_k_block>;
  }
  return nullptr;
}

}  // namespace

Status dequantize_row(TensorType type, const std::byte* src, float* dst, int64_t n) {
  const RowFn row = row_function(type);
  if (row == nullptr) {
    return {Code::kInvalidArgument, fmt::format("type: got id {}; allowed the values of TensorType; pass the type of a "
                                                "tensor that a GgufFile accepted",
                                                static_cast<uint32_t>(type))};
  }
  if (n < 0 || n % block_elements(type) != 0) {
    return {Code::kInvalidArgument, fmt::format("n: got {}; allowed a multiple of {}, the block of {}; pass whole rows",
                                                n, block_elements(type), type_name(type))};
  }
  row(type, src, dst, n);
  return {};
}

Status dequantize_row(TensorType type, std::span<const std::byte> src, std::span<float> dst) {
  const uint64_t elements = block_elements(type);
  if (elements != 0 && src.size() != dst.size() / elements * block_bytes(type)) {
    return {Code::kInvalidArgument,
            fmt::format("src: got {} bytes; allowed {}, the blocks of {} values of {}; pass the bytes of the same rows",
                        src.size(), dst.size() / elements * block_bytes(type), dst.size(), type_name(type))};
  }
  return dequantize_row(type, src.data(), dst.data(), static_cast<int64_t>(dst.size()));
}

}  // namespace tessera
