// The attention cases of docs/cases.md that reach decode, at the sizes at which other libraries failed, on the decode
// kernel by name. cases_test.cpp has smaller ones of the same cause for every kernel.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/decode.h"
#include "fmha/cases.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class CasesDecode : public CudaTest {
 protected:
  static void expect_oracle(const FmhaSpec& spec) {
    SCOPED_TRACE(to_text(spec));
    const FmhaProblem problem(spec);
    const CudaRun run = run_cuda(kDecode, problem);
    ASSERT_EQ(run.status, TESSERA_OK) << run.text;
    EXPECT_EQ(run.damage, "");
    EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), run.out), "");
  }
  static void expect_rows(const std::vector<RowBytes>& expected, const FmhaSpec& spec, int64_t sequence,
                          const std::string& what) {
    ASSERT_FALSE(expected.empty());
    EXPECT_TRUE(cuda_rows(kDecode, spec, sequence) == expected) << what;
  }
  // The rows of one sequence of a call by the kernel that the registry chooses.
  static std::vector<RowBytes> chosen(const FmhaSpec& spec, int64_t sequence) { return cuda_rows("", spec, sequence); }
};

// ---------------------------------------------------------------- A: batch variance

TEST_F(CasesDecode, A1_DecodeRowBesideAPrefillThatGrowsByOneToken) {
  const FmhaSpec spec = paged(heads(14, 2, 64), 16);
  const std::vector<RowBytes> row = cuda_rows(kDecode, batch(spec, {1}, {19802}, {1}), 0);
  ASSERT_EQ(row.size(), 14U);
  EXPECT_TRUE(chosen(batch(spec, {1, 9}, {19802, 9}, {1, 2}), 0) == row) << "beside nine tokens";
  EXPECT_TRUE(chosen(batch(spec, {1, 10}, {19802, 10}, {1, 2}), 0) == row) << "beside ten tokens";
  expect_rows(row, batch(paged(spec, 128), {1}, {19802}, {1}), 0, "pages of 128");
}

TEST_F(CasesDecode, A2_DecodeRowAloneAndBesideALongPrefill) {
  const FmhaSpec spec = paged(heads(8, 2, 128), 16);
  const std::vector<RowBytes> row = cuda_rows(kDecode, batch(spec, {1}, {700}, {5}), 0);
  EXPECT_TRUE(chosen(batch(spec, {129, 1}, {129, 700}, {9, 5}), 1) == row);
}

TEST_F(CasesDecode, A5_SplitsDoNotFollowTheBatch) {
  for (const int32_t kv : {4, 1}) {
    const FmhaSpec spec = heads(4, kv, 64);
    const std::vector<RowBytes> row = cuda_rows(kDecode, batch(spec, {1}, {9000}, {1}), 0);
    for (const size_t size : {4U, 8U, 10U, 30U}) {
      std::vector<int64_t> k(size, 300);
      std::vector<uint64_t> ids(size);
      for (size_t b = 0; b < size; ++b) ids[b] = b + 1;
      k[0] = 9000;
      expect_rows(row, batch(spec, std::vector<int64_t>(size, 1), k, ids), 0, std::to_string(size) + " sequences");
    }
  }
}

TEST_F(CasesDecode, A12_WindowsInBatchesOf1And16) {
  FmhaSpec spec = heads(4, 1, 64);
  spec.segments[0].window_left = 127;
  const std::vector<RowBytes> row = cuda_rows(kDecode, batch(spec, {1}, {8192}, {3}), 0);
  std::vector<uint64_t> ids(16);
  for (size_t b = 0; b < ids.size(); ++b) ids[b] = b;
  expect_rows(row, batch(spec, std::vector<int64_t>(16, 1), std::vector<int64_t>(16, 8192), ids), 3, "batch of 16");
}

TEST_F(CasesDecode, A14_SinksAndAlternatingWindowsInBatchesOf6And10) {
  for (const int64_t window : {-1, 127}) {
    FmhaSpec spec = heads(64, 8, 64);
    spec.segments[0].window_left = window;
    for (int h = 0; h < 64; ++h) spec.sinks.push_back(static_cast<float>(h % 5) - 2.0F);
    const std::vector<int64_t> k = {3000, 20, 1500, 129, 128, 1, 2600, 7, 90, 2049};
    const FmhaProblem ten(batch(spec, std::vector<int64_t>(10, 1), k, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    DeviceProblem device(ten);
    FmhaOutputs of_ten;
    FmhaOutputs of_six;
    ASSERT_EQ(run_on(device, kDecode, &of_ten), "");
    tessera_fmha_params six = device.params;
    six.batch = 6;
    ASSERT_EQ(run_on(device, six, kDecode, &of_six), "");
    for (int64_t b = 0; b < 6; ++b) {
      for (int64_t h = 0; h < 64; ++h) EXPECT_EQ(ten.row(of_ten, b, 0, h), ten.row(of_six, b, 0, h)) << b;
    }
    for (int64_t h = 0; h < 64; ++h) EXPECT_FALSE(ten.row(of_ten, 6, 0, h) == ten.row(of_six, 6, 0, h)) << "not asked";
  }
}

TEST_F(CasesDecode, A17_A19_PrefixCacheHitsAtAnyLength) {
  for (const int64_t t : {2, 17, 63, 65, 127, 128, 129, 3339}) {
    const FmhaSpec spec = heads(6, 2, 64);
    FmhaSpec last = batch(spec, {1}, {t}, {1});
    last.q_first = {t - 1};
    const std::vector<RowBytes> all = cuda_rows("sm90_fmha_prefill", batch(spec, {t}, {t}, {1}), 0);
    ASSERT_GE(all.size(), 6U);
    expect_rows({all.end() - 6, all.end()}, last, 0, std::to_string(t) + " tokens");
  }
}

TEST_F(CasesDecode, A20_VerifyingFourTokensEqualsFourDecodes) {
  const FmhaSpec spec = heads(6, 2, 64);
  const std::vector<RowBytes> four = cuda_rows(kDecode, batch(spec, {4}, {1003}, {1}), 0);
  ASSERT_EQ(four.size(), 24U);
  for (int64_t i = 0; i < 4; ++i) {
    FmhaSpec one = batch(spec, {1}, {1000 + i}, {1});
    one.q_first = {i};
    expect_rows({four.begin() + i * 6, four.begin() + i * 6 + 6}, one, 0, "token " + std::to_string(i));
  }
}

// ---------------------------------------------------------------- B: splits (merges: decode_states_test.cpp)

TEST_F(CasesDecode, B2_B4_EveryRowOfEverySequenceIsWritten) {
  expect_oracle(batch(paged(heads(4, 4, 64), 256), {1, 1}, {1000, 1024}, {1, 2}));
  expect_oracle(batch(paged(heads(4, 4, 64), 256), {3, 3}, {5000, 2048}, {1, 2}));
}

TEST_F(CasesDecode, B5_SplitsFollowTheLengthOfTheirOwnSequence) {
  expect_oracle(batch(heads(2, 2, 64), {1, 1}, {64, 4096}, {1, 2}));
}

TEST_F(CasesDecode, B8_ASinkCountsOnceWhenTheFirstPartsAreMasked) {
  FmhaSpec spec = batch(heads(4, 2, 64), {1}, {8192}, {1});
  spec.sinks = {0.0F, 2.0F, -1.0F, 5.0F};
  for (const int64_t window : {100, 2047, 2048, 5000}) {
    spec.segments[0].window_left = window;
    expect_oracle(spec);
  }
  spec.segments[0].lengths = {0};
  expect_oracle(spec);
}

TEST_F(CasesDecode, B19_SequencesWithoutKeysAreWritten) {
  expect_oracle(batch(heads(2, 2, 64), {1, 1, 1}, {0, 5, 0}, {1, 2, 3}));
}

// ---------------------------------------------------------------- D: memory that nobody may use

TEST_F(CasesDecode, D1_PaddedKeysAndValuesHoldNan) {
  FmhaSpec spec = batch(heads(1, 1, 64, TESSERA_F16), {1, 1}, {1, 3}, {1, 2});
  spec.q_amplitude = 0.5F;
  expect_oracle(spec);  // everything behind a sequence is NaN
}

TEST_F(CasesDecode, D3_D11_ACallAfterOneOnNan) {
  // The call before reads NaN keys, which it may: they are in its lengths.
  const FmhaProblem before(batch(heads(8, 2, 128), {1, 1}, {2048, 2048}, {1, 2}));
  DeviceProblem device(before);
  tessera_kv_segment& s = device.params.segments[0];
  const auto bytes = static_cast<size_t>(2 * s.k.stride_batch) * 2;
  for (const int64_t keys : {1, 63, 65, 2047}) {
    for (const tessera_tensor* t : {&s.k, &s.v}) ASSERT_EQ(cudaMemset(t->data, 0xff, bytes), cudaSuccess);
    device.params.force_kernel = kDecode;
    ASSERT_EQ(device.make_workspace(), "");
    for (int i = 0; i < 3; ++i) ASSERT_EQ(device.enqueue(nullptr, nullptr), TESSERA_OK);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect_oracle(batch(heads(8, 2, 128), {1, 1}, {keys, keys + 1}, {1, 2}));
  }
}

TEST_F(CasesDecode, D4_PagesLeftOfTheWindowHoldNanOrAreGone) {
  FmhaSpec spec = paged(batch(heads(64, 8, 64), {1, 1}, {1000, 2500}, {1, 2}), 16);
  spec.segments[0].window_left = 127;
  spec.segments[0].poison_masked = true;
  expect_oracle(spec);
  spec.segments[0].unlisted_pages = true;
  expect_oracle(spec);
}

// Beside the mask, as everywhere, lie bytes that a copy of it does not have: all bits set.
TEST_F(CasesDecode, D10_NoBitBehindTheMaskCounts) {
  for (const int64_t keys : {384, 381, 2049}) {
    FmhaSpec spec = batch(heads(4, 2, 64), {3}, {keys}, {1});
    spec.segments[0].mask = true;
    expect_oracle(spec);
  }
}

// ---------------------------------------------------------------- E: sizes

TEST_F(CasesDecode, E4_E16_PagesAndStridesBeyond2To31Elements) {
  // Pages 2^28 elements apart: the last ones begin beyond 2^31.
  FmhaSpec spec = paged(batch(heads(4, 1, 128), {1, 1}, {70, 33}, {1, 2}), 16);
  const FmhaProblem problem(spec);
  DeviceProblem device(problem);
  FmhaOutputs expected;
  ASSERT_EQ(run_on(device, kDecode, &expected), "");
  tessera_kv_segment& s = device.params.segments[0];
  const int64_t apart = int64_t{1} << 28;
  const auto page_bytes = static_cast<size_t>(s.k.stride_batch) * 2;
  std::vector<void*> pools;
  for (tessera_tensor* t : {&s.k, &s.v}) {
    char* pool = nullptr;
    const auto bytes = static_cast<size_t>(apart * (s.num_pages - 1)) * 2 + page_bytes;
    if (cudaMalloc(reinterpret_cast<void**>(&pool), bytes) != cudaSuccess) {
      cudaGetLastError();
      for (void* p : pools) cudaFree(p);
      GTEST_SKIP() << "LITTLE MEMORY: pools beyond 2^31 elements are not tested on this GPU";
    }
    pools.push_back(pool);
    ASSERT_EQ(cudaMemcpy2D(pool, static_cast<size_t>(apart) * 2, t->data, page_bytes, page_bytes,
                           static_cast<size_t>(s.num_pages), cudaMemcpyDeviceToDevice),
              cudaSuccess);
    t->data = pool;
    t->stride_batch = apart;
  }
  EXPECT_GT(apart * (s.num_pages - 1), int64_t{1} << 31);
  FmhaOutputs out;
  ASSERT_EQ(run_on(device, kDecode, &out), "");
  EXPECT_EQ(first_difference(problem, expected, out), "");
  for (void* p : pools) EXPECT_EQ(cudaFree(p), cudaSuccess);
}

TEST_F(CasesDecode, E12_E13_MoreThan65535SequencesAndHeads) {
  FmhaSpec many = heads(1, 1, 8);
  many.q_lengths.assign(65536 + 3, 1);
  many.segments[0].lengths.assign(65536 + 3, 2);
  many.segments[0].lengths[77] = 1;
  expect_oracle(many);
  expect_oracle(batch(heads(65536, 65536, 16), {1}, {10}, {1}));
}

TEST_F(CasesDecode, E17_E20_LongContextsAloneAndInBatches) {
  for (const int64_t keys : {161000, 350000}) {
    const FmhaSpec spec = heads(2, 1, 64);
    const std::vector<RowBytes> row = cuda_rows(kDecode, batch(spec, {1}, {keys}, {1}), 0);
    EXPECT_TRUE(cuda_rows("sm90_fmha_prefill", batch(spec, {1}, {keys}, {1}), 0) == row) << keys;
    const FmhaSpec crowd = paged(batch(spec, {1, 1, 1}, {100, keys, 5000}, {0, 1, 2}), 64);
    if (keys < 200000) expect_rows(row, crowd, 1, std::to_string(keys) + " keys");
  }
}

// ---------------------------------------------------------------- F: masks, windows, pages

TEST_F(CasesDecode, F1_WindowWithoutCausalMask) {
  FmhaSpec spec = paged(batch(heads(8, 2, 128, TESSERA_F16), {7}, {4096}, {1}), 16);
  spec.segments[0].causal = 0;
  spec.segments[0].window_left = 333;
  expect_oracle(spec);
}

TEST_F(CasesDecode, F4_WindowsCountTheQuerysOwnToken) {
  for (const int64_t keys : {1, 2, 128, 4096}) {
    FmhaSpec spec = batch(heads(1, 1, 16), {1}, {9000}, {1});
    spec.segments[0].window_left = keys - 1;
    spec.scale = 1e-20F;  // all weights are 1: the log-sum-exp counts the keys
    const std::vector<RowBytes> rows = cuda_rows(kDecode, spec, 0);
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_NEAR(std::exp(rows[0].lse), static_cast<double>(keys), static_cast<double>(keys) * 1e-5);
  }
}

TEST_F(CasesDecode, F7_NineKeysEightQueriesGroupOfSeven) {
  expect_oracle(paged(batch(heads(14, 2, 64, TESSERA_F16), {8}, {9}, {1}), 16));
}

TEST_F(CasesDecode, F8_F12_PagesOfAnySize) {
  const FmhaSpec spec = batch(heads(2, 1, 64), {1, 1}, {2100, 40}, {1, 2});
  const std::vector<RowBytes> first = cuda_rows(kDecode, spec, 0);
  const std::vector<RowBytes> second = cuda_rows(kDecode, spec, 1);
  for (const int32_t page : {1, 2, 16, 17, 48, 256, 512, 1024}) {
    expect_rows(first, paged(spec, page), 0, "pages of " + std::to_string(page));
    expect_rows(second, paged(spec, page), 1, "pages of " + std::to_string(page));
  }
}

TEST_F(CasesDecode, F9_TwoSequencesShorterThanAPage) {
  expect_oracle(paged(batch(heads(32, 8, 64), {1, 1}, {1, 1}, {1, 2}), 2));
}

TEST_F(CasesDecode, F10_DifferentHeadDimsWithLargePages) {
  for (const int32_t page : {64, 256}) {
    for (const int64_t k : {100, 300}) {
      FmhaSpec spec = paged(batch(heads(16, 16, 192), {1}, {k}, {1}), page);
      spec.head_dim_v = 128;
      expect_oracle(spec);
    }
  }
}

TEST_F(CasesDecode, F14_F15_ZeroLengthsAmongOthers) {
  FmhaSpec spec = heads(16, 1, 256);
  std::vector<int64_t> k(16);
  std::vector<uint64_t> ids(16);
  for (size_t b = 0; b < 16; ++b) {
    k[b] = b % 3 == 0 ? 0 : static_cast<int64_t>(b * 90);
    ids[b] = b;
  }
  expect_oracle(batch(spec, std::vector<int64_t>(16, 1), k, ids));
  expect_oracle(paged(batch(spec, {1, 1, 1}, {4, 0, 7}, {1, 2, 3}), 16));
}

TEST_F(CasesDecode, F18_WindowsOfTwoSequencesInterleavedInOnePool) {
  FmhaSpec spec = paged(batch(heads(2, 1, 64), {1, 1}, {1700, 1650}, {1, 2}), 1);
  spec.segments[0].window_left = 511;
  expect_oracle(spec);
}

TEST_F(CasesDecode, F23_F24_FewerKeysThanATileOrNoMultipleOfIt) {
  expect_oracle(paged(batch(heads(2, 2, 64), {1}, {64}, {1}), 128));
  for (int64_t k = 128; k <= 227; k += 11) {
    FmhaSpec spec = batch(heads(16, 16, 64, TESSERA_F16), {1}, {k}, {1});
    spec.segments[0].head_major = true;
    expect_oracle(spec);
  }
}

TEST_F(CasesDecode, F25_F27_MasksSharedByHeadsInOneOrTwoCalls) {
  FmhaSpec spec = batch(heads(8, 2, 64), {1, 1, 1, 1}, {512, 500, 100, 30}, {1, 2, 3, 4});
  spec.segments[0].mask = true;
  expect_oracle(spec);
  FmhaSpec whole = batch(heads(2, 1, 64), {16}, {100}, {1});
  whole.segments[0].mask = true;
  FmhaSpec second = batch(whole, {6}, {100}, {1});
  second.q_first = {10};
  const std::vector<RowBytes> all = cuda_rows(kDecode, whole, 0);
  ASSERT_EQ(all.size(), 32U);
  expect_rows({all.begin() + 20, all.end()}, second, 0, "the last six tokens");
}

TEST_F(CasesDecode, F26_ManySequencesWithALocalWindowInPages) {
  FmhaSpec spec = paged(heads(4, 2, 64), 16);
  std::vector<uint64_t> ids(128);
  for (size_t b = 0; b < ids.size(); ++b) ids[b] = b;
  spec = batch(spec, std::vector<int64_t>(128, 1), std::vector<int64_t>(128, 1000), ids);
  spec.segments[0].window_left = 43;
  spec.segments[0].unlisted_pages = true;
  spec.segments[0].poison_masked = true;
  expect_oracle(spec);
}

TEST_F(CasesDecode, F28_CachedPrefixPagesAndATailTokenManyTimes) {
  const FmhaSpec spec = paged(heads(4, 2, 128), 16);
  const std::vector<RowBytes> all = cuda_rows("sm90_fmha_ragged", batch(spec, {97}, {97}, {1}), 0);
  ASSERT_GE(all.size(), 4U);
  const std::vector<RowBytes> last(all.end() - 4, all.end());
  FmhaSpec reuse = batch(spec, {1}, {97}, {1});
  reuse.q_first = {96};
  for (uint64_t i = 0; i < 200; ++i) {
    reuse.segments[0].page_seed = i;
    expect_rows(last, reuse, 0, "time " + std::to_string(i));
  }
}

TEST_F(CasesDecode, F29_TheTailOfTheLastPageHoldsNan) {
  for (const int64_t keys : {12, 13, 15, 17}) {
    FmhaSpec spec = paged(batch(heads(8, 2, 128), {1}, {keys}, {1}), 16);
    expect_oracle(spec);
    spec.sinks.assign(8, -kInf);
    expect_oracle(spec);
  }
}

}  // namespace
}  // namespace tessera::test
