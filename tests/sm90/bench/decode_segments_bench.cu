// Times one launch of the decode kernels over a list of segments beside the same work in passes merged outside, the
// kernel that took such lists before, and the plain decode kernel over as many keys. All in one process.
//
// Segments: a window of 128 over the keys of a context, and what `ratio` of its keys each were compressed to. bf16,
// head dim 128, one query token. Each runner is a CUDA graph, replayed between two events after 256 MiB of other memory
// were read; runners take turns, medians are printed in microseconds. Everything contains what an empty graph takes.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace {

constexpr int64_t kDim = 128;
constexpr int64_t kWindow = 128;
constexpr int32_t kGathered = 2048;
constexpr size_t kFlushBytes = size_t{256} << 20;
constexpr int kRepeats = 15;

void check(bool ok, const char* what, const char* text) {
  if (!ok) {
    std::fprintf(stderr, "%s: %s\n", what, text);
    std::exit(1);
  }
}
void check(cudaError_t error, const char* what) {
  check(error == cudaSuccess, what, cudaGetErrorString(error));
}

// bf16 numbers in (-2, 2) that are a hash of their place.
__global__ void fill(uint16_t* to, size_t count, uint32_t seed) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761U ^ seed;
    x = (x ^ x >> 15) * 2246822519U;
    x ^= x >> 13;
    to[i] = static_cast<uint16_t>((x & 0x8000U) | 0x3f00U | (x & 0xffU));
  }
}

// What an L2 forgets everything by.
__global__ void read_all(const uint4* from, size_t count, uint32_t* to) {
  uint32_t sum = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 x = from[i];
    sum += x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x12345678U) {
    *to = sum;
  }
}

// Device memory, freed at the end of the process.
template <class T>
T* device(size_t count) {
  T* data = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&data), std::max<size_t>(count, 16) * sizeof(T)), "cudaMalloc");
  return data;
}
uint16_t* random_rows(size_t count, uint32_t seed) {
  auto* const data = device<uint16_t>(count);
  fill<<<1024, 256>>>(data, count, seed);
  return data;
}

struct Shape {
  int64_t batch, context, heads_q, heads_kv;
  int32_t ratio;
};

tessera_kv_segment segment_of(const Shape& s, int64_t keys, uint32_t seed) {
  tessera_kv_segment segment{};
  const int64_t row = s.heads_kv * kDim;
  const auto count = static_cast<size_t>(s.batch * keys * row);
  segment.k = {random_rows(count, seed), keys * row, row, kDim, 1};
  segment.v = {random_rows(count, seed + 1), keys * row, row, kDim, 1};
  segment.seqlen_k = keys;
  segment.window_left = segment.window_right = -1;
  segment.mask.num_keys = -1;
  return segment;
}

// A runner: calls that are captured, and their output.
struct Runner {
  std::string name;
  std::vector<std::function<void(cudaStream_t)>> calls = {};
  uint16_t* o = nullptr;
  cudaGraphExec_t graph = nullptr;
  std::vector<float> times = {};
};

class Bench {
 public:
  explicit Bench(const Shape& shape) : shape_(shape) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    other_ = device<uint4>(kFlushBytes / sizeof(uint4));
    check(cudaMemset(other_, 0, kFlushBytes), "cudaMemset");
    sink_ = device<uint32_t>(1);
    call_.struct_size = sizeof(call_);
    call_.device = TESSERA_DEVICE_CUDA;
    call_.dtype = call_.o_dtype = TESSERA_BF16;
    call_.head_dim_qk = call_.head_dim_v = kDim;
    call_.num_heads_q = static_cast<int32_t>(shape.heads_q);
    call_.num_heads_kv = static_cast<int32_t>(shape.heads_kv);
    call_.batch = shape.batch;
    call_.seqlen_q = 1;
    const int64_t row = shape.heads_q * kDim;
    call_.q = {random_rows(static_cast<size_t>(shape.batch * row), 7), row, row, kDim, 1};
    call_.softmax_scale = 0.08838834764F;
    call_.num_segments = 2;
    call_.segments[0] = segment_of(shape, shape.context, 11);
    call_.segments[0].causal = 1;
    call_.segments[0].window_left = kWindow - 1;
    call_.segments[1] = segment_of(shape, shape.context / shape.ratio, 21);
    call_.segments[1].compress_ratio = shape.ratio;
    const std::vector<int32_t> positions(static_cast<size_t>(shape.batch), static_cast<int32_t>(shape.context - 1));
    auto* const at = device<int32_t>(positions.size());
    check(cudaMemcpy(at, positions.data(), positions.size() * sizeof(int32_t), cudaMemcpyHostToDevice), "cudaMemcpy");
    call_.segments[1].q_positions = at;
  }

  void run() {
    add_call("one launch", "sm90_fmha_decode", call_);
    add_passes();
    add_call("sm80", "sm80_fmha", call_);
    tessera_fmha_params plain = call_;
    plain.num_segments = 1;
    plain.segments[0] = segment_of(shape_, kWindow + shape_.context / shape_.ratio, 31);
    add_call("plain decode, as many keys", "sm90_fmha_decode", plain);
    add_call("plain, the registry's", nullptr, plain);
    add_call("gathered 2048", "sm90_fmha_decode", gathered());
    plain.segments[0].seqlen_k = kGathered;
    add_call("plain decode, 2048 keys", "sm90_fmha_decode", plain);
    runners_.push_back({.name = "nothing"});
    for (Runner& runner : runners_) {
      capture(&runner);
    }
    const auto bytes = static_cast<size_t>(shape_.batch * shape_.heads_q * kDim) * sizeof(uint16_t);
    std::vector<char> outputs[3] = {std::vector<char>(bytes), std::vector<char>(bytes), std::vector<char>(bytes)};
    for (size_t i = 0; i < 3; ++i) {
      check(cudaMemcpy(outputs[i].data(), runners_[i].o, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (Runner& runner : runners_) {
        time(&runner);
      }
    }
    std::printf("%lld x %lld, ratio %d, heads %lld/%lld: launch and passes %s, launch and sm80 %s;",
                static_cast<long long>(shape_.batch), static_cast<long long>(shape_.context), shape_.ratio,
                static_cast<long long>(shape_.heads_q), static_cast<long long>(shape_.heads_kv),
                outputs[0] == outputs[1] ? "equal" : "DIFFER", outputs[0] == outputs[2] ? "equal" : "DIFFER");
    for (Runner& runner : runners_) {
      std::ranges::sort(runner.times);
      std::printf(" %s %.1f;", runner.name.c_str(), static_cast<double>(runner.times[kRepeats / 2]));
    }
    std::printf("\n");
  }

 private:
  // A call with a workspace of its own.
  std::function<void(cudaStream_t)> enqueue(const tessera_fmha_params& call) {
    size_t bytes = 0;
    tessera_error error{};
    check(tessera_fmha_workspace_size(&call, 1, &bytes, &error) == TESSERA_OK, "workspace", error.text);
    auto* const workspace = device<char>(bytes);
    return [call, workspace, bytes](cudaStream_t stream) {
      const tessera_stream where{nullptr, stream};
      tessera_error refusal{};
      check(tessera_fmha_run(&call, workspace, bytes, &where, &refusal) == TESSERA_OK, "run", refusal.text);
    };
  }
  tessera_tensor output(uint16_t** to) {
    const int64_t row = shape_.heads_q * kDim;
    *to = device<uint16_t>(static_cast<size_t>(shape_.batch * row));
    return {*to, row, row, kDim, 1};
  }

  void add_call(const char* name, const char* kernel, tessera_fmha_params call) {
    Runner runner{.name = name};
    call.o = output(&runner.o);
    call.force_kernel = kernel;
    runner.calls.push_back(enqueue(call));
    runners_.push_back(runner);
  }

  // Keys anywhere in the context.
  tessera_fmha_params gathered() const {
    std::vector<int32_t> indices(static_cast<size_t>(shape_.batch * kGathered));
    uint32_t x = 1;
    for (int32_t& index : indices) {
      x = x * 1664525U + 1013904223U;
      index = static_cast<int32_t>((x >> 8) % static_cast<uint32_t>(shape_.context));
    }
    auto* const at = device<int32_t>(indices.size());
    check(cudaMemcpy(at, indices.data(), indices.size() * sizeof(int32_t), cudaMemcpyHostToDevice), "cudaMemcpy");
    tessera_fmha_params call = call_;
    call.num_segments = 1;
    call.segments[0].window_left = -1;
    call.segments[0].indices = at;
    call.segments[0].indices_stride = call.segments[0].topk = kGathered;
    return call;
  }

  void add_passes() {
    Runner runner{.name = "two passes and a merge"};
    const int64_t rows = shape_.batch;
    const int64_t heads = shape_.heads_q;
    auto* const o = device<float>(static_cast<size_t>(2 * rows * heads * kDim));
    auto* const max = device<float>(static_cast<size_t>(2 * rows * heads));
    auto* const sum = device<float>(static_cast<size_t>(2 * rows * heads));
    for (int64_t i = 0; i < 2; ++i) {
      tessera_fmha_params call = call_;
      call.num_segments = 1;
      call.segments[0] = call_.segments[i];
      call.force_kernel = "sm90_fmha_decode";
      call.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
      call.o_dtype = TESSERA_F32;
      call.o = {o + i * rows * heads * kDim, heads * kDim, heads * kDim, kDim, 1};
      call.row_max_log2 = {max + i * rows * heads, heads, heads, 1};
      call.row_sum = {sum + i * rows * heads, heads, heads, 1};
      runner.calls.push_back(enqueue(call));
    }
    tessera_merge_params merge{};
    merge.struct_size = sizeof(merge);
    merge.device = TESSERA_DEVICE_CUDA;
    merge.dtype = merge.o_dtype = TESSERA_BF16;
    merge.head_dim_qk = merge.head_dim_v = kDim;
    merge.num_heads_q = static_cast<int32_t>(heads);
    merge.num_rows = rows;
    merge.num_states = 2;
    merge.o_states = {o, rows * heads * kDim, heads * kDim, kDim, 1};
    merge.row_max_log2_states = {max, rows * heads, heads, 1};
    merge.row_sum_states = {sum, rows * heads, heads, 1};
    merge.o = output(&runner.o);
    merge.o.stride_batch = 0;
    runner.calls.push_back([merge](cudaStream_t stream) {
      const tessera_stream where{nullptr, stream};
      tessera_error refusal{};
      check(tessera_fmha_merge(&merge, &where, &refusal) == TESSERA_OK, "merge", refusal.text);
    });
    runners_.push_back(runner);
  }

  void capture(Runner* runner) {
    cudaGraph_t graph = nullptr;
    check(cudaDeviceSynchronize(), "inputs");
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    for (const auto& call : runner->calls) {
      call(stream_);
    }
    if (runner->calls.empty()) {
      read_all<<<1, 32, 0, stream_>>>(other_, 0, sink_);
    }
    check(cudaStreamEndCapture(stream_, &graph), "capture");
    check(cudaGraphInstantiate(&runner->graph, graph, 0), "instantiate");
    for (int i = 0; i < 3; ++i) {
      check(cudaGraphLaunch(runner->graph, stream_), "launch");
    }
    check(cudaStreamSynchronize(stream_), runner->name.c_str());
  }

  void time(Runner* runner) {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    read_all<<<528, 512, 0, stream_>>>(other_, kFlushBytes / sizeof(uint4), sink_);
    check(cudaEventRecord(begin, stream_), "record");
    check(cudaGraphLaunch(runner->graph, stream_), "launch");
    check(cudaEventRecord(end, stream_), "record");
    check(cudaStreamSynchronize(stream_), runner->name.c_str());
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "elapsed");
    runner->times.push_back(milliseconds * 1000.0F);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }

  Shape shape_;
  cudaStream_t stream_ = nullptr;
  uint4* other_ = nullptr;
  uint32_t* sink_ = nullptr;
  tessera_fmha_params call_{};
  std::vector<Runner> runners_;
};

}  // namespace

int main() {
  for (const Shape& shape : {Shape{1, 32768, 64, 1, 4},
                             {64, 32768, 64, 1, 4},
                             {1, 32768, 32, 8, 4},
                             {64, 32768, 32, 8, 4},
                             {64, 32768, 64, 1, 128},
                             {1, 32768, 128, 1, 4},
                             {64, 32768, 128, 1, 4}}) {
    Bench(shape).run();
  }
  return 0;
}
