// A case of the prefill byte tests: its tensors with guard rows, the kernel's problem, and the oracle's bytes.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/sm90/fmha_prefill/prefill.h"
#include "oracle/oracle.h"
#include "sm90/byte_test.h"

namespace tessera::sm90 {

inline constexpr int64_t kGuardTokens = 3;  // NaN rows behind every sequence

struct Case {
  int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k;
  Values values;
};

// What the general finish can do beyond the ordinary one.
struct Finish {
  bool wide_output = false;
  bool unnormalized = false;
  bool sinks = false;
};

// What of a kernel its bytes depend on.
struct CaseNumbers {
  int64_t dims_qk, dims_v;
  bool bf16, causal, ragged;
};

inline std::string describe(const Case& c, const CaseNumbers& entry, const Finish& finish) {
  return fmt::format("b{} h{}/{} q{} k{} values {}, d{}/{} {} {}{}{}{}", c.batch, c.heads_q, c.heads_kv, c.seqlen_q,
                     c.seqlen_k, static_cast<int>(c.values), entry.dims_qk, entry.dims_v, entry.bf16 ? "bf16" : "f16",
                     entry.causal ? "causal" : "full", finish.wide_output ? " f32 O" : "",
                     finish.unnormalized ? " state" : "", finish.sinks ? " sinks" : "");
}

// (batch, tokens + guard, heads, dim) of 16-bit elements, or of fp32 ones.
struct Tensor {
  int64_t batch, tokens, heads, dims;
  Mirror memory;

  Tensor(int64_t b, int64_t t, int64_t h, int64_t d, int64_t element_bytes = 2)
      : batch(b),
        tokens(t),
        heads(h),
        dims(d),
        memory(static_cast<size_t>(b * (t + kGuardTokens) * h * d * element_bytes)) {}

  TensorView view() const {
    return {memory.device(), batch, tokens, heads, dims, (tokens + kGuardTokens) * heads * dims, heads * dims, dims};
  }
  tessera_tensor host_view() { return {memory.host(), (tokens + kGuardTokens) * heads * dims, heads * dims, dims, 1}; }
};

inline void fill(Tensor& tensor, bool bf16, Values values, bool keys, std::mt19937& random) {
  ValueSource source(bf16, values, keys, random);
  auto* elements = reinterpret_cast<uint16_t*>(tensor.memory.host());
  for (int64_t b = 0; b < tensor.batch; ++b) {
    for (int64_t t = 0; t < tensor.tokens; ++t) {
      for (int64_t i = 0; i < tensor.heads * tensor.dims; ++i) {
        elements[(b * (tensor.tokens + kGuardTokens) + t) * tensor.heads * tensor.dims + i] = source.draw(t / 64);
      }
    }
  }
  tensor.memory.upload();
}

inline int multiprocessors() {
  int count = 0;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
  return count;
}

// The bytes of O and of the rows' scalars that the oracle writes; kernels of equal head dim, dtype and mask share them.
using Bytes = std::pair<std::vector<uint8_t>, std::vector<uint8_t>>;
inline std::map<std::string, Bytes>& oracle_bytes() {
  static std::map<std::string, Bytes> bytes;
  return bytes;
}

// Runs the kernel, by run(problem) with scratch_bytes(problem) of scratch, and the oracle.
template <class ScratchBytes, class Run>
void expect_oracle_bytes(const Case& c, const CaseNumbers& entry, const Finish& finish,
                         const ScratchBytes& scratch_bytes, const Run& run) {
  const std::string name = describe(c, entry, finish);
  SCOPED_TRACE(name);
  std::mt19937 random(static_cast<uint32_t>(c.seqlen_q * 7919 + c.seqlen_k * 13 + c.heads_q));
  Tensor q(c.batch, c.seqlen_q, c.heads_q, entry.dims_qk);
  Tensor k(c.batch, c.seqlen_k, c.heads_kv, entry.dims_qk);
  Tensor v(c.batch, c.seqlen_k, c.heads_kv, entry.dims_v);
  Tensor o(c.batch, c.seqlen_q, c.heads_q, entry.dims_v, finish.wide_output ? 4 : 2);
  fill(q, entry.bf16, c.values, false, random);
  fill(k, entry.bf16, c.values, true, random);
  fill(v, entry.bf16, c.values == Values::kTiny ? Values::kTiny : Values::kNormal, false, random);
  // LSE, then row_max_log2 and row_sum.
  const int64_t scalars = c.batch * c.heads_q * (c.seqlen_q + kGuardTokens);
  Mirror lse(static_cast<size_t>(3 * scalars) * sizeof(float));
  Mirror sinks(static_cast<size_t>(c.heads_q) * sizeof(float));
  for (int64_t h = 0; h < c.heads_q; ++h) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSinks[] = {0.3F, 21.7F, -kInfinity, kInfinity, -90.0F};
    reinterpret_cast<float*>(sinks.host())[h] = kSinks[h % 5];
  }
  sinks.upload();

  PrefillProblem problem;
  problem.dtype = entry.bf16 ? TESSERA_BF16 : TESSERA_F16;
  problem.q = q.view();
  problem.k = k.view();
  problem.v = v.view();
  problem.o = o.view();
  problem.causal = entry.causal;
  problem.softmax_scale = 1.0F / std::sqrt(static_cast<float>(entry.dims_qk));
  problem.lse = {static_cast<float*>(lse.device()), c.heads_q * (c.seqlen_q + kGuardTokens), 1,
                 c.seqlen_q + kGuardTokens};
  problem.wide_output = finish.wide_output;
  if (finish.unnormalized) {
    problem.unnormalized = true;
    problem.row_max_log2 = problem.row_sum = problem.lse;
    problem.row_max_log2.data += scalars;
    problem.row_sum.data += 2 * scalars;
  }
  problem.ragged.wanted = entry.ragged;
  problem.ragged.batch = c.batch;
  problem.ragged.seqlen_q = c.seqlen_q;
  problem.ragged.seqlen_k = c.seqlen_k;
  problem.sinks = finish.sinks ? static_cast<const float*>(sinks.device()) : nullptr;
  const Mirror scratch(scratch_bytes(problem));
  ASSERT_EQ(cudaMemset(scratch.device(), 0, 16), cudaSuccess);  // the tile counter
  problem.scratch = scratch.device();
  const Status status = run(problem);
  ASSERT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());

  if (!oracle_bytes().contains(name)) {
    tessera_fmha_params params{};
    params.struct_size = sizeof params;
    params.dtype = problem.dtype;
    params.o_dtype = finish.wide_output ? TESSERA_F32 : problem.dtype;
    params.head_dim_qk = static_cast<int32_t>(entry.dims_qk);
    params.head_dim_v = static_cast<int32_t>(entry.dims_v);
    params.num_heads_q = static_cast<int32_t>(c.heads_q);
    params.num_heads_kv = static_cast<int32_t>(c.heads_kv);
    params.batch = c.batch;
    params.seqlen_q = c.seqlen_q;
    params.q = q.host_view();
    params.o = o.host_view();
    params.num_segments = 1;
    tessera_kv_segment& segment = params.segments[0];
    segment.k = k.host_view();
    segment.v = v.host_view();
    segment.seqlen_k = c.seqlen_k;
    segment.causal = entry.causal ? 1 : 0;
    segment.window_left = segment.window_right = -1;
    params.softmax_scale = problem.softmax_scale;
    params.lse_natural_no_sink = {reinterpret_cast<float*>(lse.host()), problem.lse.stride_batch, 1,
                                  problem.lse.stride_head};
    if (finish.unnormalized) {
      params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
      params.row_max_log2 = params.row_sum = params.lse_natural_no_sink;
      params.row_max_log2.data += scalars;
      params.row_sum.data += 2 * scalars;
    }
    params.sinks = finish.sinks ? reinterpret_cast<const float*>(sinks.host()) : nullptr;
    const Status oracle =
        oracle_fmha(Arithmetic::kHopperK16F25, params, static_cast<int>(std::thread::hardware_concurrency()));
    ASSERT_TRUE(oracle.ok()) << oracle.text();
    oracle_bytes()[name] = {o.memory.bytes(), lse.bytes()};
  }
  const Bytes& want = oracle_bytes()[name];
  const std::vector<uint8_t> got = o.memory.download();
  EXPECT_TRUE(got == want.first) << "O: " << first_difference(got, want.first, finish.wide_output ? 4 : 2);
  const std::vector<uint8_t> got_lse = lse.download();
  EXPECT_TRUE(got_lse == want.second) << "LSE, row max, row sum: " << first_difference(got_lse, want.second, 4);
}

}  // namespace tessera::sm90
