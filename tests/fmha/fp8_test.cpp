// K/V rows in the FP8 formats (R11): every CPU kernel against the oracle, and FP8 rows against dense rows that hold the
// values which a formula of the tests' own gives (fp8_rows.cpp).
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fmha/conformance.h"
#include "fmha/draw.h"
#include "oracle/oracle.h"

namespace tessera::test {
namespace {

constexpr tessera_kv_format kFormats[] = {TESSERA_KV_FP8_V32_656, TESSERA_KV_FP8_V4_584};

// One sequence of `q` tokens over `k` FP8 keys.
FmhaSpec latent(tessera_kv_format format, int64_t q, int64_t k) {
  FmhaSpec spec;
  spec.dtype = spec.o_dtype = TESSERA_BF16;
  spec.head_dim_qk = format == TESSERA_KV_FP8_V4_584 ? 512 : 576;
  spec.head_dim_v = 512;
  spec.heads_q = 4;
  spec.heads_kv = 1;
  spec.q_amplitude = 0.2f;
  SegmentSpec s;
  s.format = format;
  s.layout = format == TESSERA_KV_FP8_V4_584 ? KvLayout::kPaged : KvLayout::kBatched;
  s.causal = 1;
  spec.segments.push_back(s);
  return one_sequence(spec, q, k);
}

FmhaSpec decoded(FmhaSpec spec) {
  for (SegmentSpec& s : spec.segments) s.decoded = s.format != TESSERA_KV_DENSE;
  return spec;
}

FmhaOutputs oracle_bytes(Arithmetic arithmetic, const FmhaProblem& problem) {
  FmhaOutputs out = problem.make_outputs();
  const Status status = oracle_fmha(arithmetic, problem.params(&out), 2);
  EXPECT_TRUE(status.ok()) << status.text() << "\n" << to_text(problem.spec());
  return out;
}

// Every kernel has the oracle's bytes, and in both arithmetics these are those of the decoded rows.
void expect_same_as_decoded(const FmhaSpec& spec, int32_t threads = 3) {
  expect_oracle_bytes(spec, threads);
  const FmhaProblem coded(spec);
  const FmhaProblem dense(decoded(spec));
  for (const Arithmetic arithmetic : {Arithmetic::kCpuFma32, Arithmetic::kHopperK16F25}) {
    EXPECT_EQ(first_difference(coded, oracle_bytes(arithmetic, dense), oracle_bytes(arithmetic, coded)), "")
        << to_text(spec);
  }
}

class Fp8Rows : public testing::TestWithParam<tessera_kv_format> {};
INSTANTIATE_TEST_SUITE_P(Formats, Fp8Rows, testing::ValuesIn(kFormats),
                         [](const auto& param) { return param.param == TESSERA_KV_FP8_V4_584 ? "V4" : "V32"; });

TEST_P(Fp8Rows, HaveTheBitsOfDenseRowsWithTheirValues) {
  for (const int64_t q : {1, 3, 40}) {
    for (const int64_t k : {1, 17, 64, 150}) expect_same_as_decoded(latent(GetParam(), q, k));
  }
}

TEST_P(Fp8Rows, AreTheSameInPagesOfEverySize) {
  FmhaSpec first = latent(GetParam(), 2, 140);
  first.segments[0].layout = KvLayout::kPaged;
  first.segments[0].page_size = 333;
  const RowBytes want = row_of(first, 0, 1, 3);
  for (const int32_t page : {1, 2, 5, 64, 139, 140}) {
    FmhaSpec spec = first;
    spec.segments[0].page_size = page;
    spec.segments[0].page_seed = static_cast<uint64_t>(page);
    spec.segments[0].row_padding = page % 2;
    expect_same_as_decoded(spec);
    EXPECT_EQ(row_of(spec, 0, 1, 3), want) << page;
  }
}

TEST_P(Fp8Rows, WhatNoTokenSeesMayBeAnything) {
  FmhaSpec spec = latent(GetParam(), 2, 200);
  spec.segments[0].layout = KvLayout::kPaged;
  spec.segments[0].page_size = 2;
  spec.segments[0].window_left = 20;
  spec.segments[0].poison_masked = spec.segments[0].unlisted_pages = true;
  expect_same_as_decoded(spec);
  spec.segments[0].unlisted_pages = false;
  spec.segments[0].mask = true;
  spec.segments[0].mask_visible_of_8 = 1;
  expect_same_as_decoded(spec);
}

TEST_P(Fp8Rows, CanBeGathered) {
  for (const int64_t q : {1, 4}) {
    FmhaSpec spec = latent(GetParam(), q, 500);
    spec.segments[0].layout = KvLayout::kPaged;
    spec.segments[0].page_size = 64;
    spec.segments[0].causal = 0;
    spec.segments[0].topk = 100;
    spec.segments[0].absent_of = 5;
    spec.segments[0].poison_masked = spec.segments[0].unlisted_pages = true;
    expect_same_as_decoded(spec);
  }
}

TEST_P(Fp8Rows, CrossChunksAndSplits) {
  FmhaSpec spec = latent(GetParam(), 1, 4200);
  spec.heads_q = 2;
  expect_same_as_decoded(spec, 6);
}

// As a layer with a window of the last tokens and compressed keys sees them.
FmhaSpec window_and_compressed(tessera_kv_format window, bool all_compressed) {
  FmhaSpec spec = latent(TESSERA_KV_FP8_V4_584, 6, 300);
  spec.heads_q = 8;
  spec.sinks.assign(8, 0.3f);
  spec.segments[0].format = window;
  spec.segments[0].v_is_k = true;
  spec.segments[0].window_left = 127;
  spec.segments[0].page_size = 64;
  SegmentSpec compressed;
  compressed.format = TESSERA_KV_FP8_V4_584;
  compressed.layout = KvLayout::kPaged;
  compressed.page_size = all_compressed ? 2 : 64;
  compressed.lengths = {all_compressed ? 2 : 75};
  compressed.compress_ratio = all_compressed ? 128 : 4;
  compressed.q_positions = {294};
  compressed.topk = all_compressed ? 0 : 40;
  compressed.poison_masked = compressed.unlisted_pages = true;
  spec.segments.push_back(compressed);
  return spec;
}

TEST(Fp8Segments, MixWithDenseOnes) {
  for (const tessera_kv_format window : {TESSERA_KV_DENSE, TESSERA_KV_FP8_V4_584}) {
    for (const bool all : {false, true}) expect_same_as_decoded(window_and_compressed(window, all));
  }
}

FmhaSpec draw_latent(uint64_t seed) {
  Draw draw(seed);
  const tessera_kv_format format = kFormats[draw.in(0, 1)];
  FmhaSpec spec = latent(format, 1, 1);
  spec.seed = seed;
  spec.unnormalized = draw.one_in(4);
  spec.o_dtype = spec.unnormalized || draw.one_in(3) ? TESSERA_F32 : TESSERA_BF16;
  spec.heads_q = draw.of<int32_t>({1, 2, 5, 9});
  spec.q_lengths.clear();
  const int64_t batch = draw.in(1, 3);
  for (int64_t b = 0; b < batch; ++b) spec.q_lengths.push_back(draw.one_in(6) ? 0 : draw.in(1, 5));
  spec.packed_q = draw.one_in(2);
  if (draw.one_in(5)) spec.softcap = 30.0f;
  if (!spec.unnormalized && draw.one_in(2)) spec.sinks.assign(static_cast<size_t>(spec.heads_q), -0.5f);
  spec.segments.clear();
  const int64_t segments = draw.in(1, 3);
  for (int64_t i = 0; i < segments; ++i) {
    SegmentSpec s;
    s.format = draw.one_in(3) ? TESSERA_KV_DENSE : format;
    s.v_is_k = s.format == TESSERA_KV_DENSE && draw.one_in(2);
    const bool paged = s.format == TESSERA_KV_FP8_V4_584;
    s.layout = paged ? KvLayout::kPaged : draw.of({KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged});
    s.page_size = draw.of<int32_t>({1, 2, 64, 333});
    s.page_seed = draw.bits();
    s.row_padding = draw.one_in(3) ? draw.in(1, 3) : 0;
    for (int64_t b = 0; b < batch; ++b) s.lengths.push_back(draw.one_in(7) ? 0 : draw.in(1, 150));
    s.poison_masked = true;
    if (draw.one_in(3)) {
      s.topk = draw.of<int32_t>({3, 40, 70});
      s.absent_of = 4;
    }
    if (draw.one_in(3)) {
      s.compress_ratio = 4;
      for (int64_t b = 0; b < batch; ++b) s.q_positions.push_back(static_cast<int32_t>(draw.in(0, 600)));
    } else {
      s.causal = draw.one_in(2) ? 1 : 0;
      if (draw.one_in(2)) s.window_left = 20;
      // A page has to be there for every listed key in reach, even if the token that lists it does not see it.
      s.unlisted_pages = s.topk > 0 && s.causal == 0 && s.window_left < 0;
    }
    spec.segments.push_back(s);
  }
  return spec;
}

class Fp8Mixes : public testing::TestWithParam<int> {};

TEST_P(Fp8Mixes, EqualTheOracleAndTheDecodedRows) {
  for (int i = 0; i < 4; ++i) {
    const uint64_t seed = 7000 + static_cast<uint64_t>(GetParam()) * 4 + static_cast<uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_same_as_decoded(draw_latent(seed), 2 + i);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Fp8Mixes, testing::Range(0, 12));

}  // namespace
}  // namespace tessera::test
