// The promise on the GPU: a row keeps its bytes whatever surrounds it and whichever kernel computes it. The calls are
// compared with each other, so the problems may be larger than the oracle could follow.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/harness.h"
#include "fmha/conformance.h"

namespace tessera::test {
namespace {

FmhaSpec base(tessera_dtype dtype, int64_t q, int64_t k) {
  FmhaSpec spec;
  spec.dtype = spec.o_dtype = dtype;
  spec.head_dim_qk = spec.head_dim_v = 128;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, q, k);
}

class CudaInvariance : public CudaTest, public testing::WithParamInterface<tessera_dtype> {
 protected:
  // Compares `spec` with `expected` on every kernel that takes it; at least one has to.
  static void expect_rows(const FmhaSpec& spec, int64_t sequence, const std::vector<RowBytes>& expected,
                          const std::string& what) {
    int taken = 0;
    for (const std::string& kernel : cuda_kernels(TESSERA_OP_FMHA, true)) {
      const std::vector<RowBytes> rows = cuda_rows(kernel, spec, sequence);
      if (rows.empty()) continue;
      ++taken;
      EXPECT_TRUE(rows == expected) << kernel << " " << what;
    }
    EXPECT_GT(taken, 0) << "no kernel takes this problem: " << what;
  }
};

TEST_P(CudaInvariance, EveryKernelGivesTheSameBytes) {
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{1, 9000}, {200, 1300}, {1500, 1500}, {130, 20000}}) {
    for (const int causal : {0, 1}) {
      FmhaSpec spec = base(GetParam(), q, k);
      spec.segments[0].causal = causal;
      expect_rows(spec, 0, cuda_rows("", spec, 0), std::to_string(q) + " by " + std::to_string(k));
    }
  }
}

TEST_P(CudaInvariance, RepeatedCallsGiveTheSameBytes) {
  FmhaSpec spec = base(GetParam(), 600, 4200);
  spec.heads_q = 8;
  spec.q_lengths = {600, 600, 600};
  spec.segments[0].lengths = {4200, 4200, 4200};
  const auto expected = cuda_rows("", spec, 1);
  for (int i = 0; i < 4; ++i) expect_rows(spec, 1, expected, "call " + std::to_string(i));
}

TEST_P(CudaInvariance, AloneOrAmongNeighbours) {
  for (const int64_t q : {1, 2, 17, 129}) {
    FmhaSpec alone = base(GetParam(), q, 2100);
    alone.ids = {7};
    const auto expected = cuda_rows("", alone, 0);
    FmhaSpec crowd = alone;  // of equal lengths, which every kernel takes
    crowd.q_lengths = {q, q, q, q, q};
    crowd.ids = {1, 2, 7, 3, 4};
    crowd.segments[0].lengths = {2100, 2100, 2100, 2100, 2100};
    expect_rows(crowd, 2, expected, "equal lengths");
  }
}

// The K/V of a prompt grows chunk by chunk: token i is computed with the keys up to the end of its chunk.
TEST_P(CudaInvariance, ChunkedPrefillOfAnyChunkLength) {
  constexpr int64_t kTokens = 600;
  const FmhaProblem problem(base(GetParam(), kTokens, kTokens));
  int taken = 0;
  for (const std::string& kernel : cuda_kernels(TESSERA_OP_FMHA, true)) {
    DeviceProblem device(problem);
    device.params.force_kernel = kernel.c_str();
    if (!device.make_workspace().empty()) continue;
    const Stream stream;
    tessera_error error{};
    ASSERT_EQ(device.enqueue(stream.get(), &error), TESSERA_OK) << error.text;
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    const FmhaOutputs whole = device.outputs();
    for (const int64_t chunk : {1, 7, 64, 512, 333}) {
      device.reset_outputs();
      const tessera_fmha_params all = device.params;
      for (int64_t first = 0; first < kTokens; first += chunk) {
        tessera_fmha_params& part = device.params;
        part.seqlen_q = std::min(chunk, kTokens - first);
        part.segments[0].seqlen_k = first + part.seqlen_q;
        part.q.data = static_cast<uint16_t*>(all.q.data) + first * all.q.stride_token;
        part.o.data = static_cast<uint16_t*>(all.o.data) + first * all.o.stride_token;
        part.lse_natural_no_sink.data = all.lse_natural_no_sink.data + first * all.lse_natural_no_sink.stride_token;
        ASSERT_EQ(device.enqueue(stream.get(), &error), TESSERA_OK) << error.text;
      }
      ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      device.params = all;
      EXPECT_EQ(first_difference(problem, whole, device.outputs()), "") << kernel << " chunk " << chunk;
      ++taken;
    }
    EXPECT_EQ(device.damage(), "");
  }
  EXPECT_GE(taken, 5);
}

TEST_P(CudaInvariance, DecodeEqualsTheRowOfAPrefill) {
  for (const int64_t k : {17, 128, 129, 2048, 2049, 2400}) {
    const auto prefill = cuda_rows("", base(GetParam(), 16, k), 0);
    FmhaSpec decode = base(GetParam(), 1, k);
    decode.q_first = {15};
    const std::vector<RowBytes> last(prefill.end() - decode.heads_q, prefill.end());
    expect_rows(decode, 0, last, std::to_string(k) + " keys");
  }
}

TEST_P(CudaInvariance, Strides) {
  const auto expected = cuda_rows("", base(GetParam(), 150, 300), 0);
  for (const bool q_major : {false, true}) {
    for (const bool k_major : {false, true}) {
      FmhaSpec spec = base(GetParam(), 150, 300);
      spec.head_major = q_major;
      spec.row_padding = 8;
      spec.segments[0].head_major = k_major;
      spec.segments[0].row_padding = 40;
      expect_rows(spec, 0, expected, "strides");
    }
  }
}

// ---- what needs a kernel with all features

using CudaLayouts = CudaInvariance;

TEST_P(CudaLayouts, AmongNeighboursOfAnyLength) {
  for (const int64_t q : {1, 2, 17}) {
    FmhaSpec alone = base(GetParam(), q, 2100);
    alone.ids = {7};
    const auto expected = cuda_rows("", alone, 0);
    for (const KvLayout layout : {KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged}) {
      FmhaSpec crowd = alone;
      crowd.q_lengths = {40, 1, q, 0, 3};
      crowd.ids = {1, 2, 7, 3, 4};
      crowd.packed_q = layout != KvLayout::kBatched;
      crowd.segments[0].lengths = {4200, 5, 2100, 64, 900};
      crowd.segments[0].layout = layout;
      expect_rows(crowd, 2, expected, "layout " + std::to_string(static_cast<int>(layout)));
    }
  }
}

TEST_P(CudaLayouts, PageSizeAndPageOrder) {
  for (const int64_t q : {1, 30}) {
    const auto expected = cuda_rows("", base(GetParam(), q, 700), 0);
    for (const int32_t page : {1, 16, 64, 128, 333}) {
      for (const uint64_t seed : {1u, 2u}) {
        FmhaSpec paged = base(GetParam(), q, 700);
        paged.segments[0].layout = KvLayout::kPaged;
        paged.segments[0].page_size = page;
        paged.segments[0].page_seed = seed;
        expect_rows(paged, 0, expected, "pages of " + std::to_string(page));
      }
    }
  }
}

// A sequence among empty ones, and keys that end before the first query.
TEST_P(CudaLayouts, ZeroLengths) {
  FmhaSpec spec = base(GetParam(), 5, 40);
  spec.q_lengths = {0, 5, 0, 3};
  spec.segments[0].lengths = {7, 40, 0, 0};
  for (const bool packed : {false, true}) {
    spec.packed_q = packed;
    spec.segments[0].layout = packed ? KvLayout::kPacked : KvLayout::kBatched;
    const FmhaProblem problem(spec);
    const CudaRun run = run_cuda("", problem);
    ASSERT_EQ(run.status, TESSERA_OK) << run.text;
    EXPECT_EQ(run.damage, "");
    EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), run.out), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaLayouts, testing::Values(TESSERA_F16, TESSERA_BF16),
                         [](const auto& param) { return param.param == TESSERA_F16 ? "f16" : "bf16"; });

// Negative control: one key less moves bytes.
TEST_P(CudaInvariance, OneKeyLessIsAnotherResult) {
  const auto expected = cuda_rows("", base(GetParam(), 70, 2100), 0);
  FmhaSpec fewer = base(GetParam(), 70, 2099);
  for (const std::string& kernel : cuda_kernels(TESSERA_OP_FMHA, true)) {
    EXPECT_FALSE(cuda_rows(kernel, fewer, 0) == expected) << kernel;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaInvariance, testing::Values(TESSERA_F16, TESSERA_BF16),
                         [](const auto& param) { return param.param == TESSERA_F16 ? "f16" : "bf16"; });

}  // namespace
}  // namespace tessera::test
