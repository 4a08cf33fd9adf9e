// Decode in a CUDA graph and what its workspace is: lengths that the graph was not captured with and that make other
// chunks exist, no allocation and no wait in the call, scratch of the size that was promised and of any content.
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "contract/plan.h"
#include "cuda/decode.h"
#include "cuda/graph.h"

namespace tessera::test {
namespace {

class CudaDecodeGraph : public CudaTest, public testing::WithParamInterface<tessera_dtype> {};

void set(const int32_t* array, const std::vector<int32_t>& values) {
  ASSERT_EQ(
      cudaMemcpy(const_cast<int32_t*>(array), values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
      cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}
void set_lengths(const DeviceProblem& device, const std::vector<int32_t>& lengths) {
  set(device.params.segments[0].seqlens_k, lengths);
}

// Sequences with room for `bound` keys, all of them there, so that any lengths up to it may be put in.
FmhaSpec roomy(tessera_dtype dtype, int64_t sequences, int64_t tokens, int64_t bound, bool pages) {
  FmhaSpec spec = decode_spec(dtype, tokens, bound);
  spec.q_lengths.assign(static_cast<size_t>(sequences), tokens);
  spec.segments[0].lengths.assign(static_cast<size_t>(sequences), bound);
  if (pages) {
    spec.segments[0].layout = KvLayout::kPaged;
    spec.segments[0].page_size = 16;
  }
  return spec;
}

// Replays against calls and against the kernel that is decode's twin; put(device, i) sets the lengths of the i-th one.
template <class Put>
void expect_same_replays(const FmhaSpec& spec, size_t replays, const Put& put) {
  SCOPED_TRACE(to_text(spec));
  const FmhaProblem problem(spec);
  DeviceProblem device(problem, {.keep_lengths = true});
  DeviceProblem twin(problem, {.keep_lengths = true});
  twin.params.force_kernel = "sm80_fmha";
  ASSERT_EQ(twin.make_workspace(), "");
  device.params.force_kernel = kDecode;
  ASSERT_EQ(device.make_workspace(), "");
  const Stream stream;
  put(device, 0);
  const Graph graph(device, stream.get());
  graph.expect_kernels_only();
  for (size_t i = 0; i < replays; ++i) {
    put(device, i);
    put(twin, i);
    device.reset_outputs();
    device.fill_workspace(0xff);
    graph.replay(stream.get());
    const FmhaOutputs replayed = device.outputs();
    device.reset_outputs();
    ASSERT_EQ(device.enqueue(stream.get(), nullptr), TESSERA_OK);
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    EXPECT_EQ(first_difference(problem, device.outputs(), replayed), "") << "replay and call, " << i;
    twin.reset_outputs();
    ASSERT_EQ(twin.enqueue(stream.get(), nullptr), TESSERA_OK);
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    EXPECT_EQ(first_difference(problem, twin.outputs(), replayed), "") << "replay and sm80, " << i;
  }
}

void expect_replays(const FmhaSpec& spec, const std::vector<std::vector<int32_t>>& lengths) {
  expect_same_replays(spec, lengths.size(),
                      [&](const DeviceProblem& device, size_t i) { set_lengths(device, lengths[i]); });
}

TEST_P(CudaDecodeGraph, ReplaysWithLengthsThatMakeOtherChunksExist) {
  for (const bool pages : {false, true}) {
    // A cluster per chunk, then blocks.
    expect_replays(roomy(GetParam(), 1, 1, 7000, pages), {{1}, {7000}, {0}, {2048}, {2049}, {4096}, {5000}, {129}});
    expect_replays(roomy(GetParam(), 6, 1, 7000, pages), {{7000, 7000, 7000, 7000, 7000, 7000},
                                                          {0, 0, 0, 0, 0, 0},
                                                          {1, 2048, 2049, 4096, 4097, 6999},
                                                          {7000, 0, 0, 0, 0, 1},
                                                          {128, 127, 129, 255, 256, 257}});
    std::vector<int32_t> many(40);
    for (size_t b = 0; b < many.size(); ++b) many[b] = static_cast<int32_t>(b * 61 % 2500);
    expect_replays(roomy(GetParam(), 40, 2, 2500, pages),
                   {std::vector<int32_t>(40, 2), many, std::vector<int32_t>(40, 2500)});
  }
}

// A window over the keys and what four of them each were compressed to, whose lengths and positions follow the context.
TEST_P(CudaDecodeGraph, ReplaysWithOtherLengthsOfSeveralSegments) {
  const std::vector<std::vector<int32_t>> contexts = {{1, 9000, 0},       {9000, 9000, 9000}, {0, 0, 0},
                                                      {8191, 8192, 8193}, {3, 4, 5},          {2048, 130, 8200}};
  for (const bool pages : {false, true}) {
    FmhaSpec spec = roomy(GetParam(), 3, 1, 9000, pages);
    spec.segments[0].window_left = 127;
    SegmentSpec compressed = spec.segments[0];
    compressed.lengths.assign(3, 9000 / 4);
    compressed.causal = 0;
    compressed.window_left = -1;
    compressed.compress_ratio = 4;
    compressed.q_positions.assign(3, 0);
    spec.segments.push_back(compressed);
    expect_same_replays(spec, contexts.size(), [&](const DeviceProblem& device, size_t i) {
      std::vector<int32_t> kept = contexts[i];
      std::vector<int32_t> positions = contexts[i];
      for (int32_t& n : kept) n /= 4;
      for (int32_t& n : positions) n -= 1;
      set_lengths(device, contexts[i]);
      set(device.params.segments[1].seqlens_k, kept);
      set(device.params.segments[1].q_positions, positions);
    });
  }
}

TEST_P(CudaDecodeGraph, ReplaysAcrossSuperchunks) {
  FmhaSpec spec = roomy(GetParam(), 1, 1, 70000, false);
  spec.heads_kv = 1;
  spec.heads_q = 2;
  expect_replays(spec, {{100}, {70000}, {32768}, {32769}, {65536}, {3}});
}

// A kernel that waits keeps the stream busy; the call comes back all the same.
TEST_P(CudaDecodeGraph, TheCallDoesNotWaitForTheStream) {
  const FmhaProblem problem(roomy(GetParam(), 8, 1, 2500, false));
  DeviceProblem device(problem);
  FmhaOutputs out;
  ASSERT_EQ(run_on(device, kDecode, &out), "");
  device.reset_outputs();
  const Stream stream;
  struct Gate {
    std::atomic<bool> open{false};
  } gate;
  const auto wait = [](void* data) {
    while (!static_cast<Gate*>(data)->open.load()) std::this_thread::yield();
  };
  ASSERT_EQ(cudaLaunchHostFunc(stream.get(), wait, &gate), cudaSuccess);
  ASSERT_EQ(device.enqueue(stream.get(), nullptr), TESSERA_OK);  // would hang here
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
  gate.open = true;
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(first_difference(problem, out, device.outputs()), "");
}

// ---- workspace

class CudaDecodeWorkspace : public CudaDecodeGraph {};

TEST_P(CudaDecodeWorkspace, MayHoldAnythingAndEveryRowIsWritten) {
  for (const auto& [sequences, tokens, bound] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 5000}, {1, 4, 2048}, {5, 1, 6000}, {40, 2, 4100}}) {
    for (const bool states : {false, true}) {
      FmhaSpec spec = roomy(GetParam(), sequences, tokens, bound, false);
      spec.row_padding = 8;  // guards between the rows
      spec.unnormalized = states;
      spec.o_dtype = states ? TESSERA_F32 : spec.dtype;
      for (size_t b = 0; b < spec.q_lengths.size(); ++b) {
        spec.segments[0].lengths[b] = b % 5 == 3 ? 0 : bound - static_cast<int64_t>(b) * 37 % bound;
      }
      SCOPED_TRACE(to_text(spec));
      const FmhaProblem problem(spec);
      DeviceProblem device(problem, {.keep_lengths = true});
      FmhaOutputs expected;
      ASSERT_EQ(run_on(device, "sm80_fmha", &expected), "");  // guards included: they are poison in both
      FmhaOutputs out;
      ASSERT_EQ(run_on(device, kDecode, &out), "");
      EXPECT_EQ(first_difference(problem, expected, out), "");
      for (const int byte : {0x00, 0x7f, 0x80, 0xfe, 0xff}) {
        device.fill_workspace(byte);
        for (int call = 0; call < 2; ++call) {  // the second one over what the first one left
          device.reset_outputs();
          const Stream stream;
          ASSERT_EQ(device.enqueue(stream.get(), nullptr), TESSERA_OK);
          ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
          EXPECT_EQ(first_difference(problem, expected, device.outputs()), "") << byte << ", call " << call;
        }
      }
      EXPECT_EQ(device.damage(), "");
    }
  }
}

TEST_P(CudaDecodeWorkspace, TooLittleOrMisalignedIsRefusedAndNothingWritten) {
  const FmhaProblem problem(roomy(GetParam(), 3, 1, 5000, false));
  DeviceProblem device(problem);
  device.params.force_kernel = kDecode;
  size_t bytes = 0;
  ASSERT_EQ(tessera_fmha_workspace_size(&device.params, 1, &bytes, nullptr), TESSERA_OK);
  ASSERT_GT(bytes, 0U);
  char* memory = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), bytes + 64), cudaSuccess);
  const Stream stream;
  const tessera_stream where{nullptr, stream.get()};
  tessera_error error{};
  const auto run = [&](void* workspace, size_t size) {
    return tessera_fmha_run(&device.params, workspace, size, &where, &error);
  };
  EXPECT_EQ(run(memory, bytes - 1), TESSERA_WORKSPACE_TOO_SMALL);
  EXPECT_NE(std::string(error.text).find(std::to_string(bytes)), std::string::npos) << error.text;
  EXPECT_EQ(run(memory, 0), TESSERA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(run(nullptr, bytes), TESSERA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(run(memory + 32, bytes), TESSERA_WORKSPACE_TOO_SMALL);
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(first_difference(problem, problem.make_outputs(), device.outputs()), "");
  EXPECT_EQ(run(memory, bytes), TESSERA_OK) << error.text;
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_NE(first_difference(problem, problem.make_outputs(), device.outputs()), "");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

// The formula in section 6 of the kernel's README: per segment a state of a tile of rows per chunk, and counters.
int64_t most_scratch_bytes(const tessera_fmha_params& p) {
  const int64_t rows_of_head = p.seqlen_q * (p.num_heads_q / p.num_heads_kv);
  const int64_t tile = rows_of_head <= 8 ? 8 : 16;
  const int64_t rows = p.batch * p.num_heads_kv * ((rows_of_head + tile - 1) / tile * tile);
  int64_t bytes = 0;
  for (int32_t i = 0; i < p.num_segments; ++i) {
    const tessera_kv_segment& s = p.segments[i];
    int64_t chunks = std::max<int64_t>(1, (s.seqlen_k + kChunkKeys - 1) / kChunkKeys);
    if (s.window_left >= 0) chunks = std::min(chunks, (s.window_left + p.seqlen_q + kChunkKeys - 2) / kChunkKeys + 1);
    bytes += rows * (chunks * p.head_dim_v * 4 * 9 / 8 + 16) + 64;
  }
  return bytes;
}

TEST_P(CudaDecodeWorkspace, IsBoundedByTheFormula) {
  const FmhaProblem problem(decode_spec(GetParam(), 1, 64));
  const DeviceProblem device(problem);
  for (const int64_t batch : {1, 3, 64, 256}) {
    for (const int64_t keys : {0, 1, 2048, 2049, 32768, 1000000}) {
      for (const int64_t tokens : {1, 2, 7, 16}) {
        for (const int32_t group : {1, 4, 8, 64}) {
          for (const int64_t window : {-1, 127, 4000}) {
            for (const int32_t dim : {64, 128, 256}) {
              tessera_fmha_params p = device.params;
              p.force_kernel = kDecode;
              p.batch = batch;
              p.seqlen_q = tokens;
              p.num_heads_q = group * p.num_heads_kv;
              p.head_dim_qk = p.head_dim_v = dim;
              p.q = p.o = {p.q.data, tokens * p.num_heads_q * dim, p.num_heads_q * dim, dim, 1};
              p.lse_natural_no_sink = {};
              tessera_kv_segment& s = p.segments[0];
              s.k = s.v = {s.k.data, keys * p.num_heads_kv * dim, p.num_heads_kv * dim, dim, 1};
              s.seqlen_k = keys;
              s.window_left = window;
              p.segments[1] = s;
              p.segments[1].window_left = -1;
              for (p.num_segments = 1; p.num_segments <= 2; ++p.num_segments) {
                size_t bytes = 0;
                tessera_error error{};
                ASSERT_EQ(tessera_fmha_workspace_size(&p, 1, &bytes, &error), TESSERA_OK) << error.text;
                EXPECT_LE(static_cast<int64_t>(bytes), most_scratch_bytes(p))
                    << batch << " x " << keys << ", " << tokens << " tokens, group " << group << ", window " << window
                    << ", head dim " << dim << ", " << p.num_segments << " segments";
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeGraph, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeWorkspace, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);

}  // namespace
}  // namespace tessera::test
