// A decoded row keeps its bytes in any company: alone, in batches that other decode kernels work on, among ragged
// sequences, in another order of the batch, on some of the multiprocessors.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/decode.h"

namespace tessera::test {
namespace {

class CudaDecodeBatch : public CudaTest, public testing::WithParamInterface<tessera_dtype> {};

// `count` sequences of ragged lengths, every one with the number of its content.
FmhaSpec ragged(FmhaSpec spec, int64_t count, int64_t shortest, int64_t longest, uint64_t seed) {
  std::mt19937_64 random(seed);
  spec.q_lengths.assign(static_cast<size_t>(count), spec.q_lengths[0]);
  spec.segments[0].lengths.clear();
  spec.ids.clear();
  for (int64_t b = 0; b < count; ++b) {
    const auto span = static_cast<uint64_t>(longest - shortest + 1);
    spec.segments[0].lengths.push_back(shortest + static_cast<int64_t>(random() % span));
    spec.ids.push_back(static_cast<uint64_t>(b));
  }
  return spec;
}

// Runs the calls one after the other over poisoned outputs; what all of them wrote together.
FmhaOutputs run_each(const DeviceProblem& device, std::vector<tessera_fmha_params> calls) {
  size_t most = 0;
  for (tessera_fmha_params& call : calls) {
    call.force_kernel = kDecode;
    size_t bytes = 0;
    tessera_error error{};
    EXPECT_EQ(tessera_fmha_workspace_size(&call, 1, &bytes, &error), TESSERA_OK) << error.text;
    most = std::max(most, bytes);
  }
  DeviceArrays arrays;
  void* const workspace = arrays.place(nullptr, most, true);
  device.reset_outputs();
  const Stream stream;
  const tessera_stream where{nullptr, stream.get()};
  for (const tessera_fmha_params& call : calls) {
    tessera_error error{};
    EXPECT_EQ(tessera_fmha_run(&call, workspace, most, &where, &error), TESSERA_OK) << error.text;
  }
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(arrays.damage(), "");
  return device.outputs();
}

// Every sequence of the batch in a call of its own: with the batch's bound and array of lengths, and with its exact
// length.
void expect_rows_alone(const FmhaSpec& spec) {
  SCOPED_TRACE(to_text(spec));
  const FmhaProblem problem(spec);
  DeviceProblem device(problem);
  FmhaOutputs together;
  ASSERT_EQ(run_on(device, kDecode, &together), "");
  std::vector<tessera_fmha_params> bounded;
  std::vector<tessera_fmha_params> exact;
  for (size_t b = 0; b < spec.q_lengths.size(); ++b) {
    bounded.push_back(alone(device.params, static_cast<int64_t>(b)));
    exact.push_back(bounded.back());
    exact.back().segments[0].seqlen_k = spec.segments[0].lengths[b];
    exact.back().segments[0].seqlens_k = nullptr;
  }
  EXPECT_EQ(first_difference(problem, together, run_each(device, bounded)), "") << "alone, by the batch's bound";
  EXPECT_EQ(first_difference(problem, together, run_each(device, exact)), "") << "alone, by its exact length";
}

TEST_P(CudaDecodeBatch, A6_A22_A24_ManyRaggedRowsWithNearlyTiedLogitsEachAlone) {
  FmhaSpec spec = decode_spec(GetParam(), 1, 1);
  spec.heads_kv = 1;
  spec.heads_q = 4;
  spec.q_amplitude = 0.01F;
  expect_rows_alone(ragged(spec, 160, 1, 7000, 11));
  spec.segments[0].layout = KvLayout::kPaged;
  spec.segments[0].page_size = 16;
  expect_rows_alone(ragged(spec, 120, 1, 5000, 12));
}

TEST_P(CudaDecodeBatch, RaggedRowsOfOtherShapesEachAlone) {
  for (const int32_t dim : {64, 256}) {
    FmhaSpec spec = decode_spec(GetParam(), dim == 64 ? 3 : 1, 1, dim == 64 ? 7 : 2);
    spec.head_dim_qk = spec.head_dim_v = dim;
    spec.sinks.assign(static_cast<size_t>(spec.heads_q), 0.5F);
    spec.segments[0].window_left = dim == 64 ? 2500 : -1;
    expect_rows_alone(ragged(spec, 40, 3, 4500, 13));
  }
}

// As batches grow, a cluster, two blocks, a block of a whole multiprocessor and one of half of it take a chunk.
TEST_P(CudaDecodeBatch, BatchesThatOtherKernelsWorkOn) {
  for (const auto& [keys, most] : {std::pair<int64_t, int64_t>{200, 300}, {2048, 150}, {5000, 60}}) {
    FmhaSpec spec = decode_spec(GetParam(), 1, keys);
    spec.heads_kv = 1;
    spec.heads_q = 4;
    spec.q_lengths.assign(static_cast<size_t>(most), 1);
    spec.segments[0].lengths.assign(static_cast<size_t>(most), keys);
    const FmhaProblem problem(spec);
    DeviceProblem device(problem);
    FmhaOutputs expected;
    ASSERT_EQ(run_on(device, kDecode, &expected), "");
    for (const int64_t size : {1, 2, 5, 10, 11, 30, 31, 44, 45, 132, 133}) {
      if (size >= most) continue;
      std::vector<tessera_fmha_params> parts;  // of so many sequences, and a last one of the rest
      for (int64_t first = 0; first < most; first += size) {
        parts.push_back(alone(device.params, first));
        parts.back().batch = std::min(size, most - first);
      }
      EXPECT_EQ(first_difference(problem, expected, run_each(device, parts)), "") << size << " x " << keys;
    }
  }
}

// The bound of the lengths decides about kernels and scratch, the lengths about the bytes.
TEST_P(CudaDecodeBatch, TheBoundOfTheLengthsMovesNoBit) {
  for (const int64_t keys : {1, 300, 2049, 4500}) {
    const FmhaSpec spec = decode_spec(GetParam(), 2, keys + 1);
    const std::vector<RowBytes> expected = cuda_rows(kDecode, spec, 0);
    for (const int64_t bound : {keys + 2, keys + 2048, int64_t{40000}}) {
      FmhaSpec wide = spec;
      wide.segments[0].bound = bound;
      EXPECT_TRUE(cuda_rows(kDecode, wide, 0) == expected) << keys << " keys, bound " << bound;
    }
  }
}

// ---- fewer multiprocessors: a stream that owns some of them

// A driver function, by its name and the version of CUDA that it came with.
template <class Function>
bool find_function(const char* name, unsigned version, Function* function) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  void* pointer = nullptr;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &pointer, version, cudaEnableDefault, &found);
  *function = reinterpret_cast<Function>(pointer);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess;
}

// A stream of `wanted` multiprocessors or a few more.
class PartOfDevice {
 public:
  // What is missing, or "".
  std::string open(unsigned wanted) {
    PFN_cuDeviceGetDevResource_v12040 get_resource = nullptr;
    PFN_cuDevSmResourceSplitByCount_v12040 split = nullptr;
    PFN_cuDevResourceGenerateDesc_v12040 describe = nullptr;
    PFN_cuGreenCtxCreate_v12040 create = nullptr;
    PFN_cuGreenCtxStreamCreate_v12050 create_stream = nullptr;
    if (!find_function("cuDeviceGetDevResource", 12040, &get_resource) ||
        !find_function("cuDevSmResourceSplitByCount", 12040, &split) ||
        !find_function("cuDevResourceGenerateDesc", 12040, &describe) ||
        !find_function("cuGreenCtxCreate", 12040, &create) ||
        !find_function("cuGreenCtxStreamCreate", 12050, &create_stream) ||
        !find_function("cuGreenCtxDestroy", 12040, &destroy_)) {
      return "the driver is older than CUDA 12.5";
    }
    CUdevResource all{}, part{}, rest{};
    CUdevResourceDesc description = nullptr;
    unsigned groups = 1;
    if (get_resource(0, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        split(&part, &groups, &all, &rest, 0, wanted) != CUDA_SUCCESS || groups != 1 ||
        describe(&description, &part, 1) != CUDA_SUCCESS ||
        create(&context_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS) {
      return "the driver does not divide this device";
    }
    CUstream stream = nullptr;
    if (create_stream(&stream, context_, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) return "no stream";
    stream_ = stream;
    multiprocessors_ = part.sm.smCount;
    return "";
  }
  ~PartOfDevice() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (context_ != nullptr) destroy_(context_);
  }
  cudaStream_t stream() const { return stream_; }
  unsigned multiprocessors() const { return multiprocessors_; }

 private:
  CUgreenCtx context_ = nullptr;
  PFN_cuGreenCtxDestroy_v12040 destroy_ = nullptr;
  cudaStream_t stream_ = nullptr;
  unsigned multiprocessors_ = 0;
};

TEST_P(CudaDecodeBatch, FewerMultiprocessorsMoveNoBit) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);  // the device's context
  for (const unsigned wanted : {16U, 64U}) {
    PartOfDevice part;
    if (const std::string missing = part.open(wanted); !missing.empty()) GTEST_SKIP() << missing;
    ASSERT_LT(part.multiprocessors(), 132U);
    for (const int64_t batch : {1, 8, 60}) {
      for (const int32_t dim : {64, 128}) {
        FmhaSpec spec = decode_spec(GetParam(), 1, 1);
        spec.head_dim_qk = spec.head_dim_v = dim;
        spec.heads_kv = 1;
        spec.heads_q = 4;
        const FmhaProblem problem(ragged(spec, batch, 1500, 4500, 5));
        DeviceProblem device(problem);
        FmhaOutputs expected;
        ASSERT_EQ(run_on(device, kDecode, &expected), "");
        device.params.force_kernel = kDecode;
        device.reset_outputs();
        device.fill_workspace(0xff);
        tessera_error error{};
        ASSERT_EQ(device.enqueue(part.stream(), &error), TESSERA_OK) << error.text;
        ASSERT_EQ(cudaStreamSynchronize(part.stream()), cudaSuccess);
        EXPECT_EQ(first_difference(problem, expected, device.outputs()), "")
            << part.multiprocessors() << " multiprocessors, batch " << batch << ", head dim " << dim;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeBatch, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);

}  // namespace
}  // namespace tessera::test
