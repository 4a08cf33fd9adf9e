// The block formulas against values derived by hand, and against an independent implementation (the gguf Python
// package, through tests/vectors/dequant/dequant.json), bit by bit.
#include "engine/gguf/dequant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"

namespace tessera {
namespace {

using testing::bytes_of;
using testing::le;

constexpr uint16_t kHalf1 = 0x3c00;        // 1.0
constexpr uint16_t kHalf2 = 0x4000;        // 2.0
constexpr uint16_t kHalfQuarter = 0x3400;  // 0.25

std::vector<float> dequantize(TensorType type, const std::string& block) {
  std::vector<float> out(block.size() / block_bytes(type) * block_elements(type));
  const Status status = dequantize_row(type, bytes_of(block), out);
  EXPECT_TRUE(status.ok()) << status.text();
  return out;
}

// n code bytes 0, 1, 2, ... times `step`.
std::string ramp(int n, int step = 1) {
  std::string out;
  for (int i = 0; i < n; ++i) out += static_cast<char>(i * step);
  return out;
}

TEST(Dequant, PlainTypesGiveTheValue) {
  EXPECT_EQ(dequantize(TensorType::F32, le(1.5F) + le(-0.0F)), (std::vector<float>{1.5F, -0.0F}));
  EXPECT_EQ(dequantize(TensorType::F16, le<uint16_t>(0xc100) + le<uint16_t>(0x0001)),
            (std::vector<float>{-2.5F, 0x1p-24F}));
  EXPECT_EQ(dequantize(TensorType::BF16, le<uint16_t>(0xbf80) + le<uint16_t>(0x7f7f)),
            (std::vector<float>{-1.0F, 0x1.fep127F}));
}

TEST(Dequant, Q4_0SubtractsEightAndPutsHighNibblesLast) {
  // Byte j = j + 16 * (15 - j): low nibble j, high nibble 15 - j.
  std::string block = le(kHalf2);
  for (int j = 0; j < 16; ++j) block += static_cast<char>(j + 16 * (15 - j));
  const std::vector<float> y = dequantize(TensorType::Q4_0, block);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(y[j], 2.0F * static_cast<float>(j - 8)) << j;
    EXPECT_EQ(y[j + 16], 2.0F * static_cast<float>(7 - j)) << j;
  }
}

TEST(Dequant, Q4_1AddsTheMinimum) {
  std::string block = le(kHalf2) + le(kHalfQuarter);
  for (int j = 0; j < 16; ++j) block += static_cast<char>(j + 16 * (15 - j));
  const std::vector<float> y = dequantize(TensorType::Q4_1, block);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(y[j], 2.0F * static_cast<float>(j) + 0.25F) << j;
    EXPECT_EQ(y[j + 16], 2.0F * static_cast<float>(15 - j) + 0.25F) << j;
  }
}

TEST(Dequant, Q5FifthBitsComeFromQhInElementOrder) {
  // Fifth bits of elements 0, 3, 16 and 31 set; all nibbles 1.
  const std::string codes = le<uint32_t>(1U << 0 | 1U << 3 | 1U << 16 | 1U << 31) + std::string(16, '\x11');
  const std::vector<float> y0 = dequantize(TensorType::Q5_0, le(kHalf1) + codes);
  const std::vector<float> y1 = dequantize(TensorType::Q5_1, le(kHalf1) + le(kHalfQuarter) + codes);
  for (int j = 0; j < 32; ++j) {
    const float q = j == 0 || j == 3 || j == 16 || j == 31 ? 17.0F : 1.0F;
    EXPECT_EQ(y0[j], q - 16.0F) << j;
    EXPECT_EQ(y1[j], q + 0.25F) << j;
  }
}

TEST(Dequant, Q8_0CodesAreSigned) {
  const std::vector<float> y = dequantize(TensorType::Q8_0, le(kHalf2) + "\x80\x7f\xff" + ramp(29));
  EXPECT_EQ(y[0], -256.0F);
  EXPECT_EQ(y[1], 254.0F);
  EXPECT_EQ(y[2], -2.0F);
  EXPECT_EQ(y[31], 56.0F);
}

// Packed 6-bit scales: sub-block i has sc = 10 + i and mn = 50 + i, by the packing rule.
std::string k_scales() {
  std::string s(12, '\0');
  for (int i = 0; i < 8; ++i) {
    const int sc = 10 + i;
    const int mn = 50 + i;
    if (i < 4) {
      s[i] = static_cast<char>(s[i] | sc);
      s[i + 4] = static_cast<char>(s[i + 4] | mn);
    } else {
      s[i + 4] = static_cast<char>((sc & 15) | (mn & 15) << 4);
      s[i - 4] = static_cast<char>(s[i - 4] | (sc >> 4) << 6);
      s[i] = static_cast<char>(s[i] | (mn >> 4) << 6);
    }
  }
  return s;
}

TEST(Dequant, Q4_KScalesAndMinimaPerSubBlock) {
  // Low nibbles 3, high nibbles 5: even sub-blocks are (1 * sc) * 3 - 0.25 * mn, odd ones with 5.
  const std::vector<float> y =
      dequantize(TensorType::Q4_K, le(kHalf1) + le(kHalfQuarter) + k_scales() + std::string(128, '\x53'));
  for (int i = 0; i < 256; ++i) {
    const int sub = i / 32;
    const float q = sub % 2 == 0 ? 3.0F : 5.0F;
    EXPECT_EQ(y[i], static_cast<float>(10 + sub) * q - 0.25F * static_cast<float>(50 + sub)) << i;
  }
}

TEST(Dequant, Q5_KFifthBitOfSubBlockIsItsBitOfQh) {
  // qh[l] = 1 << (l % 8): element l of sub-block s has its fifth bit set where l % 8 == s.
  std::string qh;
  for (int l = 0; l < 32; ++l) qh += static_cast<char>(1 << (l % 8));
  const std::vector<float> y =
      dequantize(TensorType::Q5_K, le(kHalf1) + le(kHalfQuarter) + k_scales() + qh + std::string(128, '\x53'));
  for (int i = 0; i < 256; ++i) {
    const int sub = i / 32;
    const float q = (sub % 2 == 0 ? 3.0F : 5.0F) + ((i % 32) % 8 == sub ? 16.0F : 0.0F);
    EXPECT_EQ(y[i], static_cast<float>(10 + sub) * q - 0.25F * static_cast<float>(50 + sub)) << i;
  }
}

TEST(Dequant, Q6_KQuartersTakeTheirNibblesBitsAndScales) {
  // ql: first 32 of a half 0x21, next 32 0x43, so the quarters have low bits 1, 3, 2, 4. qh = 0b11100100 gives quarter
  // k the top bits k. Scales -8 .. 7, one per 16 values.
  std::string ql;
  for (int half = 0; half < 2; ++half) ql += std::string(32, '\x21') + std::string(32, '\x43');
  std::string scales;
  for (int i = 0; i < 16; ++i) scales += static_cast<char>(i - 8);
  const std::vector<float> y = dequantize(TensorType::Q6_K, ql + std::string(64, '\xe4') + scales + le(kHalf2));
  const float low[4] = {1, 3, 2, 4};
  for (int i = 0; i < 256; ++i) {
    const int quarter = i % 128 / 32;
    const float q = low[quarter] + 16.0F * static_cast<float>(quarter) - 32.0F;
    const int scale = i / 16 - 8;
    EXPECT_EQ(y[i], 2.0F * static_cast<float>(scale) * q) << i;
  }
}

TEST(Dequant, ProductsAreExactSoOnlyTheSumRounds) {
  // (d * sc) * q has at most 11 + 6 + 4 significant bits and dmin * mn has 11 + 6; the subtraction rounds once.
  const uint16_t d = 0x3fff;     // 0x1.ffcp0
  const uint16_t dmin = 0x0401;  // 0x1.004p-14
  std::string scales(12, '\0');
  scales[0] = 63;
  scales[4] = 63;
  const std::vector<float> y = dequantize(TensorType::Q4_K, le(d) + le(dmin) + scales + std::string(128, '\x0f'));
  const double exact = 0x1.ffcp0 * 63 * 15 - 0x1.004p-14 * 63;
  EXPECT_NE(static_cast<double>(static_cast<float>(exact)), exact);
  EXPECT_EQ(y[0], static_cast<float>(exact));
}

TEST(DequantVectors, EqualAnIndependentImplementationBitByBit) {
  std::ifstream in(std::string(TESSERA_TEST_VECTORS) + "/dequant/dequant.json");
  ASSERT_TRUE(in) << "tests/vectors/dequant/dequant.json is missing";
  const nlohmann::json vectors = nlohmann::json::parse(in);
  const auto hex_byte = [](const std::string& hex, size_t i) {
    return static_cast<uint32_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  };
  int types = 0;
  for (const auto& c : vectors.at("cases")) {
    const std::string name = c.at("type");
    uint32_t id = 0;
    while (tensor_type_name(id) != name) ++id;
    const auto type = static_cast<TensorType>(id);
    const std::string hex = c.at("bytes");
    std::string bytes;
    for (size_t i = 0; i < hex.size() / 2; ++i) bytes += static_cast<char>(hex_byte(hex, i));
    const std::string wanted = c.at("f32");
    const std::vector<float> got = dequantize(type, bytes);
    ASSERT_EQ(got.size() * 8, wanted.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) {
      const auto bits = static_cast<uint32_t>(std::stoul(wanted.substr(8 * i, 8), nullptr, 16));
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), bits) << name << " value " << i << ": " << got[i];
    }
    ++types;
  }
  EXPECT_EQ(types, 11);
}

TEST(DequantArguments, PartialBlocksAndForeignTypesAreRefused) {
  const std::string block(144, '\0');
  std::vector<float> out(256);
  EXPECT_EQ(dequantize_row(TensorType::Q4_K, bytes_of(block).data(), out.data(), 255).code(), Code::kInvalidArgument);
  EXPECT_EQ(dequantize_row(TensorType::Q4_K, bytes_of(block).data(), out.data(), -256).code(), Code::kInvalidArgument);
  EXPECT_EQ(dequantize_row(static_cast<TensorType>(4), bytes_of(block).data(), out.data(), 0).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(dequantize_row(TensorType::Q4_K, nullptr, nullptr, 0).ok());
  const Status status = dequantize_row(TensorType::Q4_K, bytes_of(block).first(143), out);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.text().find("src: got 143 bytes; allowed 144"), std::string::npos) << status.text();
  EXPECT_FALSE(dequantize_row(static_cast<TensorType>(4), bytes_of(block), out).ok());
}

}  // namespace
}  // namespace tessera
