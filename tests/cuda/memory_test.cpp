// What a CUDA call may rely on and touch: poison outside the rows, any bytes in the workspace, empty problems, very
// large strides and batches, capture into a graph.
#include <algorithm>
#include <cstring>
#include <optional>
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
  spec.heads_q = 2;
  spec.heads_kv = 1;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, q, k);
}

// Calls check(kernel, device problem with its workspace) for every kernel that takes the problem; at least one has to.
template <class Check>
void with_every_kernel(const FmhaProblem& problem, const Check& check) {
  int taken = 0;
  for (const std::string& kernel : cuda_kernels(TESSERA_OP_FMHA, true)) {
    DeviceProblem device(problem);
    device.params.force_kernel = kernel.c_str();
    if (!device.make_workspace().empty()) continue;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    SCOPED_TRACE(kernel);
    check(device);
    EXPECT_EQ(device.damage(), "");
    ++taken;
  }
  EXPECT_GT(taken, 0) << "no kernel takes this problem";
}

void run(const DeviceProblem& device) {
  const Stream stream;
  tessera_error error{};
  ASSERT_EQ(device.enqueue(stream.get(), &error), TESSERA_OK) << error.text;
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
}

using CudaPoison = CudaTest;

// A row that does not see a key does not know its bytes, even where its neighbours in the tile see it: NaN in K, and
// the largest numbers in V. (NaN in V is no such test: a key that some row sees has to be finite, and 0 times NaN is
// NaN.)
TEST_F(CudaPoison, ReachesOnlyTheRowsThatSeeIt) {
  for (const tessera_dtype dtype : {TESSERA_F16, TESSERA_BF16}) {
    for (const int64_t q : {2, 8, 90, 140}) {
      const FmhaProblem problem(base(dtype, q, 150));
      const FmhaOutputs expected = run_hopper_oracle(problem);
      const int64_t poisoned = 150 - q / 2;  // seen by the last rows only
      with_every_kernel(problem, [&](const DeviceProblem& device) {
        for (const bool in_values : {false, true}) {
          const tessera_tensor& t = in_values ? device.params.segments[0].v : device.params.segments[0].k;
          auto* row = static_cast<uint16_t*>(t.data) + poisoned * t.stride_token;
          const size_t bytes = static_cast<size_t>(t.stride_token) * sizeof(uint16_t);
          const uint16_t largest = dtype == TESSERA_F16 ? 0x7bff : 0x7f7f;
          const std::vector<uint16_t> poison(static_cast<size_t>(t.stride_token), in_values ? largest : 0xffff);
          std::vector<uint16_t> before(poison.size());
          ASSERT_EQ(cudaMemcpy(before.data(), row, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
          ASSERT_EQ(cudaMemcpy(row, poison.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          run(device);
          ASSERT_EQ(cudaMemcpy(row, before.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
          const FmhaOutputs out = device.outputs();
          for (int64_t i = 0; i < q; ++i) {
            for (int64_t h = 0; h < 2; ++h) {
              const bool same = problem.row(out, 0, i, h) == problem.row(expected, 0, i, h);
              EXPECT_EQ(same, 150 - q + i < poisoned) << "row " << i << (in_values ? " of V" : " of K");
            }
          }
        }
      });
    }
  }
}

// Table entries that the pool does not have are keys that are not there: as if custom bits hid them.
TEST_F(CudaPoison, PagesOutsideThePoolAreAbsentKeys) {
  constexpr int64_t kKeys = 896;
  for (const int32_t page_size : {16, 64, 256}) {
    FmhaSpec spec = base(TESSERA_BF16, 200, kKeys);
    spec.segments[0].layout = KvLayout::kPaged;
    spec.segments[0].page_size = page_size;
    const FmhaProblem problem(spec);
    std::vector<uint8_t> bits((kKeys + 7) / 8, 0xff);
    for (const int32_t page : {1, 3}) {
      std::fill_n(bits.begin() + page * page_size / 8, std::min<int64_t>(page_size, kKeys - page * page_size) / 8, 0);
    }
    uint8_t* mask = nullptr;
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&mask), bits.size()), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(mask, bits.data(), bits.size(), cudaMemcpyHostToDevice), cudaSuccess);
    std::optional<FmhaOutputs> hidden;  // the same keys behind custom bits, by the kernels that know them
    with_every_kernel(problem, [&](DeviceProblem& device) {
      device.params.segments[0].mask = {mask, 0, 0, 0, -1};
      if (!device.make_workspace().empty()) return;
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      run(device);
      if (!hidden.has_value()) hidden = device.outputs();
      EXPECT_EQ(first_difference(problem, *hidden, device.outputs()), "") << "page size " << page_size;
    });
    ASSERT_TRUE(hidden.has_value());
    with_every_kernel(problem, [&](DeviceProblem& device) {
      const tessera_kv_segment& s = device.params.segments[0];
      auto* const table = const_cast<int32_t*>(s.page_table);
      int32_t before[4];
      ASSERT_EQ(cudaMemcpy(before, table, sizeof(before), cudaMemcpyDeviceToHost), cudaSuccess);
      const int32_t after[4] = {before[0], -5, before[2], static_cast<int32_t>(s.num_pages)};
      ASSERT_EQ(cudaMemcpy(table, after, sizeof(after), cudaMemcpyHostToDevice), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      run(device);
      ASSERT_EQ(cudaMemcpy(table, before, sizeof(before), cudaMemcpyHostToDevice), cudaSuccess);
      EXPECT_EQ(first_difference(problem, *hidden, device.outputs()), "") << "page size " << page_size;
    });
    EXPECT_EQ(cudaFree(mask), cudaSuccess);
  }
}

using CudaWorkspace = CudaTest;

TEST_F(CudaWorkspace, MayHoldAnything) {
  for (const int64_t k : {300, 2500, 17000}) {
    FmhaSpec spec = base(TESSERA_BF16, 130, k);
    const FmhaProblem problem(spec);
    with_every_kernel(problem, [&](const DeviceProblem& device) {
      run(device);
      const FmhaOutputs expected = device.outputs();
      for (const int byte : {0x00, 0x01, 0x7f, 0xff}) {
        device.fill_workspace(byte);
        device.reset_outputs();
        run(device);
        EXPECT_EQ(first_difference(problem, expected, device.outputs()), "") << "filled with " << byte;
        device.reset_outputs();
        run(device);  // and what the call left behind
        EXPECT_EQ(first_difference(problem, expected, device.outputs()), "") << "second call after " << byte;
      }
    });
  }
}

using CudaEmpty = CudaTest;

TEST_F(CudaEmpty, NoKeysGiveZeroAndMinusInfinity) {
  for (const int causal : {0, 1}) {
    FmhaSpec spec = base(TESSERA_F16, 100, 0);
    spec.segments[0].causal = causal;
    const FmhaProblem problem(spec);
    const FmhaOutputs expected = run_hopper_oracle(problem);
    with_every_kernel(problem, [&](DeviceProblem& device) {
      run(device);
      EXPECT_EQ(first_difference(problem, expected, device.outputs()), "");
      device.reset_outputs();
      device.params.segments[0].k.data = device.params.segments[0].v.data = nullptr;
      run(device);
      EXPECT_EQ(first_difference(problem, expected, device.outputs()), "") << "K and V may be NULL then";
    });
  }
}

TEST_F(CudaEmpty, NoQueriesOrSequencesWriteNothing) {
  const FmhaProblem problem(base(TESSERA_F16, 40, 40));
  with_every_kernel(problem, [&](DeviceProblem& device) {
    const tessera_fmha_params all = device.params;
    device.params.seqlen_q = 0;
    run(device);
    device.params = all;
    device.params.batch = 0;
    run(device);
    EXPECT_EQ(first_difference(problem, problem.make_outputs(), device.outputs()), "");
  });
}

using CudaGraph = CudaTest;

TEST_F(CudaGraph, CaptureAndReplay) {
  for (const int64_t k : {200, 2500, 17000}) {
    const FmhaProblem problem(base(TESSERA_BF16, 70, k));
    with_every_kernel(problem, [&](const DeviceProblem& device) {
      run(device);
      const FmhaOutputs expected = device.outputs();
      device.reset_outputs();
      device.fill_workspace(0xff);
      const Stream stream;
      tessera_error error{};
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
      const tessera_status status = device.enqueue(stream.get(), &error);
      ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
      ASSERT_EQ(status, TESSERA_OK) << error.text;
      EXPECT_EQ(first_difference(problem, problem.make_outputs(), device.outputs()), "") << "capture runs nothing";
      ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
      for (int replay = 0; replay < 3; ++replay) {
        device.reset_outputs();
        device.fill_workspace(0x5a + replay);
        ASSERT_EQ(cudaGraphLaunch(executable, stream.get()), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
        EXPECT_EQ(first_difference(problem, expected, device.outputs()), "") << "replay " << replay;
      }
      EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    });
  }
}

// Two calls in flight at once, each with a workspace of its own.
TEST_F(CudaGraph, CallsOnTwoStreamsDoNotMeet) {
  const FmhaProblem problem(base(TESSERA_F16, 300, 18000));
  for (const std::string& kernel : cuda_kernels(TESSERA_OP_FMHA, true)) {
    DeviceProblem first(problem);
    DeviceProblem second(problem);
    first.params.force_kernel = second.params.force_kernel = kernel.c_str();
    if (!first.make_workspace().empty() || !second.make_workspace().empty()) continue;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const Stream one;
    const Stream other;
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(first.enqueue(one.get(), nullptr), TESSERA_OK);
      ASSERT_EQ(second.enqueue(other.get(), nullptr), TESSERA_OK);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(first_difference(problem, first.outputs(), second.outputs()), "") << kernel;
  }
}

// ---- very large: (batch, token, head, 128) with one stride chosen so that offsets pass 2^31 elements

struct Large {
  uint16_t* data = nullptr;
  tessera_tensor tensor{};

  ~Large() { cudaFree(data); }

  // Copies the rows of `from` to `to` as it describes itself; `forward`: from compact to large.
  static void copy_rows(const tessera_tensor& from, const tessera_tensor& to, int64_t batch, int64_t tokens,
                        int64_t heads) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          const auto at = [&](const tessera_tensor& x) {
            return static_cast<uint16_t*>(x.data) + b * x.stride_batch + t * x.stride_token + h * x.stride_head;
          };
          ASSERT_EQ(cudaMemcpyAsync(at(to), at(from), 128 * 2, cudaMemcpyDeviceToDevice, nullptr), cudaSuccess);
        }
      }
    }
  }
};

enum class Axis { kBatch, kToken, kHead };

// A tensor like `compact`, its `axis` stretched over more than 2^31 elements; false if there is no memory for it.
bool stretch(const tessera_tensor& compact, Axis axis, int64_t batch, int64_t tokens, int64_t heads, Large* large) {
  const auto apart = [](int64_t extent) { return ((int64_t{1} << 31) / (extent - 1) + 8) / 8 * 8; };
  tessera_tensor t = compact;
  int64_t elements = 0;
  if (axis == Axis::kBatch) {
    t.stride_batch = std::max(apart(batch), tokens * heads * 128);
    elements = t.stride_batch * batch;
  } else if (axis == Axis::kToken) {
    t.stride_token = apart(tokens);
    t.stride_head = 128;
    t.stride_batch = t.stride_token * tokens;
    elements = t.stride_batch * batch;
  } else {
    t.stride_head = apart(heads);
    t.stride_token = 128;
    t.stride_batch = t.stride_token * tokens;
    elements = t.stride_head * (heads - 1) + t.stride_batch * batch;
  }
  if (cudaMalloc(reinterpret_cast<void**>(&large->data), static_cast<size_t>(elements) * 2) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  EXPECT_EQ(cudaMemset(large->data, 0xff, static_cast<size_t>(elements) * 2), cudaSuccess);
  t.data = large->data;
  large->tensor = t;
  return true;
}

using CudaLarge = CudaTest;

TEST_F(CudaLarge, OffsetsBeyond2To31Elements) {
  FmhaSpec spec = base(TESSERA_BF16, 3, 40);
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.q_lengths = {3, 3};
  spec.segments[0].lengths = {40, 40};
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_hopper_oracle(problem);
  for (const Axis axis : {Axis::kBatch, Axis::kToken, Axis::kHead}) {
    with_every_kernel(problem, [&](DeviceProblem& device) {
      const tessera_fmha_params compact = device.params;
      tessera_kv_segment& s = device.params.segments[0];
      Large q, k, v, o;
      if (!stretch(compact.q, axis, 2, 3, 4, &q) || !stretch(compact.segments[0].k, axis, 2, 40, 2, &k) ||
          !stretch(compact.segments[0].v, axis, 2, 40, 2, &v) || !stretch(compact.o, axis, 2, 3, 4, &o)) {
        GTEST_SKIP() << "LITTLE MEMORY: offsets beyond 2^31 elements are not tested on this GPU";
      }
      Large::copy_rows(compact.q, q.tensor, 2, 3, 4);
      Large::copy_rows(compact.segments[0].k, k.tensor, 2, 40, 2);
      Large::copy_rows(compact.segments[0].v, v.tensor, 2, 40, 2);
      device.params.q = q.tensor;
      device.params.o = o.tensor;
      s.k = k.tensor;
      s.v = v.tensor;
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      run(device);
      Large::copy_rows(o.tensor, compact.o, 2, 3, 4);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(first_difference(problem, expected, device.outputs()), "") << "axis " << static_cast<int>(axis);
    });
  }
}

// More sequences than one dimension of a grid can number.
TEST_F(CudaLarge, SeventyThousandSequences) {
  FmhaSpec spec = base(TESSERA_F16, 1, 2);
  spec.heads_q = 1;
  spec.q_lengths.assign(70000, 1);
  spec.segments[0].lengths.assign(70000, 2);
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_hopper_oracle(problem);
  with_every_kernel(problem, [&](const DeviceProblem& device) {
    run(device);
    EXPECT_EQ(first_difference(problem, expected, device.outputs()), "");
  });
}

// The same in the packed layout, with empty sequences among them.
TEST_F(CudaLarge, SeventyThousandPackedSequences) {
  FmhaSpec spec = base(TESSERA_F16, 1, 2);
  spec.heads_q = 1;
  spec.packed_q = true;
  spec.segments[0].layout = KvLayout::kPacked;
  spec.q_lengths.clear();
  spec.segments[0].lengths.clear();
  for (int64_t b = 0; b < 70000; ++b) {
    spec.q_lengths.push_back(b % 3 == 1 ? 0 : 1);
    spec.segments[0].lengths.push_back(b % 5);
  }
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_hopper_oracle(problem);
  with_every_kernel(problem, [&](const DeviceProblem& device) {
    run(device);
    EXPECT_EQ(first_difference(problem, expected, device.outputs()), "");
  });
}

}  // namespace
}  // namespace tessera::test
