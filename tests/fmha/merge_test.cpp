// tessera_fmha_merge and split-KV (R8): states of chunk ranges, merged in order, equal the unsplit call.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fmha/conformance.h"
#include "oracle/oracle.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// States of (num_states, rows, heads, dim) and room for the result.
struct Merge {
  int64_t num_states;
  int64_t rows;
  int32_t heads;
  int32_t dim;
  std::vector<float> o_states, max_states, sum_states;
  std::vector<uint8_t> o;
  std::vector<float> lse, row_max, row_sum;
  std::vector<float> sinks;
  tessera_output_rope rope{};
  tessera_dtype dtype = TESSERA_F32;
  tessera_dtype o_dtype = TESSERA_F32;
  bool unnormalized = false;

  Merge(int64_t states, int64_t rows_in, int32_t heads_in, int32_t dim_in)
      : num_states(states), rows(rows_in), heads(heads_in), dim(dim_in) {
    const size_t scalars = static_cast<size_t>(states * rows * heads);
    o_states.resize(scalars * static_cast<size_t>(dim));
    max_states.assign(scalars, -kInf);
    sum_states.assign(scalars, 0.0f);
    o.assign(static_cast<size_t>(rows * heads * dim) * 4, 0xff);
    lse.assign(static_cast<size_t>(rows * heads), 7.0f);
    row_max = row_sum = lse;
  }

  tessera_merge_params params() {
    tessera_merge_params p{};
    p.struct_size = sizeof(p);
    p.dtype = dtype;
    p.o_dtype = o_dtype;
    p.head_dim_qk = p.head_dim_v = dim;
    p.num_heads_q = heads;
    p.num_rows = rows;
    p.num_states = num_states;
    p.o_states = {o_states.data(), rows * heads * dim, int64_t{heads} * dim, dim, 1};
    p.row_max_log2_states = {max_states.data(), rows * heads, heads, 1};
    p.row_sum_states = {sum_states.data(), rows * heads, heads, 1};
    p.sinks = sinks.empty() ? nullptr : sinks.data();
    p.output_mode = unnormalized ? TESSERA_OUTPUT_UNNORMALIZED : TESSERA_OUTPUT_NORMALIZED;
    p.o = {o.data(), 0, int64_t{heads} * dim, dim, 1};
    p.lse_natural_no_sink = {lse.data(), 0, heads, 1};
    if (unnormalized) {
      p.row_max_log2 = {row_max.data(), 0, heads, 1};
      p.row_sum = {row_sum.data(), 0, heads, 1};
    }
    p.o_rope = rope;
    return p;
  }

  void run(const std::string& kernel = "", int32_t threads = 1) {
    tessera_merge_params p = params();
    if (!kernel.empty()) p.force_kernel = kernel.c_str();
    ShuffledExecutor executor(threads, 3);
    const tessera_stream stream{threads == 1 ? nullptr : executor.get(), nullptr};
    tessera_error error{};
    ASSERT_EQ(tessera_fmha_merge(&p, &stream, &error), TESSERA_OK) << error.text;
  }
};

FmhaSpec long_decode(int64_t keys) {
  FmhaSpec spec;
  spec.head_dim_qk = spec.head_dim_v = 24;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, 2, keys);
}

// Puts the state that `spec` yields into slot `slot`.
void add_state(FmhaSpec spec, Merge* merge, int64_t slot) {
  spec.unnormalized = true;
  spec.o_dtype = TESSERA_F32;
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_kernel("", problem);
  for (int64_t i = 0; i < merge->rows; ++i) {
    for (int64_t h = 0; h < merge->heads; ++h) {
      const RowBytes row = problem.row(out, 0, i, h);
      const size_t at = static_cast<size_t>((slot * merge->rows + i) * merge->heads + h);
      std::memcpy(&merge->o_states[at * static_cast<size_t>(merge->dim)], row.o.data(), row.o.size());
      merge->max_states[at] = row.row_max;
      merge->sum_states[at] = row.row_sum;
    }
  }
}

std::vector<uint8_t> whole_output(const FmhaSpec& spec) {
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_kernel("", problem);
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < spec.q_lengths[0]; ++i) {
    for (int64_t h = 0; h < spec.heads_q; ++h) {
      const RowBytes row = problem.row(out, 0, i, h);
      bytes.insert(bytes.end(), row.o.begin(), row.o.end());
    }
  }
  return bytes;
}

TEST(Merge, ChunksMergedInOrderEqualTheWhole) {
  FmhaSpec spec = long_decode(5 * 2048 + 100);
  Merge merge(6, 2, 4, 24);
  for (int64_t c = 0; c < 6; ++c) {
    spec.chunk_begin = c;
    spec.chunk_end = c + 1;
    add_state(spec, &merge, c);
  }
  merge.run();
  EXPECT_EQ(merge.o, whole_output(long_decode(5 * 2048 + 100)));
}

TEST(Merge, TurnsFinishedRowsAsTheWholeCallDoes) {
  FmhaSpec spec = long_decode(2 * 2048 + 100);
  Merge merge(3, 2, 4, 24);
  for (int64_t c = 0; c < 3; ++c) {
    spec.chunk_begin = c;
    spec.chunk_end = c + 1;
    add_state(spec, &merge, c);
  }
  FmhaSpec whole = long_decode(2 * 2048 + 100);
  whole.o_rope_dims = 10;
  const FmhaProblem problem(whole);
  FmhaOutputs out = problem.make_outputs();
  merge.rope = problem.params(&out).o_rope;
  merge.run();
  const std::vector<uint8_t> turned = merge.o;
  EXPECT_EQ(turned, whole_output(whole));
  merge.rope = {};
  merge.run();
  EXPECT_NE(turned, merge.o);
}

TEST(Merge, PrefixOfASuperchunkAndSingleChunksEqualTheWhole) {
  FmhaSpec spec = long_decode(6 * 2048 - 1);
  Merge merge(3, 2, 4, 24);
  int64_t slot = 0;
  for (const auto& [begin, end] : {std::pair{0, 4}, {4, 5}, {5, 6}}) {
    spec.chunk_begin = begin;
    spec.chunk_end = end;
    add_state(spec, &merge, slot++);
  }
  merge.run();
  EXPECT_EQ(merge.o, whole_output(long_decode(6 * 2048 - 1)));
}

TEST(Merge, SuperchunksMergedInOrderEqualTheWhole) {
  FmhaSpec spec = long_decode(35 * 2048 + 3);
  Merge merge(3, 2, 4, 24);
  for (int64_t s = 0; s < 3; ++s) {
    spec.chunk_begin = s * 16;
    spec.chunk_end = s * 16 + 16;
    add_state(spec, &merge, s);
  }
  merge.run();
  EXPECT_EQ(merge.o, whole_output(long_decode(35 * 2048 + 3)));
}

TEST(Merge, SegmentsMergedInOrderEqualTheWhole) {
  FmhaSpec spec = long_decode(700);
  SegmentSpec second = spec.segments[0];
  second.lengths = {1300};
  spec.segments.push_back(second);
  spec.segments[0].causal = 0;
  const std::vector<uint8_t> expected = whole_output(spec);
  Merge merge(2, 2, 4, 24);
  // A segment keeps its content when it is called alone: the hash knows its place, so the other one is emptied.
  FmhaSpec first_only = spec;
  first_only.segments[1].lengths = {0};
  first_only.segments[1].bound = 0;
  add_state(first_only, &merge, 0);
  FmhaSpec second_only = spec;
  second_only.segments[0].lengths = {0};
  add_state(second_only, &merge, 1);
  merge.run();
  EXPECT_EQ(merge.o, expected);
}

TEST(Merge, SwappedOrderMovesBits) {  // negative control: the order belongs to the contract
  FmhaSpec spec = long_decode(3 * 2048);
  Merge merge(3, 2, 4, 24);
  for (int64_t c = 0; c < 3; ++c) {
    spec.chunk_begin = 2 - c;
    spec.chunk_end = 3 - c;
    add_state(spec, &merge, c);
  }
  merge.run();
  EXPECT_NE(merge.o, whole_output(long_decode(3 * 2048)));
}

TEST(Merge, EveryKernelEqualsTheOracle) {
  for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
    for (const bool unnormalized : {false, true}) {
      for (const int32_t dim : {1, 24, 64, 100, 576}) {
        Merge merge(5, 70, 3, dim);
        merge.dtype = dtype;
        merge.o_dtype = unnormalized ? TESSERA_F32 : dtype;
        merge.unnormalized = unnormalized;
        if (!unnormalized) merge.sinks = {0.5f, -kInf, 3.0f};
        for (size_t i = 0; i < merge.max_states.size(); ++i) {
          if (i % 7 == 3) continue;  // empty
          merge.max_states[i] = static_cast<float>(static_cast<int>(i * 37 % 151) - 75);
          merge.sum_states[i] = 1.0f + static_cast<float>(i % 13) * 0.37f;
        }
        for (size_t i = 0; i < merge.o_states.size(); ++i) {
          merge.o_states[i] = std::sin(static_cast<float>(i) * 0.7f) * 3.0f;
        }
        Merge expected = merge;
        const Status status = oracle_merge(Arithmetic::kCpuFma32, expected.params());
        ASSERT_TRUE(status.ok()) << status.text();
        for (const std::string& kernel : available_kernels(TESSERA_OP_MERGE)) {
          for (const int32_t threads : {1, 3}) {
            Merge actual = merge;
            actual.run(kernel, threads);
            EXPECT_EQ(actual.o, expected.o) << kernel << " dim " << dim;
            EXPECT_EQ(std::memcmp(actual.lse.data(), expected.lse.data(), actual.lse.size() * 4), 0) << kernel;
            EXPECT_EQ(std::memcmp(actual.row_max.data(), expected.row_max.data(), actual.row_max.size() * 4), 0);
            EXPECT_EQ(std::memcmp(actual.row_sum.data(), expected.row_sum.data(), actual.row_sum.size() * 4), 0);
          }
        }
      }
    }
  }
}

// Two empty states, whatever their O holds.
TEST(Merge, B11_B12_EmptyStatesGiveZeroAndMinusInfinity) {
  for (const float garbage : {0.0f, 5.0f, std::numeric_limits<float>::quiet_NaN(), kInf}) {
    Merge merge(2, 1, 1, 64);
    merge.o_states.assign(merge.o_states.size(), garbage);
    merge.run();
    EXPECT_EQ(merge.o, std::vector<uint8_t>(64 * 4, 0));
    EXPECT_EQ(merge.lse[0], -kInf);
    Merge state = merge;
    state.unnormalized = true;
    state.run();
    EXPECT_EQ(state.o, std::vector<uint8_t>(64 * 4, 0));
    EXPECT_EQ(state.row_max[0], -kInf);
    EXPECT_EQ(state.row_sum[0], 0.0f);
    EXPECT_FALSE(std::signbit(state.row_sum[0]));
  }
}

TEST(Merge, AnEmptyStateIsTheIdentity) {
  Merge with(3, 1, 1, 16);
  with.o_states.assign(with.o_states.size(), std::numeric_limits<float>::quiet_NaN());
  for (size_t d = 0; d < 16; ++d) with.o_states[16 + d] = static_cast<float>(d) - 3.0f;
  with.max_states[1] = 4.0f;
  with.sum_states[1] = 2.5f;
  with.unnormalized = true;
  with.run();
  EXPECT_EQ(std::memcmp(with.o.data(), &with.o_states[16], 64), 0);
  EXPECT_EQ(with.row_max[0], 4.0f);
  EXPECT_EQ(with.row_sum[0], 2.5f);
}

// The log-sum-exp is natural, says the name; two parts weighted by exp(lse) give the whole.
TEST(Merge, B15_LogSumExpIsNatural) {
  for (const int64_t prefix : {3072, 4096}) {
    FmhaSpec whole = long_decode(prefix + 64);
    whole.q_lengths = {1};
    const FmhaProblem problem(whole);
    const FmhaOutputs out = run_kernel("", problem);
    for (int64_t h = 0; h < 4; ++h) {
      double sum = 0.0;
      for (int64_t j = 0; j < prefix + 64; ++j) {
        double s = 0.0;
        for (int64_t d = 0; d < 24; ++d) {
          s += static_cast<double>(problem.q_value(0, 0, h, d)) * problem.k_value(0, 0, j, h / 2, d);
        }
        sum += std::exp(s * problem.spec().scale);
      }
      EXPECT_NEAR(problem.row(out, 0, 0, h).lse, std::log(sum), 1e-5);
    }
  }
}

TEST(Merge, FlushToZeroOfTheCallerDoesNotMatter) {
#if defined(__SSE2__)
  Merge merge(2, 1, 2, 5);
  for (size_t i = 0; i < merge.o_states.size(); ++i) merge.o_states[i] = 1e-40f * static_cast<float>(i + 1);
  merge.max_states.assign(merge.max_states.size(), 0.0f);
  merge.sum_states.assign(merge.sum_states.size(), 1.0f);
  for (const std::string& kernel : available_kernels(TESSERA_OP_MERGE)) {
    merge.run(kernel);
    const std::vector<uint8_t> expected = merge.o;
    EXPECT_NE(expected, std::vector<uint8_t>(expected.size(), 0)) << "subnormal values";
    merge.o.assign(merge.o.size(), 0xff);
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040u);  // FTZ, DAZ
    merge.run(kernel);
    const unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);
    EXPECT_EQ(after & 0xffc0u, (before | 0x8040u) & 0xffc0u) << "the caller's mode is restored";
    EXPECT_EQ(merge.o, expected) << kernel;
  }
#else
  GTEST_SKIP() << "no MXCSR on this machine";
#endif
}

// R9: a value that rounds to -0 of the output's dtype is written as +0.
TEST(Merge, TinyNegativeValuesOfSixteenBitsArePlusZero) {
  for (const tessera_dtype dtype : {TESSERA_F16, TESSERA_BF16}) {
    Merge merge(1, 1, 1, 19);
    merge.dtype = merge.o_dtype = dtype;
    for (float& x : merge.o_states) x = dtype == TESSERA_F16 ? -1e-9f : -1e-41f;
    merge.max_states.assign(1, 0.0f);
    merge.sum_states.assign(1, 1.0f);
    for (const std::string& kernel : available_kernels(TESSERA_OP_MERGE)) {
      merge.o.assign(merge.o.size(), 0xff);
      merge.run(kernel);
      EXPECT_EQ(std::vector<uint8_t>(merge.o.begin(), merge.o.begin() + 19 * 2), std::vector<uint8_t>(19 * 2, 0))
          << kernel;
    }
  }
}

// Partials in the order of ranks that a permutation gave, merged in the fixed order of their ranges.
TEST(Merge, B21_RankOrderDoesNotShow) {
  const std::vector<uint8_t> expected = whole_output(long_decode(8 * 2048));
  for (const int64_t ranks : {2, 4, 8}) {
    Merge merge(8, 2, 4, 24);
    for (int64_t i = 0; i < 8; ++i) {
      const int64_t chunk = (i * 3 + ranks) % 8;  // computed in another order, stored by chunk
      FmhaSpec spec = long_decode(8 * 2048);
      spec.chunk_begin = chunk;
      spec.chunk_end = chunk + 1;
      add_state(spec, &merge, chunk);
    }
    merge.run();
    EXPECT_EQ(merge.o, expected);
  }
}

}  // namespace
}  // namespace tessera::test
