// Inputs that broke other attention libraries, each under its name in docs/cases.md: the letter of
// the family, a number, and what went wrong elsewhere. Here they are small versions with the same cause. Compiled
// twice: for the CPU kernels and, as cuda_cases_test, for those of a GPU; cases.h has what differs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fmha/cases.h"
#include "fmha/conformance.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr const char* kNoSuchHeadDim = "this device has no kernel of that head dim";

// Row (sequence, token 0) of every head is the same in both problems.
void expect_same_row(const FmhaSpec& a, int64_t sequence_a, const FmhaSpec& b, int64_t sequence_b, int64_t token_a = 0,
                     int64_t token_b = 0) {
  const FmhaProblem problem_a(a);
  const FmhaProblem problem_b(b);
  const FmhaOutputs out_a = run_case(problem_a, 2);
  const FmhaOutputs out_b = run_case(problem_b, 1);
  for (int64_t h = 0; h < a.heads_q; ++h) {
    EXPECT_EQ(problem_a.row(out_a, sequence_a, token_a, h), problem_b.row(out_b, sequence_b, token_b, h))
        << "head " << h;
  }
}

struct Exact {
  std::vector<double> o;
  double lse;
};

// One row in float64, masks and sink included.
Exact exact_row(const FmhaProblem& p, int64_t sequence, int64_t token, int64_t head) {
  const FmhaSpec& s = p.spec();
  const int64_t kv_head = head / (s.heads_q / s.heads_kv);
  std::vector<double> scores;
  std::vector<int64_t> keys;
  double top = -kInf;
  for (int64_t j = 0; j < s.segments[0].lengths[static_cast<size_t>(sequence)]; ++j) {
    if (!p.visible(0, sequence, token, head, j)) continue;
    double dot = 0.0;
    for (int64_t d = 0; d < s.head_dim_qk; ++d) {
      dot += static_cast<double>(p.q_value(sequence, token, head, d)) * p.k_value(0, sequence, j, kv_head, d);
    }
    scores.push_back(dot * s.scale);
    keys.push_back(j);
    top = std::max(top, scores.back());
  }
  Exact row{std::vector<double>(static_cast<size_t>(s.head_dim_v), 0.0), -kInf};
  if (keys.empty()) return row;
  double sum = 0.0;
  for (size_t t = 0; t < keys.size(); ++t) {
    const double weight = std::exp(scores[t] - top);
    sum += weight;
    for (size_t d = 0; d < row.o.size(); ++d) {
      row.o[d] += weight * p.v_value(0, sequence, keys[t], kv_head, static_cast<int64_t>(d));
    }
  }
  row.lse = top + std::log(sum);
  const double sink = s.sinks.empty() ? -kInf : s.sinks[static_cast<size_t>(head)];
  const double denominator = sum + std::exp(sink - top);
  for (double& x : row.o) x /= denominator;
  return row;
}

// Bytes of the oracle, and near the float64 result (fp32 outputs).
void expect_exact(FmhaSpec spec, double tolerance = 2e-5) {
  expect_case_bytes(spec);
  spec.o_dtype = TESSERA_F32;
  tolerance = case_tolerance(spec.dtype, tolerance);
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_case(problem, 2);
  for (int64_t b = 0; b < static_cast<int64_t>(spec.q_lengths.size()); ++b) {
    for (int64_t i = 0; i < spec.q_lengths[static_cast<size_t>(b)]; ++i) {
      for (int64_t h = 0; h < spec.heads_q; ++h) {
        const Exact expected = exact_row(problem, b, i, h);
        const RowBytes row = problem.row(out, b, i, h);
        for (size_t d = 0; d < expected.o.size(); ++d) {
          float x = 0.0f;
          std::memcpy(&x, &row.o[d * 4], 4);
          ASSERT_NEAR(x, expected.o[d], tolerance) << "sequence " << b << " token " << i << " head " << h;
        }
        if (std::isfinite(expected.lse)) {
          ASSERT_NEAR(row.lse, expected.lse, std::max(kLseTolerance, std::fabs(expected.lse) * 1e-6));
        } else {
          ASSERT_EQ(row.lse, -kInf);
        }
      }
    }
  }
}

void expect_empty_row(const FmhaProblem& problem, const FmhaOutputs& out, int64_t sequence, int64_t token) {
  for (int64_t h = 0; h < problem.spec().heads_q; ++h) {
    const RowBytes row = problem.row(out, sequence, token, h);
    EXPECT_EQ(row.o, std::vector<uint8_t>(row.o.size(), 0)) << "O is +0";
    EXPECT_EQ(row.lse, -kInf);
  }
}

// ---------------------------------------------------------------- A: batch variance

TEST_F(CasesA, A1_DecodeRowBesideAPrefillThatGrowsByOneToken) {
  const FmhaSpec spec = paged(heads(14, 2, 64), 16);
  const FmhaSpec nine = batch(spec, {1, 9}, {1980, 9}, {1, 2});
  const FmhaSpec ten = batch(spec, {1, 10}, {1980, 10}, {1, 2});
  expect_same_row(nine, 0, ten, 0);
  expect_same_row(nine, 0, batch(paged(spec, 128), {1, 9}, {1980, 9}, {1, 2}), 0);
}

TEST_F(CasesA, A2_DecodeRowAloneAndBesideALongPrefill) {
  const FmhaSpec spec = paged(heads(8, 2, 128), 16);
  expect_same_row(batch(spec, {1}, {700}, {5}), 0, batch(spec, {129, 1}, {129, 700}, {9, 5}), 1);
}

TEST_F(CasesA, A4_TileNeverFollowsTheAverageQueryLength) {
  const FmhaSpec spec = heads(8, 4, 64);
  const FmhaSpec alone = batch(spec, {40}, {40}, {3});
  expect_same_row(alone, 0, batch(spec, {40, 300}, {40, 300}, {3, 4}), 0);
  std::vector<int64_t> q(31, 1);
  std::vector<int64_t> k(31, 20);
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 31; ++i) ids.push_back(100 + i);
  q[30] = k[30] = 40;
  ids[30] = 3;
  expect_same_row(alone, 0, batch(spec, q, k, ids), 30, 39, 39);
}

TEST_F(CasesA, A5_SplitsDoNotFollowTheBatch) {
  for (const int32_t kv : {4, 2}) {
    FmhaSpec spec = heads(4, kv, 32);
    spec.packed_q = true;
    expect_same_row(batch(spec, {1}, {3000}, {1}), 0, batch(spec, {1, 7, 30}, {3000, 3500, 30}, {1, 2, 3}), 0);
  }
}

TEST_F(CasesA, A6_A22_A24_ManyRandomRowsAloneAndInBatches) {
  FmhaSpec spec = heads(4, 2, 32, case_dtype());
  spec.q_amplitude = 0.01f;  // near-ties
  std::vector<int64_t> q(128, 1);
  std::vector<int64_t> k;
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 128; ++i) {
    k.push_back(static_cast<int64_t>(1 + i * 37 % 600));
    ids.push_back(i);
  }
  const FmhaProblem crowd(batch(spec, q, k, ids));
  const FmhaOutputs all = run_case(crowd, 3);
  for (size_t i = 0; i < 128; ++i) {
    const FmhaProblem alone(batch(spec, {1}, {k[i]}, {i}));
    const FmhaOutputs one = run_case(alone);
    for (int64_t h = 0; h < 4; ++h) {
      EXPECT_EQ(alone.row(one, 0, 0, h), crowd.row(all, static_cast<int64_t>(i), 0, h)) << i;
    }
  }
}

TEST_F(CasesA, A8_LatentAttentionRowsInAnyBatch) {
  if (!case_takes_head_dim(576)) GTEST_SKIP() << kNoSuchHeadDim;
  FmhaSpec spec = heads(16, 1, 576, case_dtype());
  spec.head_dim_v = 512;
  spec.segments[0].v_is_k = true;
  for (const int64_t k : {1, 100, 400}) {
    expect_same_row(batch(spec, {1}, {k}, {1}), 0, batch(spec, {1, 1, 1}, {33, k, 70}, {7, 1, 8}), 1);
  }
}

TEST_F(CasesA, A11_A12_SplitCountsAndWindows) {
  for (const int64_t window : {-1, 127, 2000}) {
    FmhaSpec spec = batch(heads(4, 1, 64), {1}, {8192}, {1});
    spec.segments[0].window_left = window;
    const FmhaProblem problem(spec);
    const FmhaOutputs expected = run_case(problem, 1);
    for (const int32_t threads : {2, 3, 8, 64}) {
      EXPECT_EQ(first_difference(problem, expected, run_case(problem, threads)), "") << threads;
    }
  }
}

TEST_F(CasesA, A14_SinksAndAlternatingWindowsInBatchesOf6And10) {
  for (const int64_t window : {-1, 127}) {
    FmhaSpec spec = heads(64, 8, 64);
    spec.segments[0].window_left = window;
    for (int h = 0; h < 64; ++h) spec.sinks.push_back(static_cast<float>(h % 5) - 2.0f);
    std::vector<int64_t> q(10, 1);
    std::vector<int64_t> k = {300, 20, 150, 129, 128, 1, 260, 7, 90, 200};
    const std::vector<uint64_t> ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const FmhaSpec ten = batch(spec, q, k, ids);
    q.resize(6);
    k.resize(6);
    const FmhaSpec six = batch(spec, q, k, {0, 1, 2, 3, 4, 5});
    for (int64_t b = 0; b < 6; ++b) expect_same_row(six, b, ten, b);
  }
}

TEST_F(CasesA, A17_A19_PrefixCacheHitsAtAnyLength) {
  for (const int64_t t : {2, 17, 63, 64, 65, 127, 128, 129, 1339}) {
    const FmhaSpec spec = heads(6, 2, 32);
    FmhaSpec last = batch(spec, {1}, {t}, {1});
    last.q_first = {t - 1};
    expect_same_row(batch(spec, {t}, {t}, {1}), 0, last, 0, t - 1, 0);
  }
}

TEST_F(CasesA, A20_VerifyingFourTokensEqualsFourDecodes) {
  const FmhaSpec spec = heads(6, 2, 64);
  const FmhaSpec four = batch(spec, {4}, {1003}, {1});
  for (int64_t i = 0; i < 4; ++i) {
    FmhaSpec one = batch(spec, {1}, {1000 + i}, {1});
    one.q_first = {i};
    expect_same_row(four, 0, one, 0, i, 0);
  }
}

TEST_F(CasesA, G27_ABatchCutIntoSeveralCalls) {
  const FmhaSpec spec = heads(4, 2, 32);
  std::vector<int64_t> q(38, 1);
  std::vector<int64_t> k;
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 38; ++i) {
    k.push_back(static_cast<int64_t>(1 + i * 13 % 90));
    ids.push_back(i);
  }
  const FmhaSpec all = batch(spec, q, k, ids);
  const auto part = [&](size_t begin, size_t end) {
    const auto cut = [&](const auto& v) {
      return std::decay_t<decltype(v)>(v.begin() + static_cast<std::ptrdiff_t>(begin),
                                       v.begin() + static_cast<std::ptrdiff_t>(end));
    };
    return batch(spec, cut(q), cut(k), cut(ids));
  };
  for (int64_t b : {0, 13}) expect_same_row(all, b, part(0, 14), b);
  for (int64_t b : {14, 37}) expect_same_row(all, b, part(14, 38), b - 14);
}

// ---------------------------------------------------------------- B: splits

TEST_F(CasesB, B2_B4_EveryRowOfEverySequenceIsWrittenWhenSplit) {
  FmhaSpec spec = paged(heads(4, 4, 64), 256);
  for (const std::vector<int64_t>& q : {std::vector<int64_t>{1, 1}, {3, 2}}) {
    spec.packed_q = q[0] > 1;
    expect_case_bytes(batch(spec, q, {3000, 2048}, {1, 2}), 8);
  }
}

TEST_F(CasesB, B5_SplitsFollowTheLengthOfTheirOwnSequence) {
  expect_case_bytes(batch(heads(2, 2, 32), {1, 1}, {64, 4096}, {1, 2}), 8);
}

TEST_F(CasesB, B8_ASinkCountsOnceWhenTheFirstPartsAreMasked) {
  FmhaSpec spec = batch(heads(4, 2, 64, case_dtype()), {1}, {4096}, {1});
  spec.segments[0].window_left = 500;
  spec.sinks = {0.0f, 2.0f, -1.0f, 5.0f};
  expect_exact(spec);
  spec.segments[0].q_positions = {10000};  // no key at all
  spec.segments[0].window_left = 10;
  expect_exact(spec);
}

TEST_F(CasesB, B14_B18_ChunkedPrefixesWithAnEmptyOne) {
  FmhaSpec spec = heads(4, 4, 32, case_dtype());
  SegmentSpec suffix = spec.segments[0];
  spec.segments[0].causal = 0;
  spec.segments[0].lengths = {0, 512, 37};
  suffix.lengths = {8, 8, 8};
  spec.segments.push_back(suffix);
  spec.q_lengths = {8, 8, 8};
  expect_case_bytes(spec);
}

TEST_F(CasesB, B19_SequencesWithoutKeysAreWritten) {
  const FmhaProblem problem(batch(heads(2, 2, 64), {1, 1, 1}, {0, 5, 0}, {1, 2, 3}));
  const FmhaOutputs out = run_case(problem, 2);
  expect_empty_row(problem, out, 0, 0);
  expect_empty_row(problem, out, 2, 0);
  expect_case_bytes(problem.spec());
}

TEST_F(CasesB, B20_SixteenSplitsOfALatentCache) {
  if (!case_takes_head_dim(576)) GTEST_SKIP() << kNoSuchHeadDim;
  FmhaSpec spec = batch(heads(4, 1, 576), {1}, {16 * 2048}, {1});
  spec.head_dim_v = 512;
  spec.segments[0].v_is_k = true;
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = case_oracle(problem);
  for (const int32_t threads : {1, 8, 16, 32}) {
    EXPECT_EQ(first_difference(problem, expected, run_case(problem, threads)), "") << threads;
  }
}

// ---------------------------------------------------------------- C: empty rows, extreme scores

TEST_F(CasesC, C1_LowScoresAreNotMasked) {
  FmhaSpec spec = batch(heads(16, 16, 64, case_dtype()), {1}, {64}, {1});
  spec.scale = 3000.0f;  // scores of magnitude 1e4 to 1e5
  spec.q_amplitude = 3.0f;
  expect_exact(spec, 5e-2);
}

TEST_F(CasesC, C4_MoreQueriesThanKeys) {
  const FmhaSpec spec = batch(heads(2, 1, 32), {96}, {48}, {1});
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_case(problem);
  for (int64_t i = 0; i < 48; ++i) expect_empty_row(problem, out, 0, i);
  expect_case_bytes(spec);
}

TEST_F(CasesC, C5_C13_C18_EmptyRowsInEveryShape) {
  for (const int64_t q : {1, 7, 40}) {
    for (const int32_t dim : {16, 64, 128, 256}) {
      FmhaSpec spec = batch(heads(4, 2, dim), {q, 1}, {0, 3}, {1, 2});
      spec.packed_q = true;
      const FmhaProblem problem(spec);
      const FmhaOutputs out = run_case(problem);
      for (int64_t i = 0; i < q; ++i) expect_empty_row(problem, out, 0, i);
      FmhaSpec masked = batch(heads(4, 2, dim), {q}, {50}, {1});
      masked.segments[0].mask = true;
      masked.segments[0].mask_visible_of_8 = 0;
      const FmhaProblem hidden(masked);
      const FmhaOutputs none = run_case(hidden);
      for (int64_t i = 0; i < q; ++i) expect_empty_row(hidden, none, 0, i);
    }
  }
}

TEST_F(CasesC, C6_C7_C10_EmptyRowsWithSinks) {
  FmhaSpec spec = batch(heads(6, 6, 32), {1}, {0}, {1});
  spec.segments[0].bound = 128;
  spec.sinks = {0.5f, 100.0f, -104.0f, -1e4f, kInf, -kInf};
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_case(problem);
  expect_empty_row(problem, out, 0, 0);
}

TEST_F(CasesC, C8_ASinkFarAboveEveryScore) {
  FmhaSpec spec = batch(heads(2, 2, 64, case_dtype()), {1}, {30}, {1});
  spec.sinks = {200.0f, 30.0f};
  expect_exact(spec);
}

TEST_F(CasesC, C10_SinksOfPlusAndMinusInfinity) {
  FmhaSpec spec = batch(heads(2, 2, 64, case_dtype()), {1}, {30}, {1});
  const FmhaProblem plain(spec);
  spec.sinks = {-kInf, kInf};
  const FmhaProblem sunk(spec);
  const FmhaOutputs without = run_case(plain);
  const FmhaOutputs with = run_case(sunk);
  EXPECT_EQ(plain.row(without, 0, 0, 0), sunk.row(with, 0, 0, 0)) << "-inf has no effect";
  EXPECT_EQ(sunk.row(with, 0, 0, 1).o, std::vector<uint8_t>(sunk.row(with, 0, 0, 1).o.size(), 0)) << "+inf gives 0";
  EXPECT_EQ(plain.row(without, 0, 0, 1).lse, sunk.row(with, 0, 0, 1).lse) << "the log-sum-exp excludes the sink";
}

TEST_F(CasesC, C11_FullyMaskedRowsWithSinksInWideHeads) {
  if (!case_takes_head_dim(512)) GTEST_SKIP() << kNoSuchHeadDim;
  FmhaSpec spec = batch(heads(2, 1, 512), {20}, {6}, {1});
  spec.sinks = {1.0f, -1.0f};
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_case(problem);
  for (int64_t i = 0; i < 14; ++i) expect_empty_row(problem, out, 0, i);
  expect_case_bytes(spec);
}

TEST_F(CasesC, C12_C14_FirstTilesMaskedLaterOnesNot) {
  FmhaSpec spec = batch(heads(4, 2, 64, case_dtype()), {3}, {400}, {1});
  spec.segments[0].window_left = 100;  // the first two granules are hidden
  expect_exact(spec);
}

TEST_F(CasesC, C15_WindowsThatAreMultiplesOf256) {
  for (const int64_t keys : {256, 221}) {
    FmhaSpec spec = batch(heads(4, 2, 128, case_dtype()), {1}, {700}, {1});
    spec.segments[0].window_left = keys - 1;
    expect_exact(spec);
  }
}

TEST_F(CasesC, C16_VeryNegativeLogSumExp) {
  for (const int64_t k : {64, 192, 320}) {
    FmhaSpec spec = batch(heads(1, 1, 16, case_dtype()), {1}, {k}, {1});
    spec.sinks = {0.0f};
    spec.q_amplitude = 400.0f;
    expect_exact(spec, 1e-3);
  }
}

// ---------------------------------------------------------------- D: see memory_test.cpp; E: sizes, see also
// cases_host_test.cpp

TEST_F(CasesE, E12_E13_MoreThan65535SequencesAndHeads) {
  FmhaSpec many = heads(1, 1, 4, case_dtype());
  many.q_lengths.assign(65536 + 3, 1);
  many.segments[0].lengths.assign(65536 + 3, 2);
  const FmhaProblem problem(many);
  EXPECT_EQ(first_difference(problem, case_oracle(problem), run_case(problem, 2)), "");
  FmhaSpec wide = batch(heads(65536, 65536, 4, case_dtype()), {1}, {3}, {1});
  const FmhaProblem wide_problem(wide);
  EXPECT_EQ(first_difference(wide_problem, case_oracle(wide_problem), run_case(wide_problem, 2)), "");
}

TEST_F(CasesE, E17_E20_LongContextInBatches) {
  const FmhaSpec spec = heads(1, 1, 8);
  expect_same_row(batch(spec, {2}, {70000}, {1}), 0, batch(spec, {2, 2, 2}, {100, 70000, 5000}, {2, 1, 3}), 1);
  expect_case_bytes(batch(spec, {1}, {70000}, {1}), 2);
}

// ---------------------------------------------------------------- F: masks, windows, pages

TEST_F(CasesF, F1_WindowWithoutCausalMask) {
  FmhaSpec spec = paged(batch(heads(4, 1, 64, TESSERA_F16), {150}, {1200}, {1}), 16);
  spec.segments[0].causal = 0;
  spec.segments[0].window_left = 333;
  expect_exact(spec);
}

TEST_F(CasesF, F4_WindowsCountTheQuerysOwnToken) {
  for (const int64_t keys : {1, 2, 128, 129}) {
    FmhaSpec spec = batch(heads(1, 1, 16, case_dtype()), {1}, {300}, {1});
    spec.segments[0].window_left = keys - 1;
    spec.scale = 1e-20f;  // all weights are 1: the log-sum-exp counts the keys
    const FmhaProblem problem(spec);
    const RowBytes row = problem.row(run_case(problem), 0, 0, 0);
    EXPECT_NEAR(std::exp(row.lse), static_cast<double>(keys), static_cast<double>(keys) * 1e-5);
  }
}

TEST_F(CasesF, F7_NineKeysEightQueriesGroupOfSeven) {
  expect_exact(paged(batch(heads(14, 2, 64, TESSERA_F16), {8}, {9}, {1}), 16));
}

TEST_F(CasesF, F8_F12_PagesOfAnySize) {
  for (const int32_t page : {1, 2, 16, 17, 48, 256, 512, 1024}) {
    expect_exact(paged(batch(heads(2, 1, 32, case_dtype()), {1, 5}, {2100, 40}, {1, 2}), page));
  }
}

TEST_F(CasesF, F9_TwoSequencesShorterThanAPage) {
  expect_exact(paged(batch(heads(32, 8, 64, case_dtype()), {1, 1}, {1, 1}, {1, 2}), 2));
}

TEST_F(CasesF, F10_DifferentHeadDimsWithLargePages) {
  for (const int32_t page : {64, 256}) {
    for (const int64_t k : {100, 300}) {
      FmhaSpec spec = paged(batch(heads(4, 4, 192, case_dtype()), {1}, {k}, {1}), page);
      spec.head_dim_v = 128;
      expect_exact(spec);
    }
  }
}

TEST_F(CasesF, F14_F15_ZeroLengthsInLatentAndRaggedBatches) {
  if (case_takes_head_dim(576)) {
    FmhaSpec latent = batch(heads(16, 1, 576), {1, 1, 1}, {0, 12, 0}, {1, 2, 3});
    latent.head_dim_v = 512;
    latent.segments[0].v_is_k = true;
    expect_case_bytes(latent);
  }
  FmhaSpec ragged = batch(heads(4, 2, 32), {4, 3, 7}, {4, 0, 7}, {1, 2, 3});
  ragged.packed_q = true;
  ragged.segments[0].layout = KvLayout::kPacked;
  expect_case_bytes(ragged);
}

TEST_F(CasesF, F16_RaggedSequencesInPaddedSlots) {
  FmhaSpec spec = batch(heads(2, 1, 32, case_dtype()), {3, 2, 4}, {3, 2, 4}, {1, 2, 3});
  spec.packed_q = true;
  spec.slot_padding = 2;
  expect_exact(spec);
}

TEST_F(CasesF, F18_WindowsOfTwoSequencesDoNotMeet) {
  FmhaSpec spec = batch(heads(2, 1, 32, case_dtype()), {1, 1}, {700, 650}, {1, 2});
  spec.segments[0].layout = KvLayout::kPacked;
  spec.segments[0].window_left = 511;
  expect_exact(spec);
}

TEST_F(CasesF, F23_FewerKeysThanATile) {
  expect_exact(paged(batch(heads(2, 2, 64, case_dtype()), {1}, {64}, {1}), 128));
}

TEST_F(CasesF, F25_F27_MasksSharedByHeadsInOneOrTwoCalls) {
  FmhaSpec spec = batch(heads(4, 2, 32, case_dtype()), {1, 1, 1, 1}, {200, 200, 100, 30}, {1, 2, 3, 4});
  spec.segments[0].mask = true;
  expect_exact(spec);
  FmhaSpec whole = batch(heads(2, 1, 32, case_dtype()), {100}, {100}, {1});
  whole.segments[0].mask = true;
  FmhaSpec second = batch(whole, {40}, {100}, {1});
  second.q_first = {60};
  expect_same_row(whole, 0, second, 0, 77, 17);
}

TEST_F(CasesF, F26_ChunkedLocalAttentionInPages) {
  FmhaSpec spec = paged(heads(4, 2, 32), 16);
  std::vector<int64_t> q(32, 1);
  std::vector<int64_t> k(32, 300);
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 32; ++i) ids.push_back(i);
  spec = batch(spec, q, k, ids);
  spec.segments[0].window_left = 43;
  spec.segments[0].unlisted_pages = true;
  spec.segments[0].poison_masked = true;
  expect_case_bytes(spec);
}

TEST_F(CasesF, F28_CachedPrefixPagesAndATailToken) {
  const FmhaSpec spec = paged(heads(4, 2, 128), 16);
  FmhaSpec reuse = batch(spec, {1}, {97}, {1});
  reuse.q_first = {96};
  expect_same_row(batch(spec, {97}, {97}, {1}), 0, reuse, 0, 96, 0);
}

// ---------------------------------------------------------------- G: layouts, groups, precision

TEST_F(CasesG, G1_G3_StridesOfASecondCallAreItsOwn) {
  FmhaSpec spec = batch(heads(8, 4, 256), {20}, {20}, {1});
  expect_case_bytes(spec);
  spec.head_major = true;
  expect_case_bytes(spec);
  spec.segments[0].head_major = true;
  expect_case_bytes(spec);
}

TEST_F(CasesG, G5_PoolsSlicedFromALargerTensor) {
  if (!case_takes_head_dim(576)) GTEST_SKIP() << kNoSuchHeadDim;
  FmhaSpec spec = paged(batch(heads(4, 1, 576), {1}, {50}, {1}), 16);
  spec.head_dim_v = 512;
  spec.segments[0].v_is_k = true;
  spec.segments[0].row_padding = 80;
  expect_case_bytes(spec);
}

TEST_F(CasesG, G10_EveryGroupSize) {
  for (int32_t group = 1; group <= 16; ++group) {
    expect_case_bytes(batch(heads(group, 1, 16), {2}, {20}, {1}));
  }
  for (const int32_t group : {20, 32, 64, 128}) expect_case_bytes(batch(heads(group, 1, 16), {1}, {20}, {1}));
}

TEST_F(CasesG, G11_EveryHeadDimRuns) {
  for (const int32_t dim : {56, 64, 72, 80, 88, 96, 112, 128, 160, 192, 224, 256, 320, 512}) {
    if (case_takes_head_dim(dim)) expect_case_bytes(batch(heads(2, 1, dim), {3}, {20}, {1}));
  }
}

TEST_F(CasesG, G17_G21_LongSumsKeepFp32Precision) {
  FmhaSpec spec = batch(heads(1, 1, 16, TESSERA_F16), {1}, {65536}, {1});
  expect_exact(spec, 1e-5);
}

TEST_F(CasesG, G20_FewQueryTokensUseTheSameBits) {
  const FmhaSpec spec = heads(6, 2, 64);
  const FmhaSpec five = batch(spec, {5}, {200}, {1});
  for (int64_t q = 1; q <= 4; ++q) {
    FmhaSpec fewer = batch(spec, {q}, {200}, {1});
    fewer.q_first = {5 - q};
    expect_same_row(five, 0, fewer, 0, 4, q - 1);
  }
}

TEST_F(CasesG, G22_LayoutsAreDescribedByStrides) {
  FmhaSpec spec;
  spec = heads(6, 6, 64, TESSERA_F16);
  spec.q_lengths = {28, 28, 28, 28};
  spec.segments[0].lengths = {28, 28, 28, 28};
  expect_exact(spec);
  spec.head_major = spec.segments[0].head_major = true;
  expect_exact(spec);
}

}  // namespace
}  // namespace tessera::test
