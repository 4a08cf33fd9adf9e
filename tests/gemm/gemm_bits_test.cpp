// Every kernel and weight type against the scalar reference, byte for byte.
#include <bit>
#include <cmath>
#include <limits>

#include "gemm/harness.h"
#include "gemm/reference.h"

namespace tessera::gemm_test {
namespace {

// Shapes (m, n, k in blocks of the type): n off the 16-row grid, k off the 1024 chunk grid, one and several chunks.
struct Shape {
  int64_t m;
  int64_t n;
  int64_t k;
};

std::vector<Shape> shapes(tessera_weight_type type) {
  if (!is_quantized(type)) return {{1, 5, 1}, {2, 16, 33}, {3, 37, 576}, {7, 70, 1024}, {17, 19, 1061}, {8, 65, 2500}};
  if (block_elements(type) == 256) {
    return {{1, 5, 256}, {2, 16, 512}, {3, 37, 1024}, {7, 33, 1280}, {16, 19, 2304}, {17, 16, 3072}, {129, 17, 256}};
  }
  return {{1, 5, 32},    {2, 16, 64},    {3, 37, 576},   {7, 33, 1024},
          {8, 19, 1056}, {16, 31, 1536}, {17, 16, 3072}, {129, 17, 96}};
}

class GemmBits : public ::testing::TestWithParam<std::tuple<tessera_weight_type, const char*>> {
 protected:
  static tessera_weight_type type() { return std::get<0>(GetParam()); }
  static const char* kernel() { return std::get<1>(GetParam()); }
};

std::string test_name(const ::testing::TestParamInfo<GemmBits::ParamType>& info) {
  return std::string(type_name(std::get<0>(info.param))) + "_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(All, GemmBits,
                         ::testing::Combine(::testing::ValuesIn(kAllTypes), ::testing::ValuesIn(available_kernels())),
                         test_name);

TEST_P(GemmBits, EqualTheReference) {
  uint32_t seed = 1;
  for (const Shape& shape : shapes(type())) {
    SCOPED_TRACE(::testing::Message() << "m " << shape.m << " n " << shape.n << " k " << shape.k);
    const std::vector<uint8_t> matrix = random_matrix(type(), shape.n, shape.k, ++seed);
    const std::vector<float> x = random_floats(static_cast<size_t>(shape.m * shape.k), ++seed);
    const std::vector<float> bias = random_floats(static_cast<size_t>(shape.n), ++seed);
    const AlignedBytes packed = pack(type(), shape.n, shape.k, matrix);
    for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
      const std::vector<float> expected =
          reference_gemm(type(), matrix, shape.m, shape.n, shape.k, x.data(), shape.k, b);
      EXPECT_TRUE(same_bits(gemm(type(), packed, shape.m, shape.n, shape.k, x, b, kernel()), expected));
    }
  }
}

// Every stored quant at its ends and every digit of q at its ends: the sums of M2 reach their bounds here.
TEST_P(GemmBits, SurviveExtremeQuantsAndActivations) {
  const int64_t k = 1024;
  const int64_t n = 18;
  std::vector<uint8_t> matrix = random_matrix(type(), n, k, 5);
  if (is_quantized(type())) {
    const int64_t row_bytes = k / block_elements(type()) * block_bytes(type());
    const std::vector<uint8_t> original = matrix;
    // All quants zero bits, all one bits, Q8_0's -128; scales and minima keep their random values in rows 3 and up.
    const uint8_t fills[] = {0x00, 0xff, 0x80};
    for (int row = 0; row < 3; ++row) {
      std::memset(matrix.data() + row * row_bytes, fills[row], static_cast<size_t>(row_bytes));
      for (int64_t b = 0; b < k / block_elements(type()); ++b) {
        const int64_t at = row * row_bytes + b * block_bytes(type()) + (type() == TESSERA_WEIGHT_Q6_K ? 208 : 0);
        std::memcpy(matrix.data() + at, original.data() + at, type() == TESSERA_WEIGHT_Q6_K ? 2 : 4);
      }
      if (block_bytes(type()) % 4 == 2 && type() != TESSERA_WEIGHT_Q6_K) {  // no m: bytes 2 and 3 are quants
        for (int64_t b = 0; b < k / 32; ++b) {
          std::memset(matrix.data() + row * row_bytes + b * block_bytes(type()) + 2, fills[row], 2);
        }
      }
    }
  }
  const float patterns[][2] = {{1.0F, 1.0F},     {-1.0F, -1.0F}, {1.0F, -1.0F},       {1.0F, 0.99999F},
                               {1e30F, -1e30F},  {3e38F, 1e37F}, {0.0F, -0.0F},       {1e-30F, 1e-31F},
                               {1e-38F, 1e-40F}, {1e-45F, 0.0F}, {0.0155F, 0.00006F}, {7.8e-31F, 7.9e-31F},
                               {7e-31F, 1e-32F}};
  std::vector<float> x;
  for (const auto& pattern : patterns) {
    for (int64_t i = 0; i < k; ++i) x.push_back(pattern[i % 2]);
  }
  // After one element that sets the scale, q = -32896 has the digits 0, -128, -128 and q = 32639 has 0, 127, 127.
  const float digits[] = {-32896.0F / 2097151.0F, 32639.0F / 2097151.0F};
  for (const float value : digits) {
    for (int64_t i = 0; i < k; ++i) x.push_back(i % 32 == 0 ? 1.0F : value);
  }
  const auto m = static_cast<int64_t>(std::size(patterns) + std::size(digits));
  const AlignedBytes packed = pack(type(), n, k, matrix);
  const std::vector<float> expected = reference_gemm(type(), matrix, m, n, k, x.data(), k, nullptr);
  EXPECT_TRUE(same_bits(gemm(type(), packed, m, n, k, x, nullptr, kernel()), expected));
}

// Not promised to callers (inputs are finite), but never undefined: the row is NaN in the contract's spelling.
TEST_P(GemmBits, MapNonFiniteActivationsToOneNan) {
  const int64_t k = 256;
  const int64_t n = 17;
  const std::vector<uint8_t> matrix = random_matrix(type(), n, k, 6);
  const AlignedBytes packed = pack(type(), n, k, matrix);
  const int64_t m = 16;
  std::vector<float> x = random_floats(static_cast<size_t>(m * k), 7);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  x[k + 40] = std::numeric_limits<float>::infinity();
  x[2 * k + 255] = -std::numeric_limits<float>::signaling_NaN();
  const std::vector<float> expected = reference_gemm(type(), matrix, m, n, k, x.data(), k, nullptr);
  const std::vector<float> y = gemm(type(), packed, m, n, k, x, nullptr, kernel());
  EXPECT_TRUE(same_bits(y, expected));
  EXPECT_TRUE(std::isnan(y[0]));
  const std::vector<float> few(x.begin(), x.begin() + 4 * k);
  EXPECT_TRUE(same_bits(gemm(type(), packed, 4, n, k, few, nullptr, kernel()),
                        std::vector<float>(expected.begin(), expected.begin() + 4 * n)));
  EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(3 * n)]));
}

TEST_P(GemmBits, IgnoreTheFlushToZeroMode) {
  const int64_t k = 64 * (block_elements(type()) == 256 ? 4 : 1);
  const int64_t n = 16;
  const std::vector<uint8_t> matrix = random_matrix(type(), n, k, 8);
  const AlignedBytes packed = pack(type(), n, k, matrix);
  std::vector<float> x = random_floats(static_cast<size_t>(k), 9);
  for (float& value : x) value *= 1e-38F;
  const std::vector<float> expected = reference_gemm(type(), matrix, 1, n, k, x.data(), k, nullptr);
#if defined(__SSE2__)
  const unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | 0x8040U);
#endif
  const std::vector<float> y = gemm(type(), packed, 1, n, k, x, nullptr, kernel());
#if defined(__SSE2__)
  __builtin_ia32_ldmxcsr(saved);
#endif
  EXPECT_TRUE(same_bits(y, expected));
}

// M1's claim that |q| <= L, over all mantissas of amax (an exponent scales both roundings alike).
TEST(GemmQuants, NeverExceedTheLimit) {
  constexpr float kLimit = 2097151.0F;
  for (uint32_t mantissa = 0; mantissa < (1U << 23); ++mantissa) {
    const auto amax = std::bit_cast<float>(0x3f800000U | mantissa);
    const float inverse = kLimit / amax;
    const float scaled = amax * inverse;
    ASSERT_LE(std::nearbyint(scaled), kLimit) << amax;
  }
}

class GemmWeights : public ::testing::TestWithParam<tessera_weight_type> {};

std::string weight_name(const ::testing::TestParamInfo<tessera_weight_type>& info) {
  return type_name(info.param);
}

INSTANTIATE_TEST_SUITE_P(All, GemmWeights, ::testing::ValuesIn(kAllTypes), weight_name);

TEST_P(GemmWeights, UnpackGivesTheDocumentedFormula) {
  const int64_t n = 21;
  const int64_t k = 768;
  const std::vector<uint8_t> matrix = random_matrix(GetParam(), n, k, 10);
  const AlignedBytes packed = pack(GetParam(), n, k, matrix);
  const int64_t row_bytes = k / block_elements(GetParam()) * block_bytes(GetParam());
  for (int64_t row = 0; row < n; ++row) {
    std::vector<float> y(static_cast<size_t>(k));
    tessera_error error{};
    ASSERT_EQ(tessera_gemm_unpack_row(GetParam(), n, k, packed.get(), row, y.data(), &error), TESSERA_OK) << error.text;
    EXPECT_TRUE(same_bits(y, decode_row(GetParam(), matrix.data() + row * row_bytes, k).value)) << "row " << row;
  }
}

TEST_P(GemmWeights, PackInPiecesGivesTheSameBytes) {
  const int64_t n = 53;
  const int64_t k = 512;
  const std::vector<uint8_t> matrix = random_matrix(GetParam(), n, k, 11);
  const AlignedBytes whole = pack(GetParam(), n, k, matrix);
  AlignedBytes pieces(whole.size());
  const int64_t row_bytes = k / block_elements(GetParam()) * block_bytes(GetParam());
  const int64_t cuts[][2] = {{48, 53}, {0, 16}, {16, 48}};
  for (const auto& cut : cuts) {
    ASSERT_EQ(
        tessera_gemm_pack(GetParam(), n, k, cut[0], cut[1], matrix.data() + cut[0] * row_bytes,
                          static_cast<size_t>((cut[1] - cut[0]) * row_bytes), pieces.get(), pieces.size(), nullptr),
        TESSERA_OK);
  }
  EXPECT_EQ(std::memcmp(whole.get(), pieces.get(), whole.size()), 0);
}

// The product's peak memory is bounded by the packed size: at most 3 % above the file's bytes.
TEST_P(GemmWeights, PackedSizeIsTheFileSize) {
  size_t bytes = 0;
  ASSERT_EQ(tessera_gemm_packed_size(GetParam(), 1024, 2048, &bytes, nullptr), TESSERA_OK);
  const int64_t file = 1024 * 2048 / block_elements(GetParam()) * block_bytes(GetParam());
  EXPECT_GE(bytes, static_cast<size_t>(file));
  EXPECT_LE(static_cast<double>(bytes), 1.03 * static_cast<double>(file));
}

// The roundings of M1..M5 against float64 products of the stored weights. Bound: 2^-21 per activation (M1) plus one
// rounding of 2^-24 per step of a chain of k / 16 + 4 operations, on the sum of the magnitudes.
TEST_P(GemmWeights, ErrorAgainstFloat64StaysInTheStatedBound) {
  const int64_t n = 48;
  const int64_t k = 2048;
  const int64_t m = 4;
  const std::vector<uint8_t> matrix = random_matrix(GetParam(), n, k, 12);
  const std::vector<float> x = random_floats(static_cast<size_t>(m * k), 13);
  const AlignedBytes packed = pack(GetParam(), n, k, matrix);
  const std::vector<float> y = gemm(GetParam(), packed, m, n, k, x, nullptr, nullptr);
  const int64_t row_bytes = k / block_elements(GetParam()) * block_bytes(GetParam());
  const double steps = is_quantized(GetParam()) ? 1024.0 / 16 + 4 : 1024 + 4;
  for (int64_t o = 0; o < n; ++o) {
    const DecodedRow row = decode_row(GetParam(), matrix.data() + o * row_bytes, k);
    for (int64_t r = 0; r < m; ++r) {
      double exact = 0;
      double magnitude = 0;
      for (int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>(i);
        double w = static_cast<double>(row.value[at]);
        double parts = std::fabs(w);
        if (is_quantized(GetParam())) {  // before the fp32 roundings of the unpacked row
          const double product =
              static_cast<double>(row.ds[static_cast<size_t>(i / row.step)]) * static_cast<double>(row.quant[at]);
          const double minimum = row.affine ? static_cast<double>(row.mn[static_cast<size_t>(i / 32)]) : 0.0;
          w = product + minimum;
          parts = std::fabs(product) + std::fabs(minimum);
        }
        exact += w * static_cast<double>(x[static_cast<size_t>(r * k + i)]);
        magnitude += parts * 3.0;  // |x| and the block's amax stay below 5 here, and average below 3
      }
      const double bound = magnitude * (0x1p-21 + steps * 0x1p-24);
      EXPECT_NEAR(static_cast<double>(y[static_cast<size_t>(r * n + o)]), exact, bound);
    }
  }
}

}  // namespace
}  // namespace tessera::gemm_test
