// CPU matrix products: decode (m = 1, weights streamed from beyond the L2 cache) and prefill (m = 512), per weight type
// and kernel, on one thread. Counters: bytes_per_second is packed weight bytes (decode), items_per_second is
// multiply-accumulates of the (m, n, k) product. README.md of the kernel reads them against the machine's limits.
#include <benchmark/benchmark.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Memory in huge pages where the system offers them, as the engine keeps its weights.
class Arena {
 public:
  explicit Arena(size_t bytes) : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
    data_ = static_cast<uint8_t*>(std::aligned_alloc(kHugePage, bytes_));
    if (data_ == nullptr) std::abort();
#if defined(__linux__)
    madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
    // Any packed bytes are a valid matrix; f16 scales of 0x2222 (about 0.012) keep the sums finite.
    std::memset(data_, 0x22, bytes_);
  }
  ~Arena() {
    std::free(data_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  uint8_t* data() const {
    return data_;
  }

 private:
  size_t bytes_;
  uint8_t* data_;
};

void run_gemm(benchmark::State& state, const char* kernel, tessera_weight_type type, int64_t m, int64_t n, int64_t k,
              bool stream_weights) {
  size_t bytes = 0;
  tessera_gemm_packed_size(type, n, k, &bytes, nullptr);
  const size_t copies = stream_weights ? (size_t{96} << 20) / bytes + 1 : 1;
  const size_t step = (bytes + 63) / 64 * 64;
  const Arena matrices(copies * step);
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(m * k));
  for (float& value : x) value = normal(engine);
  std::vector<float> y(static_cast<size_t>(m * n));

  tessera_gemm_params params{};
  params.struct_size = sizeof(params);
  params.m = m;
  params.k = k;
  params.x = x.data();
  params.stride_x = k;
  params.num_weights = 1;
  params.weights[0] = {type, n, matrices.data(), nullptr, y.data(), n};
  params.force_kernel = kernel;
  tessera_error error{};
  size_t workspace_bytes = 0;
  if (tessera_gemm_workspace_size(&params, 1, &workspace_bytes, &error) != TESSERA_OK) {
    state.SkipWithError(error.text);
    return;
  }
  const Arena workspace(workspace_bytes + 64);
  size_t next = 0;
  for (auto _ : state) {
    params.weights[0].packed = matrices.data() + next * step;
    next = next + 1 == copies ? 0 : next + 1;
    if (tessera_gemm_run(&params, workspace.data(), workspace_bytes, nullptr, &error) != TESSERA_OK) {
      state.SkipWithError(error.text);
      return;
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * m * n * k);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

struct NamedType {
  const char* name;
  tessera_weight_type type;
};

constexpr NamedType kTypes[] = {
    {"Q4_0", TESSERA_WEIGHT_Q4_0}, {"Q4_1", TESSERA_WEIGHT_Q4_1}, {"Q5_0", TESSERA_WEIGHT_Q5_0},
    {"Q5_1", TESSERA_WEIGHT_Q5_1}, {"Q8_0", TESSERA_WEIGHT_Q8_0}, {"Q4_K", TESSERA_WEIGHT_Q4_K},
    {"Q5_K", TESSERA_WEIGHT_Q5_K}, {"Q6_K", TESSERA_WEIGHT_Q6_K}, {"F32", TESSERA_WEIGHT_F32},
    {"F16", TESSERA_WEIGHT_F16},   {"BF16", TESSERA_WEIGHT_BF16}};

void add(const std::string& name, const std::string& kernel, tessera_weight_type type, int64_t m, int64_t n, int64_t k,
         bool stream_weights) {
  // The registry owns the kernel's name; the benchmark keeps a copy for as long as it runs.
  benchmark::RegisterBenchmark((kernel + "/" + name).c_str(), [=](benchmark::State& state) {
    run_gemm(state, kernel.c_str(), type, m, n, k, stream_weights);
  })->Unit(benchmark::kMicrosecond);
}

void register_all() {
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info{};
    if (tessera_kernel_get(i, &info, nullptr) != TESSERA_OK) continue;
    if (info.operation != TESSERA_OP_GEMM || info.available == 0) continue;
    const std::string kernel = info.name;
    for (const NamedType& type : kTypes) {
      // k = 512 and 1536 suit every type.
      add(std::string("decode/") + type.name + "/1x1536x512", kernel, type.type, 1, 1536, 512, true);
      add(std::string("prefill/") + type.name + "/512x576x1536", kernel, type.type, 512, 576, 1536, false);
    }
    // SmolLM2-135M: q/k/v/o, gate/up, down, LM head.
    add("smollm2/Q4_1/1x960x576", kernel, TESSERA_WEIGHT_Q4_1, 1, 960, 576, true);
    add("smollm2/Q4_1/1x3072x576", kernel, TESSERA_WEIGHT_Q4_1, 1, 3072, 576, true);
    add("smollm2/Q4_1/1x576x1536", kernel, TESSERA_WEIGHT_Q4_1, 1, 576, 1536, true);
    add("smollm2/Q8_0/1x49152x576", kernel, TESSERA_WEIGHT_Q8_0, 1, 49152, 576, true);
    add("smollm2/Q4_1/512x960x576", kernel, TESSERA_WEIGHT_Q4_1, 512, 960, 576, false);
    add("smollm2/Q4_1/512x3072x576", kernel, TESSERA_WEIGHT_Q4_1, 512, 3072, 576, false);
    add("smollm2/Q4_1/512x576x1536", kernel, TESSERA_WEIGHT_Q4_1, 512, 576, 1536, false);
    add("cached/Q4_1/1x960x576", kernel, TESSERA_WEIGHT_Q4_1, 1, 960, 576, false);
    add("cached/Q8_0/1x960x576", kernel, TESSERA_WEIGHT_Q8_0, 1, 960, 576, false);
    for (const int64_t m : {2, 4, 8, 16, 32}) {
      add("batch/Q4_1/" + std::to_string(m) + "x3072x576", kernel, TESSERA_WEIGHT_Q4_1, m, 3072, 576, true);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
