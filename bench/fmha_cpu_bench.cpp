// Attention on the CPU: prefill in fp32 MACs per core cycle, decode in bytes of K/V per second.
//
//   bench_fmha_cpu --benchmark_filter=Prefill
//
// Arguments of a benchmark are in its name: kernel / dtype / heads_q x heads_kv x head_dim / lengths / threads.
// mac_per_cycle counts one multiply-add of Q K^T or P V per visible (row, key, dim), divided by core cycles; the core
// clock is measured beside every run with a chain of dependent additions.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tessera/tessera.h"

namespace {

// Cycles per second of this core: every addition of the chain takes one cycle. The best of many windows that are short
// enough to pass without an interruption.
double core_clock() {
  double best = 0.0;
  for (int window = 0; window < 400; ++window) {
    constexpr int64_t kSteps = 20000;
    const auto start = std::chrono::steady_clock::now();
    uint64_t x = 1;
    for (int64_t i = 0; i < kSteps; ++i) {
      x += static_cast<uint64_t>(i);
      asm volatile("" : "+r"(x));
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kSteps) / elapsed.count());
  }
  return best;
}

// Threads that wait for work between calls by spinning briefly, then sleeping.
class Pool {
 public:
  explicit Pool(int32_t num_threads) {
    executor_ = {this, num_threads, &Pool::parallel_for};
    for (int32_t t = 1; t < num_threads; ++t) workers_.emplace_back([this, t] { work(t); });
  }
  ~Pool() {
    stop_ = true;
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& w : workers_) w.join();
  }
  const tessera_executor* executor() const { return &executor_; }

 private:
  static void parallel_for(void* context, int64_t count, void (*task)(void*, int64_t, int32_t), void* arg) {
    Pool& self = *static_cast<Pool*>(context);
    self.task_ = task;
    self.arg_ = arg;
    self.count_ = count;
    self.next_ = 0;
    self.done_ = 0;
    self.epoch_.fetch_add(1);
    self.epoch_.notify_all();
    self.drain(0);
    while (self.done_.load() != static_cast<int32_t>(self.workers_.size())) {
    }
  }
  void drain(int32_t thread) {
    for (int64_t i = next_++; i < count_; i = next_++) task_(arg_, i, thread);
  }
  void work(int32_t thread) {
    for (uint32_t seen = 0;;) {
      for (int spin = 0; spin < 20000 && epoch_.load() == seen; ++spin) {
      }
      epoch_.wait(seen);
      seen = epoch_.load();
      if (stop_) return;
      drain(thread);
      done_.fetch_add(1);
    }
  }

  tessera_executor executor_{};
  std::vector<std::thread> workers_;
  void (*task_)(void*, int64_t, int32_t) = nullptr;
  void* arg_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<int32_t> done_{0};
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
};

struct Shape {
  tessera_dtype dtype;
  int32_t heads_q;
  int32_t heads_kv;
  int32_t dim_qk;
  int32_t dim_v;
  int64_t seqlen_q;
  int64_t seqlen_k;
  int64_t batch;
  int32_t page_size;  // 0: contiguous
  int32_t threads;
};

std::vector<uint8_t> random_elements(int64_t count, tessera_dtype dtype) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * (dtype == TESSERA_F32 ? 4 : 2));
  for (int64_t i = 0; i < count; ++i) {
    // uniform in [-2, 2): sign, exponent field of 1 or 1/2, random fraction
    const uint32_t bits = static_cast<uint32_t>(random());
    const float x = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-30f;
    uint32_t u = 0;
    std::memcpy(&u, &x, 4);
    if (dtype == TESSERA_F32) {
      std::memcpy(&bytes[static_cast<size_t>(i) * 4], &u, 4);
      continue;
    }
    uint16_t h = static_cast<uint16_t>(u >> 16);
    if (dtype == TESSERA_F16) h = static_cast<uint16_t>((bits & 0x8000u) | 0x3800u | (bits >> 16 & 0x7ffu));
    std::memcpy(&bytes[static_cast<size_t>(i) * 2], &h, 2);
  }
  return bytes;
}

int64_t visible_pairs(const Shape& s) {  // causal, aligned bottom-right
  int64_t pairs = 0;
  for (int64_t i = 0; i < s.seqlen_q; ++i) pairs += std::max<int64_t>(0, s.seqlen_k - s.seqlen_q + i + 1);
  return pairs * s.heads_q * s.batch;
}

void run(benchmark::State& state, const Shape& s, const char* kernel) {
  const int64_t kv_tokens = s.batch * s.seqlen_k;
  const std::vector<uint8_t> q = random_elements(s.batch * s.seqlen_q * s.heads_q * s.dim_qk, s.dtype);
  const std::vector<uint8_t> k = random_elements(kv_tokens * s.heads_kv * s.dim_qk, s.dtype);
  const std::vector<uint8_t> v = random_elements(kv_tokens * s.heads_kv * s.dim_v, s.dtype);
  std::vector<uint8_t> o(static_cast<size_t>(s.batch * s.seqlen_q * s.heads_q * s.dim_v) * 4);

  const auto tensor = [](const std::vector<uint8_t>& bytes, int64_t tokens, int64_t heads, int64_t dim) {
    return tessera_tensor{const_cast<uint8_t*>(bytes.data()), tokens * heads * dim, heads * dim, dim, 1};
  };
  tessera_fmha_params p{};
  p.struct_size = sizeof(p);
  p.dtype = s.dtype;
  p.o_dtype = TESSERA_F32;
  p.head_dim_qk = s.dim_qk;
  p.head_dim_v = s.dim_v;
  p.num_heads_q = s.heads_q;
  p.num_heads_kv = s.heads_kv;
  p.batch = s.batch;
  p.seqlen_q = s.seqlen_q;
  p.q = tensor(q, s.seqlen_q, s.heads_q, s.dim_qk);
  p.o = tensor(o, s.seqlen_q, s.heads_q, s.dim_v);
  p.num_segments = 1;
  p.segments[0].seqlen_k = s.seqlen_k;
  p.segments[0].causal = 1;
  p.segments[0].window_left = p.segments[0].window_right = -1;
  std::vector<int32_t> pages;
  if (s.page_size == 0) {
    p.segments[0].k = tensor(k, s.seqlen_k, s.heads_kv, s.dim_qk);
    p.segments[0].v = tensor(v, s.seqlen_k, s.heads_kv, s.dim_v);
  } else {
    const int64_t count = kv_tokens / s.page_size;
    for (int64_t i = 0; i < count; ++i) pages.push_back(static_cast<int32_t>(i));
    std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
    p.segments[0].k = tensor(k, s.page_size, s.heads_kv, s.dim_qk);
    p.segments[0].v = tensor(v, s.page_size, s.heads_kv, s.dim_v);
    p.segments[0].page_table = pages.data();
    p.segments[0].page_table_stride = s.seqlen_k / s.page_size;
    p.segments[0].page_size = s.page_size;
    p.segments[0].num_pages = count;
  }
  p.softmax_scale = 0.125f;
  p.force_kernel = kernel;

  tessera_error error{};
  size_t bytes = 0;
  if (tessera_fmha_workspace_size(&p, s.threads, &bytes, &error) != TESSERA_OK) {
    state.SkipWithError(error.text);
    return;
  }
  std::vector<uint8_t> memory(bytes + 64);
  void* workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  Pool pool(s.threads);
  const tessera_stream stream{s.threads == 1 ? nullptr : pool.executor(), nullptr};
  for (auto _ : state) {
    if (tessera_fmha_run(&p, workspace, bytes, &stream, &error) != TESSERA_OK) state.SkipWithError(error.text);
  }
  const double pairs = static_cast<double>(visible_pairs(s)) * static_cast<double>(state.iterations());
  const double macs = pairs * (s.dim_qk + s.dim_v);
  using Counter = benchmark::Counter;
  const double clock = core_clock();
  state.counters["clock_GHz"] = Counter(clock * 1e-9);
  state.counters["GMAC/s"] = Counter(macs * 1e-9, Counter::kIsRate);
  state.counters["mac_per_cycle"] = Counter(macs / clock / s.threads, Counter::kIsRate);
  const double kv_bytes = static_cast<double>(k.size() + v.size()) * static_cast<double>(state.iterations());
  state.counters["KV_GB/s"] = Counter(kv_bytes * 1e-9, Counter::kIsRate);
}

const char* dtype_text(tessera_dtype dtype) {
  return dtype == TESSERA_F32 ? "f32" : dtype == TESSERA_F16 ? "f16" : "bf16";
}

void add(const std::string& family, const char* kernel, const Shape& s) {
  std::string name = family + "/" + kernel + "/" + dtype_text(s.dtype) + "/h" + std::to_string(s.heads_q) + "x" +
                     std::to_string(s.heads_kv) + "/d" + std::to_string(s.dim_qk) + "/q" + std::to_string(s.seqlen_q) +
                     "/k" + std::to_string(s.seqlen_k) + "/b" + std::to_string(s.batch) + "/t" +
                     std::to_string(s.threads);
  if (s.page_size != 0) name += "/page" + std::to_string(s.page_size);
  auto* registered = benchmark::RegisterBenchmark(name.c_str(), [s, kernel](benchmark::State& state) {
                       run(state, s, kernel);
                     })->Unit(benchmark::kMillisecond);
  if (s.threads > 1) registered->UseRealTime();  // one thread: its CPU time, so that a busy machine does not count
}

void add_all() {
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info{};
    if (tessera_kernel_get(i, &info, nullptr) != TESSERA_OK || info.operation != TESSERA_OP_FMHA) continue;
    if (info.available == 0 || std::strncmp(info.name, "cpu_", 4) != 0) continue;
    const bool slow = std::strcmp(info.name, "cpu_fmha_portable") == 0;
    for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
      for (const int64_t n : {512, 1024, 4096}) {
        if (slow && n > 512) continue;
        add("Prefill", info.name, {dtype, 9, 3, 64, 64, n, n, 1, 0, 1});
        if (n == 1024) add("Prefill", info.name, {dtype, 9, 3, 64, 64, n, n, 1, 0, 2});
        if (n == 1024) add("Prefill", info.name, {dtype, 8, 2, 128, 128, n, n, 1, 0, 1});
        if (n == 1024) add("Prefill", info.name, {dtype, 8, 1, 512, 512, n, n, 1, 0, 1});
      }
      for (const int64_t n : {512, 4096, 32768}) {
        if (slow && n > 512) continue;
        for (const int32_t threads : {1, 2}) add("Decode", info.name, {dtype, 9, 3, 64, 64, 1, n, 1, 0, threads});
        if (n > 512) add("Decode", info.name, {dtype, 9, 3, 64, 64, 1, n, 1, 16, 1});
      }
      if (slow) continue;
      add("Decode", info.name, {dtype, 32, 8, 128, 128, 1, 32768, 1, 0, 1});
      add("Decode", info.name, {dtype, 32, 8, 128, 128, 1, 32768, 1, 0, 2});
      add("Decode", info.name, {dtype, 16, 1, 576, 512, 1, 8192, 1, 0, 1});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
