// Steps per second of the oracle on one core: `oracle_bench`. A k16 step is one fdot over 16 products; attention over
// (Sq, Sk, dqk, dv) takes Sq Sk (dqk + dv) / 16 of them per head.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "oracle/oracle.h"

namespace {

constexpr int64_t kTokens = 512;
constexpr int32_t kHeadDim = 128;

void run(benchmark::State& state, tessera::Arithmetic arithmetic, tessera_dtype dtype) {
  // Small fp16 values near 1; read as bf16 or fp32 pairs they are finite as well.
  std::vector<uint32_t> q(kTokens * kHeadDim), k(q.size()), v(q.size()), o(q.size());
  uint32_t seed = 1;
  for (auto* data : {&q, &k, &v}) {
    for (uint32_t& x : *data) {
      seed = seed * 1664525U + 1013904223U;
      x = (seed & 0x83ff83ffU) | 0x38003800U;
    }
  }
  const auto tensor = [](std::vector<uint32_t>& data) {
    return tessera_tensor{data.data(), kTokens * kHeadDim, kHeadDim, kHeadDim, 1};
  };
  tessera_fmha_params params{};
  params.struct_size = sizeof(params);
  params.dtype = params.o_dtype = dtype;
  params.head_dim_qk = params.head_dim_v = kHeadDim;
  params.num_heads_q = params.num_heads_kv = 1;
  params.batch = 1;
  params.q = tensor(q);
  params.seqlen_q = kTokens;
  params.num_segments = 1;
  params.segments[0].k = tensor(k);
  params.segments[0].v = tensor(v);
  params.segments[0].seqlen_k = kTokens;
  params.segments[0].window_left = params.segments[0].window_right = -1;
  params.softmax_scale = 0.088388348F;
  params.o = tensor(o);
  for (auto _ : state) {
    if (!tessera::oracle_fmha(arithmetic, params, 1).ok()) {
      state.SkipWithError("the oracle refused the problem");
      return;
    }
  }
  const int64_t steps = kTokens * kTokens * kHeadDim / 8;
  state.counters["k16_steps"] =
      benchmark::Counter(static_cast<double>(steps), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

BENCHMARK_CAPTURE(run, hopper_f16, tessera::Arithmetic::kHopperK16F25, TESSERA_F16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, hopper_bf16, tessera::Arithmetic::kHopperK16F25, TESSERA_BF16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run, cpu_f32, tessera::Arithmetic::kCpuFma32, TESSERA_F32)->Unit(benchmark::kMillisecond);
BENCHMARK_MAIN();
