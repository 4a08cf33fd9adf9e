// Packing and calling through the C interface, for the tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "tessera/tessera.h"

namespace tessera::gemm_test {

// 64-byte aligned bytes whose end is the end of the allocation, so that sanitizers see overruns.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : size_(size), data_(new (std::align_val_t{64}) uint8_t[size == 0 ? 1 : size]) {
    std::memset(data_.get(), 0xa5, size);
  }
  uint8_t* get() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Delete {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  size_t size_;
  std::unique_ptr<uint8_t[], Delete> data_;
};

// Threads that take indices in an interleaved order, so that tasks finish out of order.
class TestExecutor {
 public:
  explicit TestExecutor(int32_t threads) : executor_{this, threads, &TestExecutor::run} {}
  const tessera_executor* get() const { return &executor_; }
  int calls() const { return calls_; }

 private:
  static void run(void* context, int64_t count, void (*task)(void*, int64_t, int32_t), void* arg) {
    auto* self = static_cast<TestExecutor*>(context);
    ++self->calls_;
    const int32_t threads = self->executor_.num_threads;
    std::vector<std::thread> pool;
    pool.reserve(static_cast<size_t>(threads));
    for (int32_t t = 0; t < threads; ++t) {
      pool.emplace_back([=] {
        for (int64_t i = count - 1 - t; i >= 0; i -= threads) task(arg, i, t);
      });
    }
    for (std::thread& thread : pool) thread.join();
  }

  tessera_executor executor_;
  int calls_ = 0;
};

inline AlignedBytes pack(tessera_weight_type type, int64_t n, int64_t k, const std::vector<uint8_t>& matrix) {
  tessera_error error{};
  size_t bytes = 0;
  EXPECT_EQ(tessera_gemm_packed_size(type, n, k, &bytes, &error), TESSERA_OK) << error.text;
  AlignedBytes packed(bytes);
  EXPECT_EQ(tessera_gemm_pack(type, n, k, 0, n, matrix.data(), matrix.size(), packed.get(), bytes, &error), TESSERA_OK)
      << error.text;
  return packed;
}

inline std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

// Runs a filled-in parameter block with a workspace of exactly the size asked for.
inline void run_gemm(tessera_gemm_params& params, const tessera_executor* executor = nullptr) {
  params.struct_size = sizeof(params);
  tessera_error error{};
  size_t bytes = 0;
  const int32_t threads = executor == nullptr ? 1 : executor->num_threads;
  ASSERT_EQ(tessera_gemm_workspace_size(&params, threads, &bytes, &error), TESSERA_OK) << error.text;
  const AlignedBytes workspace(bytes);
  const tessera_stream stream{executor, nullptr};
  ASSERT_EQ(tessera_gemm_run(&params, workspace.get(), bytes, &stream, &error), TESSERA_OK) << error.text;
}

// One matrix, contiguous x and y.
inline std::vector<float> gemm(tessera_weight_type type, const AlignedBytes& packed, int64_t m, int64_t n, int64_t k,
                               const std::vector<float>& x, const float* bias, const char* kernel,
                               const tessera_executor* executor = nullptr) {
  std::vector<float> y(static_cast<size_t>(m * n), -7.0F);
  tessera_gemm_params params{};
  params.m = m;
  params.k = k;
  params.x = x.data();
  params.stride_x = k;
  params.num_weights = 1;
  params.weights[0] = {type, n, packed.get(), bias, y.data(), n};
  params.force_kernel = kernel;
  run_gemm(params, executor);
  return y;
}

// Bytes equal; reports the first difference.
inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// GEMM kernels of this build that this machine can run.
inline std::vector<const char*> available_kernels() {
  std::vector<const char*> names;
  for (const gemm::GemmKernel& kernel : gemm::gemm_kernels()) {
    if (kernel.available()) names.push_back(kernel.name);
  }
  return names;
}

}  // namespace tessera::gemm_test
