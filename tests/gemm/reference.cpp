#include "gemm/reference.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

namespace tessera::gemm_test {
namespace {

uint16_t u16_at(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] | p[1] << 8);
}

double half_value(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int fraction = h & 1023;
  const double sign = (h & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  if (exponent == 31) return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

float half_at(const uint8_t* p) {
  return static_cast<float>(half_value(u16_at(p)));
}

// The 6-bit scale (or minimum) i of a K block's 12 bytes.
int six_bits(const uint8_t* s, int i, bool minimum) {
  const int shift = minimum ? 4 : 0;
  if (i < 4) return s[i + shift] & 63;
  const int low = minimum ? s[i + 4] >> 4 : s[i + 4] & 15;
  return low | (s[i - 4 + shift] >> 6) << 4;
}

struct Element {
  int w;
  float ds;
  float mn;
  float value;
};

Element simple_element(float d, int w) {
  return {w, d, 0.0F, d * static_cast<float>(w)};
}

Element affine_element(float d, float m, int w) {
  const float product = d * static_cast<float>(w);
  return {w, d, m, product + m};
}

Element k_element(const uint8_t* block, const uint8_t* scales, int sub, int w) {
  const float ds = half_at(block) * static_cast<float>(six_bits(scales, sub, false));
  const float minimum = half_at(block + 2) * static_cast<float>(six_bits(scales, sub, true));
  const float product = ds * static_cast<float>(w);
  return {w, ds, -minimum, product - minimum};
}

// Element i of a block.
Element element(tessera_weight_type type, const uint8_t* block, int i) {
  const auto nibble = [&](const uint8_t* qs) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; };
  const auto fifth = [&](const uint8_t* qh) { return (qh[i / 8] >> (i % 8) & 1) * 16; };
  switch (type) {
    case TESSERA_WEIGHT_Q4_0:
      return simple_element(half_at(block), nibble(block + 2) - 8);
    case TESSERA_WEIGHT_Q4_1:
      return affine_element(half_at(block), half_at(block + 2), nibble(block + 4));
    case TESSERA_WEIGHT_Q5_0:
      return simple_element(half_at(block), nibble(block + 6) + fifth(block + 2) - 16);
    case TESSERA_WEIGHT_Q5_1:
      return affine_element(half_at(block), half_at(block + 2), nibble(block + 8) + fifth(block + 4));
    case TESSERA_WEIGHT_Q8_0:
      return simple_element(half_at(block), static_cast<int8_t>(block[2 + i]));
    case TESSERA_WEIGHT_Q4_K: {
      const uint8_t byte = block[16 + i / 64 * 32 + i % 32];
      return k_element(block, block + 4, i / 32, i % 64 < 32 ? byte & 15 : byte >> 4);
    }
    case TESSERA_WEIGHT_Q5_K: {
      const uint8_t byte = block[48 + i / 64 * 32 + i % 32];
      const int high = block[16 + i % 32] >> (i / 32) & 1;
      return k_element(block, block + 4, i / 32, (i % 64 < 32 ? byte & 15 : byte >> 4) + 16 * high);
    }
    case TESSERA_WEIGHT_Q6_K: {
      const int half = i / 128;
      const int quarter = i % 128 / 32;
      const int l = i % 32;
      const uint8_t low = block[64 * half + l + (quarter % 2) * 32];
      const int high = block[128 + 32 * half + l] >> (2 * quarter) & 3;
      const int w = ((quarter < 2 ? low & 15 : low >> 4) | high << 4) - 32;
      const float ds = half_at(block + 208) * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
      return simple_element(ds, w);
    }
    case TESSERA_WEIGHT_F32: {
      float value;
      std::memcpy(&value, block, 4);
      return {0, 0.0F, 0.0F, value};
    }
    case TESSERA_WEIGHT_F16:
      return {0, 0.0F, 0.0F, half_at(block)};
    case TESSERA_WEIGHT_BF16:
      return {0, 0.0F, 0.0F, std::bit_cast<float>(static_cast<uint32_t>(u16_at(block)) << 16)};
  }
  return {};
}

// M1 for one block.
struct QuantBlock {
  int64_t q[32];
  float dx;
};

QuantBlock quantize(const float* x) {
  constexpr float kLimit = 2097151.0F;
  QuantBlock block{};
  float amax = 0.0F;
  bool finite = true;
  for (int i = 0; i < 32; ++i) {
    finite = finite && std::isfinite(x[i]);
    amax = std::max(amax, std::fabs(x[i]));
  }
  if (!finite) {
    block.dx = std::numeric_limits<float>::quiet_NaN();
    return block;
  }
  if (amax < std::ldexp(1.0F, -100)) return block;
  block.dx = amax / kLimit;
  const float inverse = kLimit / amax;
  for (int i = 0; i < 32; ++i) {
    const float scaled = x[i] * inverse;
    block.q[i] = static_cast<int64_t>(std::nearbyint(static_cast<double>(scaled)));
  }
  return block;
}

float canonical(float y) {
  return std::isnan(y) ? std::bit_cast<float>(0x7fc00000U) : y;
}

// Nearest fp32 of an exact integer, through double (exact below 2^53, then one rounding).
float rounded(int64_t value) {
  return static_cast<float>(static_cast<double>(value));
}

}  // namespace

const char* type_name(tessera_weight_type type) {
  switch (type) {
    case TESSERA_WEIGHT_F32:
      return "F32";
    case TESSERA_WEIGHT_F16:
      return "F16";
    case TESSERA_WEIGHT_Q4_0:
      return "Q4_0";
    case TESSERA_WEIGHT_Q4_1:
      return "Q4_1";
    case TESSERA_WEIGHT_Q5_0:
      return "Q5_0";
    case TESSERA_WEIGHT_Q5_1:
      return "Q5_1";
    case TESSERA_WEIGHT_Q8_0:
      return "Q8_0";
    case TESSERA_WEIGHT_Q4_K:
      return "Q4_K";
    case TESSERA_WEIGHT_Q5_K:
      return "Q5_K";
    case TESSERA_WEIGHT_Q6_K:
      return "Q6_K";
    case TESSERA_WEIGHT_BF16:
      return "BF16";
  }
  return "?";
}

bool is_quantized(tessera_weight_type type) {
  return type != TESSERA_WEIGHT_F32 && type != TESSERA_WEIGHT_F16 && type != TESSERA_WEIGHT_BF16;
}

int64_t block_elements(tessera_weight_type type) {
  if (!is_quantized(type)) return 1;
  return type == TESSERA_WEIGHT_Q4_K || type == TESSERA_WEIGHT_Q5_K || type == TESSERA_WEIGHT_Q6_K ? 256 : 32;
}

int64_t block_bytes(tessera_weight_type type) {
  switch (type) {
    case TESSERA_WEIGHT_F32:
      return 4;
    case TESSERA_WEIGHT_F16:
      return 2;
    case TESSERA_WEIGHT_Q4_0:
      return 18;
    case TESSERA_WEIGHT_Q4_1:
      return 20;
    case TESSERA_WEIGHT_Q5_0:
      return 22;
    case TESSERA_WEIGHT_Q5_1:
      return 24;
    case TESSERA_WEIGHT_Q8_0:
      return 34;
    case TESSERA_WEIGHT_Q4_K:
      return 144;
    case TESSERA_WEIGHT_Q5_K:
      return 176;
    case TESSERA_WEIGHT_Q6_K:
      return 210;
    case TESSERA_WEIGHT_BF16:
      return 2;
  }
  return 0;
}

std::vector<uint8_t> random_matrix(tessera_weight_type type, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 engine(seed);
  const int64_t blocks = n * (k / block_elements(type));
  const int64_t bytes = block_bytes(type);
  std::vector<uint8_t> matrix(static_cast<size_t>(blocks * bytes));
  for (uint8_t& byte : matrix) byte = static_cast<uint8_t>(engine());
  // f16 values of either sign with exponents in [low, low + 3]
  const auto put_half = [&](uint8_t* p, int low) {
    const auto r = static_cast<uint32_t>(engine());
    const auto h = static_cast<uint16_t>((r & 0x83ffU) | (static_cast<uint32_t>(low) + (r >> 20 & 3U)) << 10);
    std::memcpy(p, &h, 2);
  };
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* block = matrix.data() + b * bytes;
    switch (type) {
      case TESSERA_WEIGHT_F32: {
        const float value = static_cast<float>(static_cast<int32_t>(engine())) * 0x1p-31F;
        std::memcpy(block, &value, 4);
        break;
      }
      case TESSERA_WEIGHT_F16:
        put_half(block, 12);
        break;
      case TESSERA_WEIGHT_BF16:
        block[1] = static_cast<uint8_t>((block[1] & 0x80) | 0x3f);
        break;
      case TESSERA_WEIGHT_Q4_0:
      case TESSERA_WEIGHT_Q5_0:
        put_half(block, 10);
        break;
      case TESSERA_WEIGHT_Q8_0:
        put_half(block, 6);
        break;
      case TESSERA_WEIGHT_Q4_1:
      case TESSERA_WEIGHT_Q5_1:
        put_half(block, 10);
        put_half(block + 2, 12);
        break;
      case TESSERA_WEIGHT_Q4_K:
      case TESSERA_WEIGHT_Q5_K:
        put_half(block, 4);
        put_half(block + 2, 6);
        break;
      case TESSERA_WEIGHT_Q6_K:
        put_half(block + 208, 3);
        break;
    }
  }
  return matrix;
}

DecodedRow decode_row(tessera_weight_type type, const uint8_t* row, int64_t k) {
  DecodedRow decoded;
  decoded.step = type == TESSERA_WEIGHT_Q6_K ? 16 : 32;
  decoded.affine = type == TESSERA_WEIGHT_Q4_1 || type == TESSERA_WEIGHT_Q5_1 || type == TESSERA_WEIGHT_Q4_K ||
                   type == TESSERA_WEIGHT_Q5_K;
  const int64_t size = block_elements(type);
  for (int64_t i = 0; i < k; ++i) {
    const Element e = element(type, row + i / size * block_bytes(type), static_cast<int>(i % size));
    decoded.value.push_back(e.value);
    decoded.quant.push_back(e.w);
    if (i % decoded.step == 0) decoded.ds.push_back(e.ds);
    if (i % 32 == 0) decoded.mn.push_back(e.mn);
  }
  return decoded;
}

float reference_dot(tessera_weight_type type, const DecodedRow& weights, const float* x, int64_t k, const float* bias) {
  float y = 0.0F;
  for (int64_t chunk = 0; chunk < k; chunk += 1024) {
    const int64_t end = std::min(k, chunk + 1024);
    float acc = 0.0F;
    if (!is_quantized(type)) {
      for (int64_t i = chunk; i < end; ++i) acc = std::fma(weights.value[static_cast<size_t>(i)], x[i], acc);
    } else {
      for (int64_t b = chunk; b < end; b += 32) {
        const QuantBlock block = quantize(x + b);
        int64_t total = 0;
        for (const int64_t q : block.q) total += q;
        for (int64_t s = b; s < b + 32; s += weights.step) {
          int64_t dot = 0;
          for (int64_t i = s; i < s + weights.step; ++i) dot += weights.quant[static_cast<size_t>(i)] * block.q[i - b];
          acc = std::fma(weights.ds[static_cast<size_t>(s / weights.step)], block.dx * rounded(dot), acc);
        }
        if (weights.affine) acc = std::fma(weights.mn[static_cast<size_t>(b / 32)], block.dx * rounded(total), acc);
      }
    }
    y = chunk == 0 ? acc : y + acc;
  }
  if (bias != nullptr) y = y + *bias;
  return canonical(y);
}

std::vector<float> reference_gemm(tessera_weight_type type, const std::vector<uint8_t>& matrix, int64_t m, int64_t n,
                                  int64_t k, const float* x, int64_t stride_x, const float* bias) {
  std::vector<float> y(static_cast<size_t>(m * n));
  const int64_t row_bytes = k / block_elements(type) * block_bytes(type);
  for (int64_t o = 0; o < n; ++o) {
    const DecodedRow row = decode_row(type, matrix.data() + o * row_bytes, k);
    for (int64_t r = 0; r < m; ++r) {
      y[static_cast<size_t>(r * n + o)] =
          reference_dot(type, row, x + r * stride_x, k, bias == nullptr ? nullptr : bias + o);
    }
  }
  return y;
}

}  // namespace tessera::gemm_test
