// What may not move a bit: the batch, the neighbours, the other matrices of a call, threads, strides.
#include <limits>

#include "gemm/harness.h"
#include "gemm/reference.h"

namespace tessera::gemm_test {
namespace {

class GemmInvariance : public ::testing::TestWithParam<const char*> {};

std::string kernel_name(const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

INSTANTIATE_TEST_SUITE_P(All, GemmInvariance, ::testing::ValuesIn(available_kernels()), kernel_name);

constexpr int64_t kN = 50;

int64_t test_k(tessera_weight_type type) {
  return block_elements(type) == 256 ? 1536 : 1088;
}

TEST_P(GemmInvariance, RowAloneEqualsRowInAnyBatch) {
  for (const tessera_weight_type type : kAllTypes) {
    SCOPED_TRACE(type_name(type));
    const int64_t k = test_k(type);
    const AlignedBytes packed = pack(type, kN, k, random_matrix(type, kN, k, 21));
    const std::vector<float> row = random_floats(static_cast<size_t>(k), 22);
    const std::vector<float> alone = gemm(type, packed, 1, kN, k, row, nullptr, GetParam());
    for (const int64_t m : {2, 3, 7, 8, 11, 12, 13, 16, 17, 64, 129, 520}) {
      std::vector<float> x = random_floats(static_cast<size_t>(m * k), static_cast<uint32_t>(m));
      const int64_t places[] = {0, m / 2, m - 1};
      for (const int64_t place : places) std::copy(row.begin(), row.end(), x.begin() + place * k);
      const std::vector<float> y = gemm(type, packed, m, kN, k, x, nullptr, GetParam());
      for (const int64_t place : places) {
        const std::vector<float> got(y.begin() + place * kN, y.begin() + (place + 1) * kN);
        EXPECT_TRUE(same_bits(got, alone)) << "row " << place << " of " << m;
      }
    }
  }
}

TEST_P(GemmInvariance, NeighbouringNanRowsDoNotReachARow) {
  for (const tessera_weight_type type : kAllTypes) {
    SCOPED_TRACE(type_name(type));
    const int64_t k = test_k(type);
    const AlignedBytes packed = pack(type, kN, k, random_matrix(type, kN, k, 23));
    for (const int64_t m : {3, 16, 33}) {
      std::vector<float> x(static_cast<size_t>(m * k), std::numeric_limits<float>::quiet_NaN());
      const std::vector<float> row = random_floats(static_cast<size_t>(k), 24);
      std::copy(row.begin(), row.end(), x.begin() + k);
      const std::vector<float> y = gemm(type, packed, m, kN, k, x, nullptr, GetParam());
      const std::vector<float> got(y.begin() + kN, y.begin() + 2 * kN);
      EXPECT_TRUE(same_bits(got, gemm(type, packed, 1, kN, k, row, nullptr, GetParam())));
    }
  }
}

TEST_P(GemmInvariance, ThreadsDoNotMatter) {
  for (const tessera_weight_type type : kAllTypes) {
    SCOPED_TRACE(type_name(type));
    const int64_t k = test_k(type);
    const int64_t n = 200;
    const AlignedBytes packed = pack(type, n, k, random_matrix(type, n, k, 25));
    for (const int64_t m : {1, 5, 40, 140}) {
      const std::vector<float> x = random_floats(static_cast<size_t>(m * k), 26);
      const std::vector<float> expected = gemm(type, packed, m, n, k, x, nullptr, GetParam());
      for (const int32_t threads : {1, 2, 3, 4}) {
        const TestExecutor executor(threads);
        EXPECT_TRUE(same_bits(gemm(type, packed, m, n, k, x, nullptr, GetParam(), executor.get()), expected))
            << threads << " threads, m " << m;
      }
    }
  }
}

// Types and widths mixed in one call, as Q4_K_M files mix them; a decode step uses one parallel region.
TEST_P(GemmInvariance, SeveralMatricesEqualOneByOne) {
  const tessera_weight_type types[] = {TESSERA_WEIGHT_Q4_K, TESSERA_WEIGHT_Q6_K, TESSERA_WEIGHT_F16,
                                       TESSERA_WEIGHT_Q8_0};
  const int64_t widths[] = {176, 37, 64, 1};
  const int64_t k = 1536;
  std::vector<AlignedBytes> packed;
  packed.reserve(4);
  for (int w = 0; w < 4; ++w) {
    packed.push_back(
        pack(types[w], widths[w], k, random_matrix(types[w], widths[w], k, 30 + static_cast<uint32_t>(w))));
  }
  const std::vector<float> bias = random_floats(37, 29);
  for (const int64_t m : {1, 6, 150}) {
    const std::vector<float> x = random_floats(static_cast<size_t>(m * k), 28);
    for (const int32_t threads : {1, 3}) {
      TestExecutor executor(threads);
      std::vector<std::vector<float>> y;
      y.reserve(4);
      tessera_gemm_params params{};
      params.m = m;
      params.k = k;
      params.x = x.data();
      params.stride_x = k;
      params.num_weights = 4;
      params.force_kernel = GetParam();
      for (int w = 0; w < 4; ++w) y.emplace_back(static_cast<size_t>(m * widths[w]));
      for (int w = 0; w < 4; ++w) {
        params.weights[w] = {types[w],
                             widths[w],
                             packed[static_cast<size_t>(w)].get(),
                             w == 1 ? bias.data() : nullptr,
                             y[static_cast<size_t>(w)].data(),
                             widths[w]};
      }
      run_gemm(params, executor.get());
      if (m == 1) {
        EXPECT_LE(executor.calls(), 1);
      }
      for (int w = 0; w < 4; ++w) {
        EXPECT_TRUE(same_bits(y[static_cast<size_t>(w)], gemm(types[w], packed[static_cast<size_t>(w)], m, widths[w], k,
                                                              x, w == 1 ? bias.data() : nullptr, GetParam())))
            << "matrix " << w << " m " << m;
      }
    }
  }
}

// m rows of x and y with gaps, which hold NaN and are not written.
void expect_strides_respected(tessera_weight_type type, int64_t m, const char* kernel) {
  SCOPED_TRACE(::testing::Message() << type_name(type) << " m " << m);
  const int64_t k = test_k(type);
  const int64_t stride_x = k + 5;
  const int64_t stride_y = kN + 3;
  const AlignedBytes packed = pack(type, kN, k, random_matrix(type, kN, k, 31));
  const std::vector<float> dense = random_floats(static_cast<size_t>(m * k), 32);
  std::vector<float> x(static_cast<size_t>(m * stride_x), std::numeric_limits<float>::quiet_NaN());
  for (int64_t r = 0; r < m; ++r) std::copy_n(dense.begin() + r * k, k, x.begin() + r * stride_x);
  std::vector<float> y(static_cast<size_t>(m * stride_y), -3.0F);
  tessera_gemm_params params{};
  params.m = m;
  params.k = k;
  params.x = x.data();
  params.stride_x = stride_x;
  params.num_weights = 1;
  params.weights[0] = {type, kN, packed.get(), nullptr, y.data(), stride_y};
  params.force_kernel = kernel;
  run_gemm(params);
  const std::vector<float> expected = gemm(type, packed, m, kN, k, dense, nullptr, kernel);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t o = 0; o < stride_y; ++o) {
      const float want = o < kN ? expected[static_cast<size_t>(r * kN + o)] : -3.0F;
      ASSERT_EQ(y[static_cast<size_t>(r * stride_y + o)], want) << "row " << r << " column " << o;
    }
  }
}

TEST_P(GemmInvariance, StridesAndGapsAreRespected) {
  for (const tessera_weight_type type : kAllTypes) expect_strides_respected(type, 19, GetParam());
  expect_strides_respected(TESSERA_WEIGHT_Q4_1, 530, GetParam());  // more than one slab
}

// Bytes of the rows that pad the last group are never used: a file may be followed by anything.
TEST_P(GemmInvariance, PaddingRowsDoNotMatter) {
  const tessera_weight_type type = TESSERA_WEIGHT_Q4_1;
  const int64_t k = 576;
  const AlignedBytes wide = pack(type, 48, k, random_matrix(type, 48, k, 33));
  const std::vector<float> x = random_floats(static_cast<size_t>(3 * k), 34);
  const std::vector<float> all = gemm(type, wide, 3, 48, k, x, nullptr, GetParam());
  const std::vector<float> some = gemm(type, wide, 3, 41, k, x, nullptr, GetParam());
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t o = 0; o < 41; ++o) {
      EXPECT_EQ(all[static_cast<size_t>(r * 48 + o)], some[static_cast<size_t>(r * 41 + o)]);
    }
  }
}

}  // namespace
}  // namespace tessera::gemm_test
