// Rules E1..E3: every implementation against a scalar reference, byte for byte, and the C interface's refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "contract/exp2.h"
#include "gemm/harness.h"
#include "kernels/cpu/row_ops/row_ops.h"

namespace tessera::gemm_test {
namespace {

using row_ops::RowOps;

std::vector<const RowOps*> available_row_ops() {
  std::vector<const RowOps*> found;
  for (const RowOps* ops : row_ops::all_row_ops()) {
    if (ops->available()) found.push_back(ops);
  }
  return found;
}

class RowOpsBits : public ::testing::TestWithParam<const RowOps*> {};

std::string ops_name(const ::testing::TestParamInfo<const RowOps*>& info) {
  return info.param->name;
}

INSTANTIATE_TEST_SUITE_P(All, RowOpsBits, ::testing::ValuesIn(available_row_ops()), ops_name);

// E1 for one row.
std::vector<float> reference_rms(const float* x, const float* w, int64_t dim, float eps) {
  float classes[16] = {};
  for (int64_t i = 0; i < dim; ++i) classes[i % 16] = std::fma(x[i], x[i], classes[i % 16]);
  for (int half = 8; half > 0; half /= 2) {
    for (int t = 0; t < half; ++t) classes[t] = classes[t] + classes[t + half];
  }
  const float mean = classes[0] / static_cast<float>(dim);
  const float shifted = mean + eps;
  const float r = 1.0F / std::sqrt(shifted);
  std::vector<float> y;
  for (int64_t i = 0; i < dim; ++i) {
    const float scaled = x[i] * r;
    y.push_back(scaled * w[i]);
  }
  return y;
}

// E2 for one element.
float reference_swiglu(float g, float u) {
  float z = g * -kLog2E;
  if (!(z < 126.0F)) z = 126.0F;
  const float denominator = 1.0F + soft_exp2(z);
  const float silu = g / denominator;
  return silu * u;
}

TEST_P(RowOpsBits, RmsNormEqualsTheReference) {
  for (const int64_t dim : {1, 2, 15, 16, 17, 64, 576, 1000}) {
    const int64_t rows = 3;
    const int64_t stride = dim + 3;
    const std::vector<float> x = random_floats(static_cast<size_t>(rows * stride), static_cast<uint32_t>(dim));
    const std::vector<float> w = random_floats(static_cast<size_t>(dim), 2);
    std::vector<float> y(static_cast<size_t>(rows * stride), -1.0F);
    row_ops::run_rms_norm(*GetParam(), {rows, dim, x.data(), stride, w.data(), 1e-5F, y.data(), stride}, nullptr);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> got(y.begin() + r * stride, y.begin() + r * stride + dim);
      EXPECT_TRUE(same_bits(got, reference_rms(x.data() + r * stride, w.data(), dim, 1e-5F))) << "dim " << dim;
      for (int64_t i = dim; i < stride; ++i) EXPECT_EQ(y[static_cast<size_t>(r * stride + i)], -1.0F);
    }
  }
}

TEST_P(RowOpsBits, RmsNormOfZerosAndHugeValuesIsDefined) {
  const std::vector<float> w(32, 1.0F);
  std::vector<float> y(32);
  for (const float value : {0.0F, 1e-30F, 1e18F, 3e38F}) {
    const std::vector<float> x(32, value);
    row_ops::run_rms_norm(*GetParam(), {1, 32, x.data(), 32, w.data(), 1e-6F, y.data(), 32}, nullptr);
    EXPECT_TRUE(same_bits(y, reference_rms(x.data(), w.data(), 32, 1e-6F))) << value;
  }
}

TEST_P(RowOpsBits, SwigluEqualsTheReference) {
  std::vector<float> gate = random_floats(1003, 3);
  for (float& g : gate) g *= 20.0F;
  const float special[] = {0.0F, -0.0F, 1e-40F, 87.0F, -87.0F, 88.0F, -88.0F, 1e4F, -1e4F, 3e38F, -3e38F};
  std::copy(std::begin(special), std::end(special), gate.begin());
  const std::vector<float> up = random_floats(1003, 4);
  for (const int64_t dim : {1, 11, 16, 31, 1003}) {
    std::vector<float> expected;
    for (int64_t i = 0; i < dim; ++i) {
      expected.push_back(reference_swiglu(gate[static_cast<size_t>(i)], up[static_cast<size_t>(i)]));
    }
    std::vector<float> y(static_cast<size_t>(dim));
    row_ops::run_swiglu(*GetParam(), {1, dim, gate.data(), dim, up.data(), dim, y.data(), dim}, nullptr);
    EXPECT_TRUE(same_bits(y, expected)) << "dim " << dim;
    std::vector<float> in_place(gate.begin(), gate.begin() + dim);
    row_ops::run_swiglu(*GetParam(), {1, dim, in_place.data(), dim, up.data(), dim, in_place.data(), dim}, nullptr);
    EXPECT_TRUE(same_bits(in_place, expected)) << "in place, dim " << dim;
  }
}

// Against the formula in float64, where silu is not negligibly small.
TEST_P(RowOpsBits, SwigluIsAccurate) {
  std::vector<float> gate;
  for (int i = -4000; i <= 4000; ++i) gate.push_back(static_cast<float>(i) * 0.01F);
  const std::vector<float> up(gate.size(), 1.0F);
  std::vector<float> y(gate.size());
  const auto dim = static_cast<int64_t>(gate.size());
  row_ops::run_swiglu(*GetParam(), {1, dim, gate.data(), dim, up.data(), dim, y.data(), dim}, nullptr);
  for (size_t i = 0; i < gate.size(); ++i) {
    const auto g = static_cast<double>(gate[i]);
    const double exact = g / (1.0 + std::exp(-g));
    EXPECT_NEAR(static_cast<double>(y[i]), exact, std::fabs(exact) * (4e-7 + std::fabs(g) * 1.3e-7));
  }
}

// E3 written pair by pair.
void reference_rope(float* x, const float* c, const float* s, int32_t rotary, bool interleaved) {
  for (int32_t i = 0; i < rotary / 2; ++i) {
    float& x0 = interleaved ? x[2 * i] : x[i];
    float& x1 = interleaved ? x[2 * i + 1] : x[i + rotary / 2];
    const float first = x0;
    const float second = x1;
    const float a = second * s[i];
    const float b = first * s[i];
    x0 = std::fma(first, c[i], -a);
    x1 = std::fma(second, c[i], b);
  }
}

TEST_P(RowOpsBits, RopeEqualsTheReference) {
  for (const bool interleaved : {true, false}) {
    for (const auto& [head_dim, rotary] : {std::pair{64, 64}, {80, 80}, {128, 32}, {6, 6}, {18, 10}, {40, 38}}) {
      const int32_t heads = 3;
      const int64_t rows = 4;
      const int64_t stride_head = head_dim + 1;
      const int64_t stride_row = heads * stride_head + 2;
      const std::vector<int32_t> positions = {5, 0, 2, 5};
      const std::vector<float> c = random_floats(static_cast<size_t>(6 * rotary / 2), 5);
      const std::vector<float> s = random_floats(static_cast<size_t>(6 * rotary / 2), 6);
      std::vector<float> x = random_floats(static_cast<size_t>(rows * stride_row), 7);
      std::vector<float> expected = x;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t entry = positions[static_cast<size_t>(r)] * rotary / 2;
        for (int32_t h = 0; h < heads; ++h) {
          reference_rope(expected.data() + r * stride_row + h * stride_head, c.data() + entry, s.data() + entry, rotary,
                         interleaved);
        }
      }
      row_ops::run_rope(
          *GetParam(),
          {rows, heads, rotary, interleaved, positions.data(), c.data(), s.data(), x.data(), stride_row, stride_head},
          nullptr);
      EXPECT_TRUE(same_bits(x, expected)) << "head dim " << head_dim << " rotary " << rotary;
    }
  }
}

TEST_P(RowOpsBits, ThreadsDoNotMatter) {
  const int64_t rows = 301;
  const int64_t dim = 96;
  const std::vector<float> x = random_floats(static_cast<size_t>(rows * dim), 8);
  const std::vector<float> w = random_floats(static_cast<size_t>(dim), 9);
  const std::vector<float> table = random_floats(static_cast<size_t>(rows * dim / 2), 10);
  std::vector<int32_t> positions(static_cast<size_t>(rows));
  for (size_t r = 0; r < positions.size(); ++r) positions[r] = static_cast<int32_t>(r);
  const auto all = [&](const tessera_executor* executor) {
    std::vector<float> norm(x.size());
    std::vector<float> glu(x.size());
    std::vector<float> rotated = x;
    row_ops::run_rms_norm(*GetParam(), {rows, dim, x.data(), dim, w.data(), 1e-5F, norm.data(), dim}, executor);
    row_ops::run_swiglu(*GetParam(), {rows, dim, x.data(), dim, norm.data(), dim, glu.data(), dim}, executor);
    row_ops::run_rope(*GetParam(),
                      {rows, 2, 48, true, positions.data(), table.data(), table.data(), rotated.data(), dim, 48},
                      executor);
    norm.insert(norm.end(), glu.begin(), glu.end());
    norm.insert(norm.end(), rotated.begin(), rotated.end());
    return norm;
  };
  const std::vector<float> expected = all(nullptr);
  for (const int32_t threads : {1, 2, 3, 5}) {
    const TestExecutor executor(threads);
    EXPECT_TRUE(same_bits(all(executor.get()), expected)) << threads;
  }
}

// ---- the C interface

std::string text_of(const tessera_error& error) {
  return error.text;
}

TEST(RowOpsApi, NamesTheWrongArgument) {
  float x[64] = {};
  const float w[64] = {};
  tessera_error error{};
  const auto rms = [&](int64_t rows, int64_t dim, const float* in, int64_t stride, const float* weight, float eps,
                       float* out) {
    return tessera_rms_norm(rows, dim, in, stride, weight, eps, out, stride, nullptr, &error);
  };
  EXPECT_EQ(rms(1, 64, x, 64, w, 1e-5F, x), TESSERA_OK);
  EXPECT_EQ(rms(0, 64, x, 64, w, 1e-5F, x), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(text_of(error).rfind("rows: got 0", 0), 0U) << error.text;
  EXPECT_EQ(rms(1, -1, x, 64, w, 1e-5F, x), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(rms(1, 64, nullptr, 64, w, 1e-5F, x), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(rms(1, 64, x, 64, nullptr, 1e-5F, x), TESSERA_INVALID_ARGUMENT);
  const auto* const misaligned = reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(x) + 2);
  EXPECT_EQ(rms(1, 32, misaligned, 32, w, 1e-5F, x), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(text_of(error).rfind("x: got address", 0), 0U) << error.text;
  EXPECT_EQ(rms(1, 64, x, 64, w, -1.0F, x), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(rms(1, 64, x, 64, w, std::numeric_limits<float>::quiet_NaN(), x), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(rms(2, 32, x, 31, w, 1e-5F, x), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_swiglu(1, 64, x, 64, nullptr, 64, x, 64, nullptr, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(text_of(error).rfind("up: got NULL", 0), 0U) << error.text;
  EXPECT_EQ(tessera_swiglu(1, 64, x, 64, w, 64, x, 64, nullptr, nullptr), TESSERA_OK);
  const tessera_executor broken{nullptr, 2, nullptr};
  const tessera_stream stream{&broken, nullptr};
  EXPECT_EQ(tessera_swiglu(1, 64, x, 64, w, 64, x, 64, &stream, &error), TESSERA_INVALID_ARGUMENT);
}

// Runs the tasks where the call was made, so that they meet the caller's floating-point mode.
void run_here(void*, int64_t num_tasks, void (*task)(void* arg, int64_t index, int32_t thread), void* arg) {
  for (int64_t i = 0; i < num_tasks; ++i) task(arg, i, 0);
}

TEST(RowOpsApi, FlushToZeroOfTheCallerDoesNotMatter) {
#if defined(__SSE2__)
  constexpr int64_t kRows = 64;
  constexpr int64_t kDim = 512;  // enough elements for the tasks of an executor
  const std::vector<float> tiny(kRows * kDim, 1e-38F);
  const std::vector<float> small(kRows * kDim, 1e-3F);
  const std::vector<int32_t> positions(kRows, 0);
  const std::vector<float> half(kDim / 2, 0.5F);
  const tessera_executor executor{nullptr, 2, &run_here};
  const tessera_stream shared{&executor, nullptr};
  for (const tessera_stream* stream : {static_cast<const tessera_stream*>(nullptr), &shared}) {
    const auto all = [&] {
      std::vector<float> rms(kRows * kDim);
      std::vector<float> swiglu(kRows * kDim);
      std::vector<float> rope(tiny);
      EXPECT_EQ(tessera_rms_norm(kRows, kDim, tiny.data(), kDim, small.data(), 1.0F, rms.data(), kDim, stream, nullptr),
                TESSERA_OK);
      EXPECT_EQ(
          tessera_swiglu(kRows, kDim, tiny.data(), kDim, small.data(), kDim, swiglu.data(), kDim, stream, nullptr),
          TESSERA_OK);
      EXPECT_EQ(tessera_rope(kRows, 1, kDim, kDim, TESSERA_ROPE_HALVES, positions.data(), half.data(), half.data(), 1,
                             rope.data(), kDim, kDim, stream, nullptr),
                TESSERA_OK);
      for (const std::vector<float>& part : {swiglu, rope}) rms.insert(rms.end(), part.begin(), part.end());
      return rms;
    };
    const std::vector<float> expected = all();
    EXPECT_NE(expected[0], 0.0F) << "a subnormal number";
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040U);  // FTZ, DAZ
    const std::vector<float> flushed = all();
    const unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);
    EXPECT_EQ(after & 0xffc0U, (before | 0x8040U) & 0xffc0U) << "the caller's mode is restored";
    EXPECT_TRUE(same_bits(flushed, expected));
  }
#else
  GTEST_SKIP() << "no MXCSR on this machine";
#endif
}

TEST(RowOpsApi, RopeRefusesRowsThatOverlap) {
  std::vector<float> x = random_floats(64, 11);
  const std::vector<float> before = x;
  const std::vector<float> table = random_floats(32, 12);
  const int32_t positions[] = {0, 3};
  tessera_error error{};
  const auto rope = [&](int64_t stride_row, int64_t stride_head) {
    return tessera_rope(2, 2, 16, 16, TESSERA_ROPE_HALVES, positions, table.data(), table.data(), 4, x.data(),
                        stride_row, stride_head, nullptr, &error);
  };
  EXPECT_EQ(rope(16, 16), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(text_of(error).rfind("stride_row: got 16", 0), 0U) << error.text;
  EXPECT_EQ(rope(31, 16), TESSERA_INVALID_ARGUMENT);
  EXPECT_TRUE(same_bits(x, before));
  EXPECT_EQ(rope(32, 16), TESSERA_OK);
  EXPECT_EQ(rope(16, 32), TESSERA_OK) << "head-major";
}

TEST(RowOpsApi, RopeRefusesPositionsOutsideTheTableBeforeWriting) {
  std::vector<float> x = random_floats(32, 11);
  const std::vector<float> before = x;
  const std::vector<float> table = random_floats(32, 12);
  tessera_error error{};
  for (const int32_t bad : {-1, 4, std::numeric_limits<int32_t>::max()}) {
    const int32_t positions[] = {0, bad};
    EXPECT_EQ(tessera_rope(2, 1, 16, 16, TESSERA_ROPE_HALVES, positions, table.data(), table.data(), 4, x.data(), 16,
                           16, nullptr, &error),
              TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(text_of(error).find("positions[1]: got " + std::to_string(bad)), std::string::npos) << error.text;
    EXPECT_TRUE(same_bits(x, before));
  }
  const int32_t good[] = {0, 3};
  const auto rope = [&](int32_t heads, int32_t head_dim, int32_t rotary, int pairing) {
    return tessera_rope(2, heads, head_dim, rotary, static_cast<tessera_rope_pairing>(pairing), good, table.data(),
                        table.data(), 4, x.data(), 16, 16, nullptr, &error);
  };
  EXPECT_EQ(rope(1, 16, 16, 0), TESSERA_OK);
  EXPECT_EQ(rope(0, 16, 16, 0), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(rope(1, 16, 18, 0), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(rope(1, 16, 15, 0), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(rope(1, 16, 16, 2), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(rope(1, 17, 16, 0), TESSERA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessera::gemm_test
