// The attention cases (docs/cases.md) of latent caches with lists of keys, FP8 rows and sinks, on the CPU kernels: the
// shapes of DeepSeek's layers, small.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "fmha/cases.h"
#include "fmha/conformance.h"
#include "fmha/fp8_rows.h"
#include "oracle/exact.h"

namespace tessera::test {
namespace {

constexpr tessera_kv_format kFormats[] = {TESSERA_KV_FP8_V32_656, TESSERA_KV_FP8_V4_584};

// One token over `k` keys of the format, in pages.
FmhaSpec latent(tessera_kv_format format, int32_t heads_q, int64_t k) {
  FmhaSpec spec = paged(heads(heads_q, 1, format == TESSERA_KV_FP8_V32_656 ? 576 : 512), 64);
  spec.head_dim_v = 512;
  spec.q_amplitude = 0.2f;
  spec.segments[0].format = format;
  return batch(spec, {1}, {k}, {1});
}

FmhaSpec listed(tessera_kv_format format, int32_t heads_q, int64_t k, int32_t topk) {
  FmhaSpec spec = latent(format, heads_q, k);
  spec.segments[0].causal = 0;
  spec.segments[0].topk = topk;
  spec.segments[0].poison_masked = spec.segments[0].unlisted_pages = true;
  return spec;
}

// A layer as DeepSeek-V4 has it, one token at position k - 1 of each sequence: the last 128 keys, then 32 of the keys
// that stand for four tokens each, and a sink. Content follows the ids.
FmhaSpec layer(const std::vector<int64_t>& k, const std::vector<uint64_t>& ids) {
  FmhaSpec spec = latent(TESSERA_KV_FP8_V4_584, 8, 1);
  spec.sinks = {0.0f, 1.0f, -2.0f, 3.0f, 0.5f, -0.5f, 6.0f, -30.0f};
  spec.q_lengths.assign(k.size(), 1);
  spec.ids = ids;
  spec.segments[0].window_left = 127;
  spec.segments[0].lengths = k;
  SegmentSpec compressed = spec.segments[0];
  compressed.causal = 0;
  compressed.window_left = -1;
  compressed.compress_ratio = 4;
  compressed.topk = 32;
  compressed.lengths.clear();
  for (const int64_t n : k) {
    compressed.lengths.push_back(n / 4);
    compressed.q_positions.push_back(static_cast<int32_t>(n - 1));
  }
  spec.segments.push_back(compressed);
  return spec;
}

std::vector<uint8_t> bytes_of(const FmhaProblem& problem, const FmhaOutputs& out, int64_t sequence) {
  std::vector<uint8_t> all;
  for (int64_t h = 0; h < problem.spec().heads_q; ++h) {
    const RowBytes row = problem.row(out, sequence, 0, h);
    all.insert(all.end(), row.o.begin(), row.o.end());
    uint8_t lse[4];
    std::memcpy(lse, &row.lse, 4);
    all.insert(all.end(), lse, lse + 4);
  }
  return all;
}

TEST(CasesLatent, A8_A24_ARowOfALayerInBatchesOfOneToTwenty) {
  const FmhaProblem alone(layer({301}, {7}));
  const std::vector<uint8_t> want = bytes_of(alone, run_case(alone, 1), 0);
  for (size_t size = 2; size <= 20; ++size) {
    std::vector<int64_t> k(size);
    std::vector<uint64_t> ids(size);
    std::iota(ids.begin(), ids.end(), 100u);
    for (size_t i = 0; i < size; ++i) k[i] = static_cast<int64_t>(1 + i * 67 % 500);
    const size_t at = size / 2;
    k[at] = 301;
    ids[at] = 7;
    const FmhaProblem crowd(layer(k, ids));
    EXPECT_EQ(bytes_of(crowd, run_case(crowd, 3), static_cast<int64_t>(at)), want) << size;
  }
}

TEST(CasesLatent, A11_B20_SplitsOfAnFp8Cache) {
  for (const tessera_kv_format format : kFormats) {
    const FmhaProblem problem(latent(format, 16, 8192));
    const FmhaOutputs expected = run_case(problem, 1);
    for (const int32_t threads : {2, 8, 32}) {
      EXPECT_EQ(first_difference(problem, expected, run_case(problem, threads)), "") << threads;
    }
  }
}

TEST(CasesLatent, A23_TheSameSetInAnotherOrder) {
  for (const tessera_kv_format format : kFormats) {
    const FmhaSpec spec = listed(format, 4, 900, 300);
    const FmhaProblem first(spec);
    const std::vector<uint8_t> want = bytes_of(first, run_case(first, 1), 0);
    for (const uint64_t seed : {5u, 6u, 7u}) {
      FmhaSpec other = spec;
      other.segments[0].list_seed = seed;
      const FmhaProblem problem(other);
      EXPECT_EQ(bytes_of(problem, run_case(problem, 2), 0), want) << seed;
    }
  }
}

TEST(CasesLatent, C11_EmptyRowsWithSinks) {
  FmhaSpec spec = latent(TESSERA_KV_FP8_V4_584, 2, 6);
  spec.q_lengths = {20};
  spec.sinks = {1.0f, -1.0f};
  expect_case_bytes(spec);
  const FmhaProblem problem(spec);
  const FmhaOutputs out = run_case(problem);
  for (int64_t i = 0; i < 14; ++i) {
    EXPECT_EQ(problem.row(out, 0, i, 1).o, std::vector<uint8_t>(1024, 0)) << i;
    EXPECT_EQ(problem.row(out, 0, i, 1).lse, -std::numeric_limits<float>::infinity()) << i;
  }
}

// A list with `absent` entries of -1 before its keys, in a problem whose key 0 is NaN; the pages are the caller's.
FmhaOutputs run_with_absent(const FmhaProblem& problem, int64_t absent) {
  FmhaOutputs out = problem.make_outputs();
  tessera_fmha_params p = problem.params(&out);
  tessera_kv_segment& s = p.segments[0];
  std::vector<int32_t> list(static_cast<size_t>(absent), -1);
  list.insert(list.end(), s.indices, s.indices + s.topk);
  std::replace(list.begin(), list.end(), 0, -1);
  s.indices = list.data();
  s.indices_stride = s.topk = static_cast<int32_t>(list.size());
  size_t bytes = 0;
  tessera_error error{};
  EXPECT_EQ(tessera_fmha_workspace_size(&p, 1, &bytes, &error), TESSERA_OK) << error.text;
  const Workspace workspace(bytes);
  EXPECT_EQ(tessera_fmha_run(&p, workspace.data(), bytes, nullptr, &error), TESSERA_OK) << error.text;
  return out;
}

TEST(CasesLatent, C12_D11_D12_G13_AbsentIndicesReadNothing) {
  for (const tessera_kv_format format : kFormats) {
    FmhaSpec spec = listed(format, 4, 300, 64);
    const FmhaProblem problem(spec);
    {
      FmhaOutputs out = problem.make_outputs();  // key 0 and its scales become NaN, if they are not already
      const tessera_kv_segment& s = problem.params(&out).segments[0];
      if (s.page_table[0] >= 0) {
        auto* page = static_cast<uint8_t*>(s.k.data) + s.page_table[0] * s.k.stride_batch;
        std::memset(page, 0xff, static_cast<size_t>(format == TESSERA_KV_FP8_V4_584 ? 576 : 656));
        if (format == TESSERA_KV_FP8_V4_584) std::memset(page + 64 * 576, 0xff, 8);
      }
    }
    const std::vector<uint8_t> want = bytes_of(problem, run_with_absent(problem, 0), 0);
    for (const int64_t absent : {16, 64, 128}) {
      EXPECT_EQ(bytes_of(problem, run_with_absent(problem, absent), 0), want) << absent;
    }
    const FmhaOutputs out = run_with_absent(problem, 16);
    EXPECT_TRUE(std::isfinite(problem.row(out, 0, 0, 0).lse));
  }
}

// A pool of pages of one key, so far apart that byte offsets pass 2^32.
TEST(CasesLatent, E4_E16_PagesBeyondFourGigabytes) {
  const FmhaProblem problem([] {
    FmhaSpec spec = latent(TESSERA_KV_FP8_V4_584, 2, 20);
    spec.segments[0].page_size = 1;
    return spec;
  }());
  FmhaOutputs out = problem.make_outputs();
  tessera_fmha_params p = problem.params(&out);
  tessera_kv_segment& s = p.segments[0];
  constexpr int64_t kPages = 4'000'000;
  const int64_t stride = s.k.stride_batch;  // 1152
  const size_t bytes = static_cast<size_t>(kPages * stride);
  void* const pool = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pool, MAP_FAILED);
  std::vector<int32_t> table;
  for (int64_t j = 0; j < 20; ++j) {
    table.push_back(static_cast<int32_t>(kPages - 1 - 3 * j));
    std::memcpy(static_cast<uint8_t*>(pool) + table.back() * stride,
                static_cast<uint8_t*>(s.k.data) + s.page_table[j] * stride, static_cast<size_t>(stride));
  }
  s.k.data = s.v.data = pool;
  s.page_table = table.data();
  s.num_pages = kPages;
  const Workspace workspace(8 << 20);
  tessera_error error{};
  ASSERT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, &error), TESSERA_OK) << error.text;
  EXPECT_EQ(first_difference(problem, run_case(problem), out), "");
  munmap(pool, bytes);
}

// A window in a ring of 128 rows: key j lies in slot j % 128, which the table says as pages of one key. Slots are used
// again; the keys that they held before are out of every window.
TEST(CasesLatent, AWindowInARingHasTheBitsOfContiguousKeys) {
  for (const int64_t k : {100, 128, 129, 300}) {
    FmhaSpec spec = latent(TESSERA_KV_FP8_V4_584, 4, k);
    spec.segments[0].window_left = 127;
    spec.segments[0].page_size = 1;
    const FmhaProblem problem(spec);
    const FmhaOutputs expected = run_case(problem);
    FmhaOutputs out = problem.make_outputs();
    tessera_fmha_params p = problem.params(&out);
    tessera_kv_segment& s = p.segments[0];
    const int64_t stride = s.k.stride_batch;
    std::vector<uint8_t> memory(static_cast<size_t>(128 * stride) + 16, 0xff);
    uint8_t* const ring = memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16) % 16;
    std::vector<int32_t> table;
    for (int64_t j = 0; j < k; ++j) {
      table.push_back(static_cast<int32_t>(j % 128));
      std::memcpy(ring + j % 128 * stride, static_cast<uint8_t*>(s.k.data) + s.page_table[j] * stride,
                  static_cast<size_t>(stride));
    }
    s.k.data = s.v.data = ring;
    s.page_table = table.data();
    s.num_pages = 128;
    const Workspace workspace(8 << 20);
    tessera_error error{};
    ASSERT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, &error), TESSERA_OK) << error.text;
    EXPECT_EQ(first_difference(problem, expected, out), "") << k;
  }
}

TEST(CasesLatent, F8_F12_F28_ReusedPagesInManyOrdersAndSizes) {
  FmhaSpec spec = latent(TESSERA_KV_FP8_V4_584, 2, 97);
  const FmhaProblem first(spec);
  const std::vector<uint8_t> want = bytes_of(first, run_case(first), 0);
  for (uint64_t order = 1; order <= 200; ++order) {
    spec.segments[0].page_seed = order;
    spec.segments[0].page_size = order % 4 == 0 ? 2 : order % 4 == 1 ? 64 : order % 4 == 2 ? 17 : 256;
    const FmhaProblem again(spec);
    ASSERT_EQ(bytes_of(again, run_case(again), 0), want) << order;
  }
}

TEST(CasesLatent, G5_PoolsSlicedFromALargerTensor) {
  for (const tessera_kv_format format : kFormats) {
    FmhaSpec spec = latent(format, 4, 50);
    spec.segments[0].page_size = 16;
    spec.segments[0].row_padding = 3;
    expect_case_bytes(spec);
  }
}

TEST(CasesLatent, G20_OneToFiveTokens) {
  for (const tessera_kv_format format : kFormats) {
    FmhaSpec five = latent(format, 3, 200);
    five.q_lengths = {5};
    const FmhaProblem all(five);
    const FmhaOutputs out = run_case(all);
    for (int64_t q = 1; q <= 4; ++q) {
      FmhaSpec fewer = five;
      fewer.q_lengths = {q};
      fewer.q_first = {5 - q};
      const FmhaProblem some(fewer);
      const FmhaOutputs part = run_case(some);
      for (int64_t h = 0; h < 3; ++h) EXPECT_EQ(all.row(out, 0, 4, h), some.row(part, 0, q - 1, h)) << q;
    }
  }
}

// 65,536 FP8 keys, one of which is the query's own direction: nothing of its weight, and nothing of the others' sum, is
// lost on the way.
TEST(CasesLatent, G17_G21_OneKeyAmong65536) {
  FmhaSpec spec = latent(TESSERA_KV_FP8_V32_656, 1, 65536);
  spec.segments[0].layout = KvLayout::kBatched;
  spec.segments[0].causal = 0;
  spec.o_dtype = TESSERA_F32;
  const FmhaProblem problem(spec);
  for (const float strength : {2.0f, 11.0f}) {  // among the others, and above them all
    FmhaOutputs out = problem.make_outputs();
    tessera_fmha_params p = problem.params(&out);
    std::vector<uint16_t> q(576);
    float square = 0.0f;
    for (int64_t d = 0; d < 576; ++d) {
      const float x = problem.k_value(0, 0, 40000, 0, d);
      square += x * x;
    }
    for (int64_t d = 0; d < 576; ++d) {
      const float x = problem.k_value(0, 0, 40000, 0, d) * strength * 24.0f / square;
      uint32_t bits = 0;
      std::memcpy(&bits, &x, 4);
      q[static_cast<size_t>(d)] = static_cast<uint16_t>(bits >> 16);
    }
    p.q.data = q.data();
    const Workspace workspace(8 << 20);
    tessera_error error{};
    ASSERT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, &error), TESSERA_OK) << error.text;
    const Result<ExactRows> exact = exact_fmha(p);
    ASSERT_TRUE(exact.ok()) << exact.status().text();
    const RowBytes row = problem.row(out, 0, 0, 0);
    EXPECT_NEAR(row.lse, exact.value().lse[0], 2e-6);
    for (size_t d = 0; d < 512; ++d) {
      float x = 0.0f;
      std::memcpy(&x, &row.o[d * 4], 4);
      ASSERT_NEAR(x, exact.value().o[d], 2e-6 * exact.value().mean_abs_v[0]) << d;
    }
  }
}

TEST(CasesLatent, G26_AnyNumberOfHeadsAndOfListedKeys) {
  for (const auto& [heads_q, topk] : {std::pair{32, 256}, {16, 512}, {64, 1152}, {3, 7}}) {
    expect_case_bytes(listed(TESSERA_KV_FP8_V4_584, heads_q, 2500, topk));
  }
}

}  // namespace
}  // namespace tessera::test
