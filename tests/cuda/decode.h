// What the tests of decode share: the call as the last query tokens of a longer one, over the same memory.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "cuda/harness.h"
#include "fmha/conformance.h"
#include "oracle/oracle.h"

namespace tessera::test {

inline constexpr const char* kDecode = "sm90_fmha_decode";

// `tokens` query tokens at the end of `keys` keys, two K/V heads, head dim 128.
inline FmhaSpec decode_spec(tessera_dtype dtype, int64_t tokens, int64_t keys, int32_t group = 4) {
  FmhaSpec spec;
  spec.dtype = spec.o_dtype = dtype;
  spec.head_dim_qk = spec.head_dim_v = 128;
  spec.heads_kv = group > 16 ? 1 : 2;
  spec.heads_q = spec.heads_kv * group;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, tokens, keys);
}

// Steps over the first `elements` of an array of 16-bit or 32-bit elements.
inline void* step(void* data, int64_t elements, bool wide) {
  return static_cast<char*>(data) + elements * (wide ? 4 : 2);
}

// The call for the last `tokens` of the query tokens, all sequences having as many: its keys, positions and outputs
// stay where they are.
inline tessera_fmha_params tail_of(tessera_fmha_params p, int64_t tokens) {
  const int64_t before = p.seqlen_q - tokens;
  p.q.data = step(p.q.data, before * p.q.stride_token, false);
  p.o.data = step(p.o.data, before * p.o.stride_token, p.o_dtype == TESSERA_F32);
  for (tessera_row_scalars* scalars : {&p.lse_natural_no_sink, &p.row_max_log2, &p.row_sum}) {
    if (scalars->data != nullptr) scalars->data += before * scalars->stride_token;
  }
  tessera_bit_mask& mask = p.segments[0].mask;
  if (mask.data != nullptr) mask.data += before * mask.stride_row;
  p.seqlen_q = tokens;
  return p;
}

// The call for sequence `b` alone, which has `keys` keys. Not packed.
inline tessera_fmha_params alone(tessera_fmha_params p, int64_t b) {
  p.batch = 1;
  p.q.data = step(p.q.data, b * p.q.stride_batch, false);
  p.o.data = step(p.o.data, b * p.o.stride_batch, p.o_dtype == TESSERA_F32);
  for (tessera_row_scalars* scalars : {&p.lse_natural_no_sink, &p.row_max_log2, &p.row_sum}) {
    if (scalars->data != nullptr) scalars->data += b * scalars->stride_batch;
  }
  tessera_kv_segment& s = p.segments[0];
  if (s.page_table != nullptr) {
    s.page_table += b * s.page_table_stride;
  } else {
    s.k.data = step(s.k.data, b * s.k.stride_batch, false);
    s.v.data = step(s.v.data, b * s.v.stride_batch, false);
  }
  if (s.seqlens_k != nullptr) s.seqlens_k += b;
  return p;
}

// Runs a call over the memory of the problem on `kernel`, with poison in all the problem's outputs and in a workspace
// of exactly its size. "" or the refusal.
inline std::string run_on(DeviceProblem& device, const tessera_fmha_params& call, const char* kernel,
                          FmhaOutputs* out) {
  const tessera_fmha_params whole = device.params;
  device.reset_outputs();
  device.params = call;
  device.params.force_kernel = kernel;
  std::string refusal = device.make_workspace();
  if (refusal.empty()) {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the stream below does not wait for the copies
    const Stream stream;
    tessera_error error{};
    if (device.enqueue(stream.get(), &error) != TESSERA_OK) refusal = error.text;
    EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess) << kernel;
  }
  device.params = whole;
  if (!refusal.empty()) return refusal;
  EXPECT_EQ(device.damage(), "") << kernel;
  *out = device.outputs();
  return "";
}

inline std::string run_on(DeviceProblem& device, const char* kernel, FmhaOutputs* out) {
  return run_on(device, device.params, kernel, out);
}

// The rows of the last `tokens` query tokens of every sequence.
inline std::vector<RowBytes> last_rows(const FmhaProblem& problem, const FmhaOutputs& out, int64_t tokens) {
  std::vector<RowBytes> rows;
  for (size_t b = 0; b < problem.spec().q_lengths.size(); ++b) {
    const int64_t end = problem.spec().q_lengths[b];
    for (int64_t i = end - tokens; i < end; ++i) {
      for (int32_t h = 0; h < problem.spec().heads_q; ++h) {
        rows.push_back(problem.row(out, static_cast<int64_t>(b), i, h));
      }
    }
  }
  return rows;
}

// What the oracle gives for the call of the last `tokens` query tokens; the other rows stay poison.
inline FmhaOutputs oracle_tail(const FmhaProblem& problem, int64_t tokens) {
  FmhaOutputs out = problem.make_outputs();
  const tessera_fmha_params params = tail_of(problem.params(&out), tokens);
  const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
  const Status status = oracle_fmha(Arithmetic::kHopperK16F25, params, threads);
  EXPECT_TRUE(status.ok()) << status.text() << "\n" << to_text(problem.spec());
  return out;
}

inline std::string dtype_name(const testing::TestParamInfo<tessera_dtype>& info) {
  return info.param == TESSERA_F16 ? "f16" : "bf16";
}

}  // namespace tessera::test
