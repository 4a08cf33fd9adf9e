// The GPU copy of the oracle against the oracle on small problems, and the kernels against the copy on large ones.
// Needs an sm_90 GPU.
#include "device_oracle/device_oracle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "oracle/oracle.h"

namespace tessera::test {
namespace {

struct Shape {
  int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
  int32_t dim_qk, dim_v;
  bool causal;
  int64_t window_left;
  float deviation;  // of Q: 1 gives scores of about one nat, more moves the maximum
};

std::string describe(const Shape& s, tessera_dtype dtype) {
  return fmt::format("{} b{} h{}/{} q{} k{} d{}/{} {} window {} deviation {}", dtype == TESSERA_F16 ? "f16" : "bf16",
                     s.batch, s.heads_q, s.heads_kv, s.seqlen_q, s.seqlen_k, s.dim_qk, s.dim_v,
                     s.causal ? "causal" : "full", s.window_left, s.deviation);
}

// Device memory with NaN in every byte.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 1))), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xff, static_cast<size_t>(bytes)), cudaSuccess);
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  std::vector<uint8_t> host() const {
    std::vector<uint8_t> bytes(static_cast<size_t>(bytes_));
    EXPECT_EQ(cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_;
};

tessera_tensor rows(void* data, int64_t tokens, int64_t heads, int64_t dim) {
  return {data, tokens * heads * dim, heads * dim, dim, 1};
}

// A problem in device memory, with O and LSE twice: of the device oracle and of a kernel.
class Problem {
 public:
  Problem(const Shape& s, tessera_dtype dtype)
      : q_(s.batch * s.seqlen_q * s.heads_q * s.dim_qk * 2),
        k_(s.batch * s.seqlen_k * s.heads_kv * s.dim_qk * 2),
        v_(s.batch * s.seqlen_k * s.heads_kv * s.dim_v * 2),
        o_{Buffer(s.batch * s.seqlen_q * s.heads_q * s.dim_v * 2),
           Buffer(s.batch * s.seqlen_q * s.heads_q * s.dim_v * 2)},
        lse_{Buffer(s.batch * s.seqlen_q * s.heads_q * 4), Buffer(s.batch * s.seqlen_q * s.heads_q * 4)},
        differences_(8) {
    EXPECT_EQ(enqueue_fill(dtype, q_.data(), q_.bytes() / 2, s.deviation, 1, nullptr), cudaSuccess);
    EXPECT_EQ(enqueue_fill(dtype, k_.data(), k_.bytes() / 2, 1.0F, 2, nullptr), cudaSuccess);
    EXPECT_EQ(enqueue_fill(dtype, v_.data(), v_.bytes() / 2, 1.0F, 3, nullptr), cudaSuccess);
    params.struct_size = sizeof(params);
    params.dtype = params.o_dtype = dtype;
    params.head_dim_qk = s.dim_qk;
    params.head_dim_v = s.dim_v;
    params.num_heads_q = static_cast<int32_t>(s.heads_q);
    params.num_heads_kv = static_cast<int32_t>(s.heads_kv);
    params.batch = s.batch;
    params.q = rows(q_.data(), s.seqlen_q, s.heads_q, s.dim_qk);
    params.seqlen_q = s.seqlen_q;
    params.num_segments = 1;
    tessera_kv_segment& segment = params.segments[0];
    segment.k = rows(k_.data(), s.seqlen_k, s.heads_kv, s.dim_qk);
    segment.v = rows(v_.data(), s.seqlen_k, s.heads_kv, s.dim_v);
    segment.seqlen_k = s.seqlen_k;
    segment.causal = s.causal ? 1 : 0;
    segment.window_left = s.window_left;
    segment.window_right = -1;
    segment.mask.num_keys = -1;
    params.softmax_scale = 0.125F;
    params.device = TESSERA_DEVICE_CUDA;
    select_output(0, s);
  }

  void select_output(int which, const Shape& s) {
    params.o = rows(o_[which].data(), s.seqlen_q, s.heads_q, s.dim_v);
    params.lse_natural_no_sink = {static_cast<float*>(lse_[which].data()), s.heads_q * s.seqlen_q, 1, s.seqlen_q};
  }

  // The same problem with host copies of the inputs; O and LSE go to `o` and `lse`.
  tessera_fmha_params on_host(std::vector<uint8_t>* o, std::vector<uint8_t>* lse) {
    tessera_fmha_params p = params;
    host_ = {q_.host(), k_.host(), v_.host()};
    o->assign(static_cast<size_t>(o_[0].bytes()), 0xff);
    lse->assign(static_cast<size_t>(lse_[0].bytes()), 0xff);
    p.device = TESSERA_DEVICE_CPU;
    p.q.data = host_[0].data();
    p.segments[0].k.data = host_[1].data();
    p.segments[0].v.data = host_[2].data();
    p.o.data = o->data();
    p.lse_natural_no_sink.data = reinterpret_cast<float*>(lse->data());
    return p;
  }

  // Bytes of O and LSE in which the two outputs differ.
  unsigned long long differences() {
    EXPECT_EQ(cudaMemset(differences_.data(), 0, 8), cudaSuccess);
    auto* const count = static_cast<unsigned long long*>(differences_.data());
    EXPECT_EQ(enqueue_count_differences(o_[0].data(), o_[1].data(), o_[0].bytes(), count, nullptr), cudaSuccess);
    EXPECT_EQ(enqueue_count_differences(lse_[0].data(), lse_[1].data(), lse_[0].bytes(), count, nullptr), cudaSuccess);
    unsigned long long result = ~0ULL;
    EXPECT_EQ(cudaMemcpy(&result, count, sizeof(result), cudaMemcpyDeviceToHost), cudaSuccess);
    return result;
  }
  const Buffer& o() const { return o_[0]; }
  const Buffer& lse() const { return lse_[0]; }

  tessera_fmha_params params{};

 private:
  Buffer q_, k_, v_;
  Buffer o_[2], lse_[2];
  Buffer differences_;
  std::vector<std::vector<uint8_t>> host_;
};

class DeviceOracle : public testing::TestWithParam<tessera_dtype> {
 protected:
  void SetUp() override {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9 || properties.minor != 0) {
      GTEST_SKIP() << "no CUDA device of compute capability 9.0: the kernels were not run";
    }
  }
};

TEST_P(DeviceOracle, EqualsTheOracleOnSmallProblems) {
  const Shape shapes[] = {
      {1, 2, 1, 5, 1, 64, 64, true, -1, 1},       {1, 2, 1, 33, 129, 128, 128, true, -1, 1},
      {2, 4, 2, 17, 200, 64, 64, false, -1, 4},   {1, 1, 1, 7, 1100, 128, 128, true, -1, 8},
      {1, 2, 2, 9, 300, 256, 256, true, -1, 2},   {1, 1, 1, 40, 20, 128, 128, true, -1, 1},
      {1, 3, 1, 20, 500, 192, 128, true, 100, 2}, {1, 1, 1, 3, 4200, 80, 80, false, 700, 4},
      {1, 1, 1, 2, 17500, 64, 64, true, -1, 8},   {1, 1, 1, 4, 130, 8, 24, false, -1, 1},
  };
  const int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(describe(shape, GetParam()));
    Problem problem(shape, GetParam());
    ASSERT_EQ(enqueue_device_oracle(problem.params, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<uint8_t> o;
    std::vector<uint8_t> lse;
    const Status status = oracle_fmha(Arithmetic::kHopperK16F25, problem.on_host(&o, &lse), threads);
    ASSERT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(problem.o().host(), o);
    EXPECT_EQ(problem.lse().host(), lse);
  }
}

// Every CUDA kernel that takes the problem, at lengths that benchmarks use.
TEST_P(DeviceOracle, KernelsKeepEveryByteOfLargeProblems) {
  const Shape shapes[] = {
      {1, 4, 4, 4096, 4096, 64, 64, false, -1, 1},
      {1, 4, 4, 4096, 4096, 64, 64, true, -1, 4},
      {1, 4, 4, 4096, 4096, 128, 128, false, -1, 1},
      {2, 4, 1, 4096, 4096, 128, 128, true, -1, 4},
      {1, 2, 2, 4096, 4096, 256, 256, false, -1, 1},
      {1, 2, 1, 4096, 4096, 256, 256, true, -1, 4},
      {1, 2, 1, 16384, 16384, 128, 128, true, -1, 2},
      {1, 1, 1, 2048, 66000, 128, 128, true, -1, 16},
      {1, 1, 1, 2048, 33000, 64, 64, false, -1, 8},
      {16, 4, 2, 1000, 1000, 128, 128, true, -1, 1},
      {1, 2, 1, 4096, 4096, 128, 128, true, 1000, 2},
      {1, 2, 1, 4096, 4096, 96, 96, true, -1, 2},
      {1, 2, 1, 4096, 4096, 192, 128, true, -1, 2},
      // Few query tokens at the ends of superchunks and far beyond.
      {1, 8, 2, 1, 32767, 128, 128, true, -1, 2},
      {1, 8, 2, 2, 32769, 64, 64, true, -1, 4},
      {3, 8, 8, 3, 65537, 256, 256, true, -1, 4},
      {1, 16, 4, 1, 131072, 128, 128, true, -1, 8},
      {2, 32, 8, 16, 40000, 128, 128, true, 3000, 2},
      {40, 32, 8, 1, 5000, 128, 128, true, -1, 1},
  };
  int compared = 0;
  int by_decode = 0;
  for (const Shape& shape : shapes) {
    Problem problem(shape, GetParam());
    ASSERT_EQ(enqueue_device_oracle(problem.params, nullptr), cudaSuccess) << describe(shape, GetParam());
    for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
      tessera_kernel_info info;
      ASSERT_EQ(tessera_kernel_get(i, &info, nullptr), TESSERA_OK);
      problem.params.force_kernel = info.name;
      tessera_error error{};
      size_t bytes = 0;
      if (info.operation != TESSERA_OP_FMHA || info.available == 0 ||
          tessera_fmha_workspace_size(&problem.params, 1, &bytes, &error) != TESSERA_OK) {
        continue;
      }
      SCOPED_TRACE(std::string(info.name) + " " + describe(shape, GetParam()));
      problem.select_output(1, shape);
      const Buffer workspace(static_cast<int64_t>(bytes));
      ASSERT_EQ(tessera_fmha_run(&problem.params, workspace.data(), bytes, nullptr, &error), TESSERA_OK) << error.text;
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(problem.differences(), 0U);
      problem.select_output(0, shape);
      ++compared;
      by_decode += std::string(info.name) == "sm90_fmha_decode" ? 1 : 0;
    }
    problem.params.force_kernel = nullptr;
  }
  std::printf("%d comparisons of whole outputs, %d of decode\n", compared, by_decode);
  EXPECT_GE(compared, 10);
  EXPECT_GE(by_decode, 6);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceOracle, testing::Values(TESSERA_F16, TESSERA_BF16),
                         [](const auto& dtype) { return dtype.param == TESSERA_F16 ? "f16" : "bf16"; });

}  // namespace
}  // namespace tessera::test
