// run_merge_sm80 against the oracle, and states of chunk ranges that merge to the whole call. Needs an sm_90 GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "fmha/problem.h"
#include "kernels/sm80/fmha/fmha_sm80.h"
#include "oracle/oracle.h"
#include "sm80/device.h"

namespace tessera::test {
namespace {

using MergeSm80 = DeviceTest;

// (states, rows, heads, dim), contiguous, on the host.
struct States {
  int64_t states, rows;
  int32_t heads, dim;
  std::vector<float> o, row_max, row_sum;
};

struct Merged {
  std::vector<uint8_t> o;
  std::vector<float> lse, row_max, row_sum;
  bool operator==(const Merged& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return o == other.o && same(lse, other.lse) && same(row_max, other.row_max) && same(row_sum, other.row_sum);
  }
};

tessera_merge_params describe(const States& s, tessera_dtype dtype, tessera_dtype o_dtype, bool unnormalized) {
  tessera_merge_params p{};
  p.struct_size = sizeof(p);
  p.dtype = dtype;
  p.o_dtype = o_dtype;
  p.head_dim_qk = p.head_dim_v = s.dim;
  p.num_heads_q = s.heads;
  p.num_rows = s.rows;
  p.num_states = s.states;
  p.output_mode = unnormalized ? TESSERA_OUTPUT_UNNORMALIZED : TESSERA_OUTPUT_NORMALIZED;
  p.o_states = {nullptr, s.rows * s.heads * s.dim, int64_t{s.heads} * s.dim, s.dim, 1};
  p.row_max_log2_states = p.row_sum_states = {nullptr, s.rows * s.heads, s.heads, 1};
  p.o = {nullptr, 0, int64_t{s.heads} * s.dim, s.dim, 1};
  p.lse_natural_no_sink = p.row_max_log2 = p.row_sum = {nullptr, 0, s.heads, 1};
  return p;
}

Merged room(const States& s, tessera_dtype o_dtype, bool unnormalized) {
  const auto rows = static_cast<size_t>(s.rows * s.heads);
  const size_t width = o_dtype == TESSERA_F32 ? 4 : 2;
  const std::vector<float> scalars(rows, 7.0F);
  return {std::vector<uint8_t>(rows * static_cast<size_t>(s.dim) * width, 0xff), scalars,
          unnormalized ? scalars : std::vector<float>{}, unnormalized ? scalars : std::vector<float>{}};
}

Merged merge_on_device(const States& s, const std::vector<float>& sinks, tessera_dtype dtype, tessera_dtype o_dtype,
                       bool unnormalized) {
  const auto bytes = [](const std::vector<float>& v) { return v.size() * sizeof(float); };
  Merged out = room(s, o_dtype, unnormalized);
  const DeviceBytes o_states(bytes(s.o), s.o.data());
  const DeviceBytes maxima(bytes(s.row_max), s.row_max.data());
  const DeviceBytes sums(bytes(s.row_sum), s.row_sum.data());
  const DeviceBytes sink_values(bytes(sinks), sinks.empty() ? nullptr : sinks.data());
  const DeviceBytes o(out.o.size());
  const DeviceBytes lse(bytes(out.lse));
  const DeviceBytes row_max(bytes(out.lse));
  const DeviceBytes row_sum(bytes(out.lse));
  tessera_merge_params p = describe(s, dtype, o_dtype, unnormalized);
  p.o_states.data = o_states.data();
  p.row_max_log2_states.data = static_cast<float*>(maxima.data());
  p.row_sum_states.data = static_cast<float*>(sums.data());
  p.sinks = sinks.empty() ? nullptr : static_cast<const float*>(sink_values.data());
  p.o.data = o.data();
  p.lse_natural_no_sink.data = static_cast<float*>(lse.data());
  p.row_max_log2.data = unnormalized ? static_cast<float*>(row_max.data()) : nullptr;
  p.row_sum.data = unnormalized ? static_cast<float*>(row_sum.data()) : nullptr;
  const Status status = run_merge_sm80(p, {});
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  o.download(out.o.data());
  lse.download(out.lse.data());
  if (unnormalized) {
    row_max.download(out.row_max.data());
    row_sum.download(out.row_sum.data());
  }
  return out;
}

Merged merge_by_oracle(States s, const std::vector<float>& sinks, tessera_dtype dtype, tessera_dtype o_dtype,
                       bool unnormalized) {
  Merged out = room(s, o_dtype, unnormalized);
  tessera_merge_params p = describe(s, dtype, o_dtype, unnormalized);
  p.o_states.data = s.o.data();
  p.row_max_log2_states.data = s.row_max.data();
  p.row_sum_states.data = s.row_sum.data();
  p.sinks = sinks.empty() ? nullptr : sinks.data();
  p.o.data = out.o.data();
  p.lse_natural_no_sink.data = out.lse.data();
  p.row_max_log2.data = unnormalized ? out.row_max.data() : nullptr;
  p.row_sum.data = unnormalized ? out.row_sum.data() : nullptr;
  const Status status = oracle_merge(Arithmetic::kHopperK16F25, p);
  EXPECT_TRUE(status.ok()) << status.text();
  return out;
}

// Random states; every third one is empty and holds NaN.
States random_states(int64_t states, int64_t rows, int32_t heads, int32_t dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  States s{states, rows, heads, dim, {}, {}, {}};
  for (int64_t i = 0; i < states * rows * heads; ++i) {
    const bool empty = random() % 3 == 0;
    s.row_max.push_back(empty ? -std::numeric_limits<float>::infinity() : std::round(normal(random) * 30.0F));
    s.row_sum.push_back(empty ? 0.0F : std::fabs(normal(random)) * 100.0F + 0.5F);
    for (int32_t d = 0; d < dim; ++d) {
      s.o.push_back(empty ? std::numeric_limits<float>::quiet_NaN() : normal(random));
    }
  }
  return s;
}

TEST_F(MergeSm80, EqualsTheOracle) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int32_t dim : {1, 64, 128, 200, 576}) {
    for (const int64_t states : {1, 2, 9}) {
      const States s = random_states(states, 5, 3, dim, static_cast<uint32_t>(dim * 31 + states));
      for (const tessera_dtype dtype : {TESSERA_BF16, TESSERA_F16}) {
        const std::vector<float> sinks = {-kInf, 1.0F, 40.0F};
        EXPECT_TRUE(merge_on_device(s, sinks, dtype, dtype, false) == merge_by_oracle(s, sinks, dtype, dtype, false));
        EXPECT_TRUE(merge_on_device(s, {}, dtype, TESSERA_F32, true) ==
                    merge_by_oracle(s, {}, dtype, TESSERA_F32, true));
      }
    }
  }
}

FmhaSpec long_decode() {
  FmhaSpec spec;
  spec.dtype = TESSERA_F16;
  spec.o_dtype = TESSERA_F32;
  spec.head_dim_qk = spec.head_dim_v = 64;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, 3, 19 * 2048 + 5);
}

States no_states(const FmhaSpec& spec) {
  return {0, spec.q_lengths[0], spec.heads_q, spec.head_dim_v, {}, {}, {}};
}

void add_state(States& states, const float* o, const float* row_max, const float* row_sum) {
  const int64_t rows = states.rows * states.heads;
  states.o.insert(states.o.end(), o, o + rows * states.dim);
  states.row_max.insert(states.row_max.end(), row_max, row_max + rows);
  states.row_sum.insert(states.row_sum.end(), row_sum, row_sum + rows);
  ++states.states;
}

// The state of chunks [begin, end), from the device.
void add_range(States& states, FmhaSpec spec, int64_t begin, int64_t end) {
  spec.unnormalized = true;
  spec.chunk_begin = begin;
  spec.chunk_end = end;
  const FmhaOutputs out = run_device(FmhaProblem(spec));  // contiguous rows
  std::vector<float> o(out.o.size() / sizeof(float));
  std::memcpy(o.data(), out.o.data(), o.size() * sizeof(float));
  add_state(states, o.data(), out.row_max.data(), out.row_sum.data());
}

TEST_F(MergeSm80, ChunkRangesMergedInOrderEqualTheWhole) {
  const FmhaSpec spec = long_decode();
  States second = no_states(spec);  // superchunk 1, in ranges
  add_range(second, spec, 16, 18);
  add_range(second, spec, 18, 19);
  add_range(second, spec, 19, 20);
  const Merged superchunk = merge_on_device(second, {}, spec.dtype, TESSERA_F32, true);
  std::vector<float> o(superchunk.o.size() / sizeof(float));
  std::memcpy(o.data(), superchunk.o.data(), superchunk.o.size());

  States all = no_states(spec);
  add_range(all, spec, 0, 16);
  add_state(all, o.data(), superchunk.row_max.data(), superchunk.row_sum.data());
  const Merged merged = merge_on_device(all, {}, spec.dtype, TESSERA_F32, false);

  const FmhaOutputs whole = run_device(FmhaProblem(spec));
  EXPECT_EQ(std::memcmp(whole.o.data(), merged.o.data(), merged.o.size()), 0);
  EXPECT_EQ(std::memcmp(whole.lse.data(), merged.lse.data(), merged.lse.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace tessera::test
