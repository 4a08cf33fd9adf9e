// The promise itself: a row keeps its bits whatever surrounds it. These tests compare calls of one kernel with each
// other, so they hold even where the oracle is not asked.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fmha/conformance.h"

namespace tessera::test {
namespace {

// GQA 3, causal, lengths that are no multiples of anything.
FmhaSpec base(int64_t q, int64_t k) {
  FmhaSpec spec;
  spec.heads_q = 6;
  spec.heads_kv = 2;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, q, k);
}

std::vector<RowBytes> rows_of(const FmhaSpec& spec, int64_t sequence, const std::string& kernel = "",
                              int32_t threads = 1) {
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_kernel(kernel, problem, threads);
  std::vector<RowBytes> rows;
  for (int64_t i = 0; i < spec.q_lengths[static_cast<size_t>(sequence)]; ++i) {
    for (int64_t h = 0; h < spec.heads_q; ++h) rows.push_back(problem.row(out, sequence, i, h));
  }
  return rows;
}

TEST(Invariance, EveryKernelAndThreadCountGivesTheSameBytes) {
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{1, 3000}, {70, 1300}, {4, 20000}}) {
    FmhaSpec spec = base(q, k);
    spec.head_dim_qk = spec.head_dim_v = 32;
    const auto expected = rows_of(spec, 0, "cpu_fmha_portable");
    for (const std::string& kernel : available_kernels(TESSERA_OP_FMHA)) {
      for (const int32_t threads : {1, 2, 4, 16}) {
        EXPECT_EQ(rows_of(spec, 0, kernel, threads), expected) << kernel << " " << threads;
      }
    }
  }
}

TEST(Invariance, AloneOrAmongNeighbours) {
  for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
    for (const int64_t q : {1, 2, 17}) {
      FmhaSpec alone = base(q, 2100);
      alone.dtype = alone.o_dtype = dtype;
      alone.ids = {7};
      const auto expected = rows_of(alone, 0);
      for (const KvLayout layout : {KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged}) {
        FmhaSpec crowd = alone;
        crowd.q_lengths = {40, 1, q, 0, 3};
        crowd.ids = {1, 2, 7, 3, 4};
        crowd.packed_q = layout != KvLayout::kBatched;
        crowd.segments[0].lengths = {4200, 5, 2100, 64, 900};
        crowd.segments[0].layout = layout;
        EXPECT_EQ(rows_of(crowd, 2), expected);
        EXPECT_EQ(rows_of(crowd, 2, "", 3), expected);
      }
    }
  }
}

TEST(Invariance, ChunkedPrefillOfAnyChunkLength) {
  constexpr int64_t kTokens = 150;
  const auto whole = rows_of(base(kTokens, kTokens), 0);
  for (const int64_t chunk : {1, 7, 64, 63, 65, 129}) {
    for (int64_t first = 0; first < kTokens; first += chunk) {
      const int64_t count = std::min(chunk, kTokens - first);
      FmhaSpec part = base(count, first + count);
      part.q_first = {first};
      const auto rows = rows_of(part, 0);
      for (size_t r = 0; r < rows.size(); ++r) {
        ASSERT_EQ(rows[r], whole[static_cast<size_t>(first * part.heads_q) + r]) << "chunk " << chunk << " row " << r;
      }
    }
  }
}

TEST(Invariance, DecodeEqualsTheRowOfAPrefill) {
  for (const int64_t k : {16, 17, 128, 129, 2048, 2049, 2400}) {
    const auto prefill = rows_of(base(40, k), 0);
    FmhaSpec decode = base(1, k);
    decode.q_first = {39};
    const auto rows = rows_of(decode, 0);
    for (size_t h = 0; h < rows.size(); ++h) EXPECT_EQ(rows[h], prefill[39 * 6 + h]) << k;
  }
}

TEST(Invariance, PageSizeAndPageOrder) {
  for (const int64_t q : {1, 30}) {
    const auto expected = rows_of(base(q, 700), 0);
    for (const int32_t page : {1, 2, 16, 17, 48, 64, 128, 333}) {
      for (const uint64_t seed : {1u, 2u}) {
        FmhaSpec paged = base(q, 700);
        paged.segments[0].layout = KvLayout::kPaged;
        paged.segments[0].page_size = page;
        paged.segments[0].page_seed = seed;
        EXPECT_EQ(rows_of(paged, 0), expected) << page << " " << seed;
      }
    }
  }
}

TEST(Invariance, Strides) {
  for (const int64_t q : {1, 30}) {
    const auto expected = rows_of(base(q, 300), 0);
    for (const bool q_major : {false, true}) {
      for (const bool k_major : {false, true}) {
        FmhaSpec spec = base(q, 300);
        spec.head_major = q_major;
        spec.row_padding = 7;
        spec.segments[0].head_major = k_major;
        spec.segments[0].row_padding = 13;
        EXPECT_EQ(rows_of(spec, 0), expected);
      }
    }
  }
}

TEST(Invariance, HeadsOfAGroupTogetherOrApart) {
  FmhaSpec spec = base(5, 500);
  spec.heads_q = 12;
  spec.heads_kv = 1;
  const auto together = rows_of(spec, 0);
  const FmhaProblem problem(spec);
  FmhaOutputs out = problem.make_outputs();
  const tessera_fmha_params all = problem.params(&out);
  std::vector<uint8_t> workspace(1 << 22);
  void* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
  for (int32_t h = 0; h < 12; ++h) {  // one head per call, through shifted pointers
    tessera_fmha_params one = all;
    one.num_heads_q = 1;
    one.q.data = static_cast<float*>(all.q.data) + h * all.q.stride_head;
    one.o.data = static_cast<float*>(all.o.data) + h * all.o.stride_head;
    one.lse_natural_no_sink.data = all.lse_natural_no_sink.data + h * all.lse_natural_no_sink.stride_head;
    tessera_error error{};
    ASSERT_EQ(tessera_fmha_run(&one, aligned, workspace.size() - 64, nullptr, &error), TESSERA_OK) << error.text;
  }
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t h = 0; h < 12; ++h) {
      EXPECT_EQ(problem.row(out, 0, i, h), together[static_cast<size_t>(i * 12 + h)]);
    }
  }
}

TEST(Invariance, FlushToZeroOfTheCallerDoesNotMatter) {
#if defined(__SSE2__)
  FmhaSpec spec = base(3, 60);
  spec.q_amplitude = 1e-38f;
  spec.scale = 1e38f;
  const auto expected = rows_of(spec, 0);
  const FmhaProblem problem(spec);
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040u);  // FTZ, DAZ
  const FmhaOutputs out = run_kernel("", problem);
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before);
  EXPECT_EQ(after & 0xffc0u, (before | 0x8040u) & 0xffc0u) << "the caller's mode is restored";
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t h = 0; h < 6; ++h) EXPECT_EQ(problem.row(out, 0, i, h), expected[static_cast<size_t>(i * 6 + h)]);
  }
#else
  GTEST_SKIP() << "no MXCSR on this machine";
#endif
}

// Negative controls: what the contract says may move bits does move them, so the comparisons above can fail.
TEST(Invariance, NegativeControls) {
  const auto expected = rows_of(base(1, 2100), 0);
  EXPECT_NE(rows_of(base(1, 1099), 0), expected) << "one key less";
  FmhaSpec wider = base(1, 2100);
  wider.segments[0].window_left = 1098;  // hides key 0 only
  EXPECT_NE(rows_of(wider, 0), expected) << "one masked key";
  FmhaSpec shifted = base(1, 2100);  // the same keys, indices moved by one behind a masked key
  shifted.segments[0].lengths = {1101};
  shifted.segments[0].first_key = ~uint64_t{0};
  shifted.segments[0].window_left = 1099;
  EXPECT_NE(rows_of(shifted, 0), expected) << "key indices are part of the contract";
  FmhaSpec split = base(1, 2100);  // the same keys as two segments
  split.segments.push_back(split.segments[0]);
  split.segments[0].lengths = {500};
  split.segments[1].lengths = {600};
  EXPECT_NE(rows_of(split, 0), expected);
}

}  // namespace
}  // namespace tessera::test
