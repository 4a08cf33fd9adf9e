// The C interface of the matrix product: what it refuses, with which sentence, and that a refusal writes nothing.
#include <functional>
#include <limits>

#include "gemm/harness.h"
#include "gemm/reference.h"

namespace tessera::gemm_test {
namespace {

constexpr int64_t kN = 20;
constexpr int64_t kK = 64;
constexpr int64_t kM = 3;

// The address two bytes on, where no float may lie.
template <class T>
T* misaligned(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + 2);
}

class GemmApi : public ::testing::Test {
 protected:
  GemmApi()
      : matrix_(random_matrix(TESSERA_WEIGHT_Q4_1, kN, kK, 1)),
        packed_(pack(TESSERA_WEIGHT_Q4_1, kN, kK, matrix_)),
        x_(random_floats(kM * kK, 2)),
        y_(kM * kN, -5.0F) {
    params_.struct_size = sizeof(params_);
    params_.m = kM;
    params_.k = kK;
    params_.x = x_.data();
    params_.stride_x = kK;
    params_.num_weights = 1;
    params_.weights[0] = {TESSERA_WEIGHT_Q4_1, kN, packed_.get(), nullptr, y_.data(), kN};
  }

  tessera_status run(void* workspace, size_t bytes, const tessera_stream* stream = nullptr) {
    return tessera_gemm_run(&params_, workspace, bytes, stream, &error_);
  }

  // The run is refused with `code`, the sentence starts with `start`, and y is untouched.
  void expect_refused(tessera_status code, const std::string& start) {
    const AlignedBytes workspace(1 << 16);
    EXPECT_EQ(run(workspace.get(), workspace.size()), code);
    expect_sentence(code, start);
  }

  void expect_sentence(tessera_status code, const std::string& start) {
    EXPECT_EQ(error_.code, code);
    const std::string text = error_.text;
    EXPECT_EQ(text.rfind(start, 0), 0U) << text;
    EXPECT_NE(text.find("got "), std::string::npos) << text;
    EXPECT_NE(text.find("; allowed "), std::string::npos) << text;
    for (const float value : y_) ASSERT_EQ(value, -5.0F);
  }

  std::vector<uint8_t> matrix_;
  AlignedBytes packed_;
  std::vector<float> x_;
  std::vector<float> y_;
  tessera_gemm_params params_{};
  tessera_error error_{};
};

TEST_F(GemmApi, RefusesWrongParameters) {
  const tessera_gemm_params good = params_;
  const std::pair<const char*, std::function<void(tessera_gemm_params&)>> cases[] = {
      {"struct_size: got 8", [](auto& p) { p.struct_size = 8; }},
      {"m: got 0", [](auto& p) { p.m = 0; }},
      {"m: got -1", [](auto& p) { p.m = -1; }},
      {"m: got 9223372036854775807", [](auto& p) { p.m = std::numeric_limits<int64_t>::max(); }},
      {"weights[0].k: got 48", [](auto& p) { p.k = 48; }},
      {"weights[0].k: got 0", [](auto& p) { p.k = 0; }},
      {"weights[0].k: got -32", [](auto& p) { p.k = -32; }},
      {"num_weights: got 0", [](auto& p) { p.num_weights = 0; }},
      {"num_weights: got 5", [](auto& p) { p.num_weights = 5; }},
      {"x: got NULL", [](auto& p) { p.x = nullptr; }},
      {"x: got address", [](auto& p) { p.x = misaligned(p.x); }},
      {"weights[0].y: got address", [](auto& p) { p.weights[0].y = misaligned(p.weights[0].y); }},
      {"weights[0].bias: got address", [](auto& p) { p.weights[0].bias = misaligned(p.x); }},
      {"stride_x: got 63", [](auto& p) { p.stride_x = 63; }},
      {"stride_x: got 9223372036854775807", [](auto& p) { p.stride_x = std::numeric_limits<int64_t>::max(); }},
      {"weights[0].n: got 0", [](auto& p) { p.weights[0].n = 0; }},
      {"weights[0].n: got 4611686018427387904", [](auto& p) { p.weights[0].n = int64_t{1} << 62; }},
      {"weights[0].packed: got NULL", [](auto& p) { p.weights[0].packed = nullptr; }},
      {"weights[0].packed: got an address",
       [](auto& p) { p.weights[0].packed = static_cast<const char*>(p.weights[0].packed) + 32; }},
      {"weights[0].y: got NULL", [](auto& p) { p.weights[0].y = nullptr; }},
      {"weights[0].stride_y: got 19", [](auto& p) { p.weights[0].stride_y = 19; }},
      {"weights[1].y: got NULL",
       [](auto& p) {
         p.num_weights = 2;
         p.weights[1] = p.weights[0];
         p.weights[1].y = nullptr;
       }},
  };
  for (const auto& [start, change] : cases) {
    params_ = good;
    change(params_);
    expect_refused(TESSERA_INVALID_ARGUMENT, start);
  }
}

TEST_F(GemmApi, RefusesUnknownTypesAndKernels) {
  for (const int type : {-1, 4, 5, 9, 15, 39, 1 << 30}) {
    params_.weights[0].type = static_cast<tessera_weight_type>(type);
    expect_refused(TESSERA_UNSUPPORTED, "weights[0].type: got " + std::to_string(type));
  }
  params_.weights[0].type = TESSERA_WEIGHT_Q4_1;
  params_.force_kernel = "cpu_gemm_abacus";
  expect_refused(TESSERA_UNSUPPORTED, "force_kernel: got \"cpu_gemm_abacus\"; allowed \"");
}

TEST_F(GemmApi, RefusesNullAndTooSmallAndMisalignedWorkspaces) {
  size_t bytes = 0;
  ASSERT_EQ(tessera_gemm_workspace_size(&params_, 1, &bytes, &error_), TESSERA_OK);
  ASSERT_GT(bytes, 0U);
  const AlignedBytes workspace(bytes + 64);
  EXPECT_EQ(run(nullptr, bytes), TESSERA_WORKSPACE_TOO_SMALL);
  expect_sentence(TESSERA_WORKSPACE_TOO_SMALL, "workspace: got ");
  EXPECT_EQ(run(workspace.get(), bytes - 1), TESSERA_WORKSPACE_TOO_SMALL);
  expect_sentence(TESSERA_WORKSPACE_TOO_SMALL, "workspace: got ");
  EXPECT_EQ(run(workspace.get() + 4, bytes), TESSERA_WORKSPACE_TOO_SMALL);
  expect_sentence(TESSERA_WORKSPACE_TOO_SMALL, "workspace: got ");
  EXPECT_EQ(run(workspace.get(), bytes), TESSERA_OK) << error_.text;
  EXPECT_NE(y_[0], -5.0F);
}

TEST_F(GemmApi, RefusesBrokenExecutors) {
  const AlignedBytes workspace(1 << 16);
  const tessera_executor no_function{nullptr, 2, nullptr};
  tessera_stream stream{&no_function, nullptr};
  EXPECT_EQ(run(workspace.get(), workspace.size(), &stream), TESSERA_INVALID_ARGUMENT);
  expect_sentence(TESSERA_INVALID_ARGUMENT, "executor.parallel_for: got NULL");
  const TestExecutor good(1);
  tessera_executor no_threads = *good.get();
  no_threads.num_threads = 0;
  stream.executor = &no_threads;
  EXPECT_EQ(run(workspace.get(), workspace.size(), &stream), TESSERA_INVALID_ARGUMENT);
  expect_sentence(TESSERA_INVALID_ARGUMENT, "num_threads: got 0");
}

TEST_F(GemmApi, RefusesNullParametersAndResults) {
  EXPECT_EQ(tessera_gemm_run(nullptr, nullptr, 0, nullptr, &error_), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_gemm_run(nullptr, nullptr, 0, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_gemm_workspace_size(&params_, 1, nullptr, &error_), TESSERA_INVALID_ARGUMENT);
  size_t bytes = 77;
  EXPECT_EQ(tessera_gemm_workspace_size(&params_, 0, &bytes, &error_), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_gemm_packed_size(TESSERA_WEIGHT_Q4_K, 16, 128, &bytes, &error_), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_gemm_packed_size(TESSERA_WEIGHT_F32, int64_t{1} << 31, int64_t{1} << 31, &bytes, &error_),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(bytes, 77U);
}

TEST_F(GemmApi, PackRefusesPartialGroupsAndShortBuffers) {
  AlignedBytes target(packed_.size());
  const auto try_pack = [&](int64_t begin, int64_t end, size_t rows_bytes, size_t packed_bytes) {
    return tessera_gemm_pack(TESSERA_WEIGHT_Q4_1, kN, kK, begin, end, matrix_.data(), rows_bytes, target.get(),
                             packed_bytes, &error_);
  };
  EXPECT_EQ(try_pack(0, kN, matrix_.size(), target.size()), TESSERA_OK) << error_.text;
  EXPECT_EQ(try_pack(1, kN, matrix_.size(), target.size()), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(try_pack(0, 7, matrix_.size(), target.size()), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(try_pack(16, 16, matrix_.size(), target.size()), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(try_pack(-16, kN, matrix_.size(), target.size()), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(try_pack(0, kN + 1, matrix_.size(), target.size()), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(try_pack(0, kN, matrix_.size() - 1, target.size()), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(try_pack(0, kN, matrix_.size(), target.size() - 1), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_gemm_pack(TESSERA_WEIGHT_Q4_1, kN, kK, 0, kN, nullptr, matrix_.size(), target.get(), target.size(),
                              &error_),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_gemm_pack(TESSERA_WEIGHT_Q4_1, kN, kK, 0, kN, matrix_.data(), matrix_.size(), nullptr,
                              target.size(), &error_),
            TESSERA_INVALID_ARGUMENT);
}

TEST_F(GemmApi, UnpackRefusesRowsOutsideTheMatrix) {
  std::vector<float> row(kK, -5.0F);
  for (const int64_t bad : {int64_t{-1}, kN, int64_t{1} << 40}) {
    EXPECT_EQ(tessera_gemm_unpack_row(TESSERA_WEIGHT_Q4_1, kN, kK, packed_.get(), bad, row.data(), &error_),
              TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(row[0], -5.0F);
  }
  EXPECT_EQ(tessera_gemm_unpack_row(TESSERA_WEIGHT_Q4_1, kN, kK, packed_.get(), 0, nullptr, &error_),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_gemm_unpack_row(TESSERA_WEIGHT_Q4_1, kN, kK, nullptr, 0, row.data(), &error_),
            TESSERA_INVALID_ARGUMENT);
}

// Any bytes make a matrix: no packed content can make a kernel read or write outside its buffers.
TEST_F(GemmApi, AcceptsAnyBytesAsWeights) {
  std::mt19937 engine(3);
  for (const tessera_weight_type type : kAllTypes) {
    const int64_t k = 512;
    std::vector<uint8_t> bytes(static_cast<size_t>(kN * (k / block_elements(type)) * block_bytes(type)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(engine());
    const AlignedBytes packed = pack(type, kN, k, bytes);
    const std::vector<float> x = random_floats(static_cast<size_t>(2 * k), 4);
    const std::vector<float> expected = reference_gemm(type, bytes, 2, kN, k, x.data(), k, nullptr);
    for (const char* kernel : available_kernels()) {
      EXPECT_TRUE(same_bits(gemm(type, packed, 2, kN, k, x, nullptr, kernel), expected)) << type_name(type) << kernel;
    }
  }
}

}  // namespace
}  // namespace tessera::gemm_test
