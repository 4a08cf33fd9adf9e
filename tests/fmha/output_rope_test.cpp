// The last dims of finished rows turned back by the angles of their positions (R12): every CPU kernel against the
// oracle, and both against the rows that the same call gives without it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "fmha/conformance.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

FmhaSpec turned(int32_t head_dim_v, int32_t rotary_dim, int64_t q, int64_t k) {
  FmhaSpec spec;
  spec.head_dim_qk = 24;
  spec.head_dim_v = head_dim_v;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  spec.o_rope_dims = rotary_dim;
  return one_sequence(spec, q, k);
}

std::vector<float> floats_of(const RowBytes& row) {
  std::vector<float> values(row.o.size() / sizeof(float));
  std::memcpy(values.data(), row.o.data(), row.o.size());
  return values;
}

TEST(OutputRope, TurnsTheLastDimsOfARowAndLeavesTheOthers) {
  const FmhaSpec spec = turned(40, 12, 5, 90);
  FmhaSpec straight = spec;
  straight.o_rope_dims = 0;
  const FmhaProblem problem(spec);
  const FmhaProblem plain(straight);
  FmhaOutputs got = run_kernel("", problem);
  const FmhaOutputs from = run_kernel("", plain);
  const tessera_output_rope rope = problem.params(&got).o_rope;
  for (int64_t token = 0; token < 5; ++token) {
    for (int64_t head = 0; head < spec.heads_q; ++head) {
      const std::vector<float> x = floats_of(plain.row(from, 0, token, head));
      const std::vector<float> y = floats_of(problem.row(got, 0, token, head));
      for (size_t d = 0; d < 28; ++d) EXPECT_EQ(y[d], x[d]);
      for (size_t i = 0; i < 6; ++i) {
        const size_t at = static_cast<size_t>(rope.positions[token]) * 6 + i;
        const float c = rope.cos_table[at];
        const float s = rope.sin_table[at];
        const float x0 = x[28 + 2 * i];
        const float x1 = x[29 + 2 * i];
        EXPECT_EQ(y[28 + 2 * i], std::fma(x0, c, x1 * s));
        EXPECT_EQ(y[29 + 2 * i], std::fma(x1, c, -(x0 * s)));
      }
      EXPECT_EQ(problem.row(got, 0, token, head).lse, plain.row(from, 0, token, head).lse);
    }
  }
}

TEST(OutputRope, EveryKernelHasTheOraclesBytes) {
  for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
    for (const auto& [dims, rotary] : {std::pair{24, 24}, {40, 2}, {128, 64}, {512, 64}}) {
      FmhaSpec spec = turned(dims, rotary, 3, 70);
      spec.dtype = spec.o_dtype = dtype;
      expect_oracle_bytes(spec);
    }
  }
}

TEST(OutputRope, RowsWithoutKeysOrWithAnInfiniteSinkStayZero) {
  FmhaSpec spec = turned(24, 8, 5, 4);  // the first row sees no key
  spec.heads_q = 8;
  spec.sinks = {0.0f, 0.5f, -kInf, kInf, 200.0f, -104.0f, -1e4f, 3e38f};
  expect_oracle_bytes(spec);
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_kernel("", problem);
  EXPECT_EQ(floats_of(problem.row(out, 0, 0, 1)), std::vector<float>(24, 0.0f));
  EXPECT_EQ(floats_of(problem.row(out, 0, 4, 3)), std::vector<float>(24, 0.0f));
  EXPECT_NE(floats_of(problem.row(out, 0, 4, 1)), std::vector<float>(24, 0.0f));
}

TEST(OutputRope, SplitCallsTurnAsUnsplitOnesDo) {
  expect_oracle_bytes(turned(64, 64, 1, 3 * 2048 + 5), 6);
}

TEST(OutputRope, PackedTokensHaveTheirOwnPositions) {
  FmhaSpec spec = turned(32, 16, 1, 60);
  spec.q_lengths = {3, 0, 5};
  spec.segments[0].lengths = {60, 0, 9};
  const FmhaProblem batched(spec);
  const FmhaOutputs want = run_kernel("", batched);
  spec.packed_q = true;
  spec.slot_padding = 2;
  expect_oracle_bytes(spec);
  const FmhaProblem packed(spec);
  const FmhaOutputs got = run_kernel("", packed);
  for (const auto& [sequence, token] : {std::pair<int64_t, int64_t>{0, 0}, {0, 2}, {2, 0}, {2, 4}}) {
    EXPECT_TRUE(batched.row(want, sequence, token, 1) == packed.row(got, sequence, token, 1)) << sequence << token;
  }
}

TEST(OutputRope, IsOffForCallersWhoseStructEndsBeforeIt) {
  FmhaSpec spec = turned(24, 8, 2, 30);
  const FmhaProblem problem(spec);
  FmhaOutputs out = problem.make_outputs();
  tessera_fmha_params p = problem.params(&out);
  p.struct_size = offsetof(tessera_fmha_params, o_rope);
  tessera_error error{};
  size_t bytes = 0;
  ASSERT_EQ(tessera_fmha_workspace_size(&p, 1, &bytes, &error), TESSERA_OK) << error.text;
  std::vector<char> memory(bytes + 64);
  void* workspace = memory.data();
  size_t space = memory.size();
  ASSERT_NE(std::align(64, bytes, workspace, space), nullptr);
  ASSERT_EQ(tessera_fmha_run(&p, workspace, bytes, nullptr, &error), TESSERA_OK) << error.text;
  spec.o_rope_dims = 0;
  const FmhaProblem plain(spec);
  EXPECT_TRUE(problem.row(out, 0, 1, 2) == plain.row(run_kernel("", plain), 0, 1, 2));
}

struct Refusal {
  const char* sentence;
  void (*change)(tessera_fmha_params& p);
};

TEST(OutputRope, RefusalsNameTheFieldAndWriteNothing) {
  const Refusal list[] = {
      {"o_rope.cos_table: got NULL", [](tessera_fmha_params& p) { p.o_rope.cos_table = nullptr; }},
      {"o_rope.sin_table: got NULL", [](tessera_fmha_params& p) { p.o_rope.sin_table = nullptr; }},
      {"o_rope.positions: got NULL", [](tessera_fmha_params& p) { p.o_rope.positions = nullptr; }},
      {"o_rope.rotary_dim: got 0 of 24", [](tessera_fmha_params& p) { p.o_rope.rotary_dim = 0; }},
      {"o_rope.rotary_dim: got 7 of 24", [](tessera_fmha_params& p) { p.o_rope.rotary_dim = 7; }},
      {"o_rope.rotary_dim: got 26 of 24", [](tessera_fmha_params& p) { p.o_rope.rotary_dim = 26; }},
      {"o_rope.num_positions: got 0", [](tessera_fmha_params& p) { p.o_rope.num_positions = 0; }},
      {"o_rope.positions[0]: got ", [](tessera_fmha_params& p) { p.o_rope.num_positions = 1; }},
  };
  for (const Refusal& refusal : list) {
    FmhaSpec spec = turned(24, 8, 2, 30);
    spec.seed = 2;
    const FmhaProblem problem(spec);
    FmhaOutputs out = problem.make_outputs();
    const std::vector<uint8_t> before = out.o;
    tessera_fmha_params p = problem.params(&out);
    ASSERT_GT(p.o_rope.positions[0], 0);
    refusal.change(p);
    tessera_error error{};
    std::vector<double> workspace(1 << 16);
    void* aligned = workspace.data();
    size_t space = workspace.size() * sizeof(double);
    ASSERT_NE(std::align(64, space / 2, aligned, space), nullptr);
    EXPECT_EQ(tessera_fmha_run(&p, aligned, space, nullptr, &error), TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.text).rfind(refusal.sentence, 0), 0u) << error.text;
    EXPECT_EQ(out.o, before);
  }
}

}  // namespace
}  // namespace tessera::test
