// What the tests of the kernel for one K/V head whose V is the first 512 dims of K's rows share: problems, and the
// kernel against the oracle through the public interface.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/decode.h"
#include "cuda/gathered.h"

namespace tessera::test {

inline constexpr const char* kMqa = "sm90_fmha_mqa_512";

struct Kind {
  tessera_dtype dtype;
  int32_t head_dim;  // of Q and K
};
inline std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  return fmt::format("{}_{}", info.param.dtype == TESSERA_BF16 ? "bf16" : "f16", info.param.head_dim);
}

// The states of the segments of one sequence, each from a launch of its own, chained by the oracle.
inline FmhaOutputs merged_passes(const FmhaProblem& problem) {
  FmhaSpec single = problem.spec();
  single.sinks.clear();
  single.unnormalized = true;
  single.o_dtype = TESSERA_F32;
  const FmhaProblem layout(single);
  const FmhaOutputs one = layout.make_outputs();
  std::vector<uint8_t> o;
  std::vector<float> row_max;
  std::vector<float> row_sum;
  for (size_t segment = 0; segment < single.segments.size(); ++segment) {
    DeviceProblem device(layout);
    device.params.segments[0] = device.params.segments[segment];
    device.params.num_segments = 1;
    FmhaOutputs state = one;
    EXPECT_EQ(run_on(device, kMqa, &state), "");
    o.insert(o.end(), state.o.begin(), state.o.end());
    row_max.insert(row_max.end(), state.row_max.begin(), state.row_max.end());
    row_sum.insert(row_sum.end(), state.row_sum.begin(), state.row_sum.end());
  }
  FmhaOutputs merged = problem.make_outputs();
  const tessera_fmha_params to = problem.params(&merged);
  FmhaOutputs place = one;
  const tessera_fmha_params from = layout.params(&place);
  tessera_merge_params merge{};
  merge.struct_size = sizeof merge;
  merge.dtype = to.dtype;
  merge.o_dtype = to.o_dtype;
  merge.head_dim_qk = to.head_dim_qk;
  merge.head_dim_v = to.head_dim_v;
  merge.num_heads_q = to.num_heads_q;
  merge.num_rows = to.seqlen_q;
  merge.num_states = static_cast<int64_t>(single.segments.size());
  merge.o_states = from.o;
  merge.o_states.data = o.data() + (static_cast<const uint8_t*>(from.o.data) - place.o.data());
  merge.o_states.stride_batch = static_cast<int64_t>(one.o.size() / sizeof(float));
  const auto several = [](const tessera_row_scalars& scalars, const std::vector<float>& state,
                          std::vector<float>& all) {
    tessera_row_scalars states = scalars;
    states.data = all.data() + (scalars.data - state.data());
    states.stride_batch = static_cast<int64_t>(state.size());
    return states;
  };
  merge.row_max_log2_states = several(from.row_max_log2, place.row_max, row_max);
  merge.row_sum_states = several(from.row_sum, place.row_sum, row_sum);
  merge.sinks = to.sinks;
  merge.o = to.o;
  merge.lse_natural_no_sink = to.lse_natural_no_sink;
  const Status status = oracle_merge(Arithmetic::kHopperK16F25, merge);
  EXPECT_TRUE(status.ok()) << status.text();
  return merged;
}

class Mqa512Case : public CudaTest, public testing::WithParamInterface<Kind> {
 protected:
  // `tokens` query tokens of each sequence, one segment of these lengths, causal.
  static FmhaSpec mqa(int32_t heads, int64_t tokens, const std::vector<int64_t>& lengths) {
    FmhaSpec spec;
    spec.dtype = spec.o_dtype = GetParam().dtype;
    spec.head_dim_qk = GetParam().head_dim;
    spec.head_dim_v = 512;
    spec.heads_q = heads;
    spec.heads_kv = 1;
    spec.q_lengths.assign(lengths.size(), tokens);
    spec.segments.emplace_back();
    spec.segments[0].lengths = lengths;
    spec.segments[0].v_is_k = true;
    spec.segments[0].causal = 1;
    return spec;
  }
  // The shape of a sparse layer: a window over the raw keys, then keys that each stand for `ratio` of those.
  static FmhaSpec window_and_compressed(int32_t heads, int64_t tokens, const std::vector<int64_t>& lengths,
                                        int32_t ratio) {
    FmhaSpec spec = mqa(heads, tokens, lengths);
    spec.segments[0].window_left = 127;
    SegmentSpec compressed = spec.segments[0];
    compressed.causal = 0;
    compressed.window_left = -1;
    compressed.compress_ratio = ratio;
    for (size_t b = 0; b < lengths.size(); ++b) {
      compressed.lengths[b] = lengths[b] / ratio;
      compressed.q_positions.push_back(static_cast<int32_t>(lengths[b] - tokens));
    }
    spec.segments.push_back(compressed);
    for (int32_t h = 0; h < heads; ++h) {
      spec.sinks.push_back(0.25F * static_cast<float>(h % 9) - 1.0F);
    }
    return spec;
  }

  using Gathered = std::pair<size_t, const Lists*>;  // a segment and its lists

  static FmhaOutputs by_oracle(const FmhaProblem& problem, const std::optional<Gathered>& gathered) {
    FmhaOutputs out = problem.make_outputs();
    tessera_fmha_params params = problem.params(&out);
    if (gathered.has_value()) {
      const Lists& lists = *gathered->second;
      lists.put(&params.segments[gathered->first], lists.indices.data(), lists.lens.data());
    }
    const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
    const Status status = oracle_fmha(Arithmetic::kHopperK16F25, params, threads);
    EXPECT_TRUE(status.ok()) << status.text();
    return out;
  }
  static void put_lists(const std::optional<Gathered>& gathered, DeviceProblem* device, DeviceArrays* arrays) {
    if (!gathered.has_value()) return;
    const auto place = [&](const std::vector<int32_t>& values) {
      return static_cast<const int32_t*>(arrays->place(values.data(), values.size() * sizeof(int32_t), false));
    };
    const Lists& lists = *gathered->second;
    lists.put(&device->params.segments[gathered->first], place(lists.indices), place(lists.lens));
  }
  static FmhaOutputs by_kernel(const FmhaProblem& problem, const std::optional<Gathered>& gathered) {
    DeviceProblem device(problem, {.keep_lengths = problem.spec().heads_q % 3 != 0});
    DeviceArrays arrays;
    put_lists(gathered, &device, &arrays);
    FmhaOutputs out;
    EXPECT_EQ(run_on(device, kMqa, &out), "");
    EXPECT_EQ(arrays.damage(), "");
    return out;
  }
  static void check(const FmhaSpec& spec) {
    SCOPED_TRACE(to_text(spec));
    const FmhaProblem problem(spec);
    EXPECT_EQ(first_difference(problem, by_oracle(problem, {}), by_kernel(problem, {})), "");
  }
  static void check_gathered(const FmhaSpec& spec, size_t segment, int32_t topk, bool limited = false) {
    SCOPED_TRACE(to_text(spec) + ", topk " + std::to_string(topk));
    const FmhaProblem problem(spec);
    const Lists lists(spec, segment, topk, limited, static_cast<uint32_t>(topk) + 9);
    const Gathered gathered{segment, &lists};
    EXPECT_EQ(first_difference(problem, by_oracle(problem, gathered), by_kernel(problem, gathered)), "");
  }
};

}  // namespace tessera::test
