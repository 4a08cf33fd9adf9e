// The kernel for one K/V head whose V is in K with FP8 rows (R11): the oracle's bytes, and those of the same kernel on
// dense rows that hold what the FP8 ones are worth by a formula of the tests' own (fmha/fp8_rows.cpp). Needs an sm_90
// GPU.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "sm90/mqa_512_case.h"

namespace tessera::test {
namespace {

bool is_v4(tessera_kv_format format) {
  return format == TESSERA_KV_FP8_V4_584;
}

// `tokens` query tokens of each sequence, one segment of these lengths, causal; V4 rows lie in pages.
FmhaSpec latent(tessera_kv_format format, int32_t heads, int64_t tokens, const std::vector<int64_t>& lengths) {
  FmhaSpec spec;
  spec.dtype = spec.o_dtype = TESSERA_BF16;
  spec.head_dim_qk = is_v4(format) ? 512 : 576;
  spec.head_dim_v = 512;
  spec.heads_q = heads;
  spec.heads_kv = 1;
  spec.q_lengths.assign(lengths.size(), tokens);
  spec.q_amplitude = 0.2F;
  SegmentSpec s;
  s.format = format;
  s.layout = is_v4(format) ? KvLayout::kPaged : KvLayout::kBatched;
  s.page_size = 64;
  s.lengths = lengths;
  s.causal = 1;
  spec.segments.push_back(s);
  return spec;
}

FmhaSpec in_pages(FmhaSpec spec, int32_t page_size, uint64_t seed = 1) {
  spec.segments[0].layout = KvLayout::kPaged;
  spec.segments[0].page_size = page_size;
  spec.segments[0].page_seed = seed;
  return spec;
}

// A window of the last tokens, then keys that each stand for `ratio` of those: all, or `topk` listed for each token.
FmhaSpec window_and_compressed(tessera_kv_format window, tessera_kv_format compressed, int32_t heads, int64_t tokens,
                               const std::vector<int64_t>& lengths, int32_t ratio, int32_t topk) {
  FmhaSpec spec = latent(compressed, heads, tokens, lengths);
  SegmentSpec& first = spec.segments[0];
  first.format = window;
  first.v_is_k = true;
  first.window_left = 127;
  if (window == TESSERA_KV_DENSE) first.layout = KvLayout::kBatched;
  SegmentSpec second;
  second.format = compressed;
  second.layout = is_v4(compressed) ? KvLayout::kPaged : KvLayout::kBatched;
  second.page_size = ratio == 128 ? 2 : 64;
  second.compress_ratio = ratio;
  second.topk = topk;
  second.absent_of = topk > 0 ? 5 : 0;
  second.poison_masked = true;
  for (const int64_t length : lengths) {
    second.lengths.push_back(length / ratio);
    second.q_positions.push_back(static_cast<int32_t>(length - tokens));
  }
  spec.segments.push_back(second);
  for (int32_t h = 0; h < heads; ++h) spec.sinks.push_back(0.25F * static_cast<float>(h % 9) - 1.0F);
  return spec;
}

FmhaOutputs by_kernel(const FmhaProblem& problem, bool keep_lengths = true) {
  const CudaRun run = run_cuda(kMqa, problem, {.keep_lengths = keep_lengths});
  EXPECT_EQ(run.damage, "");
  EXPECT_EQ(run.status, TESSERA_OK) << run.text;
  return run.status == TESSERA_OK && run.damage.empty() ? run.out : problem.make_outputs();
}

void check(const FmhaSpec& spec) {
  SCOPED_TRACE(to_text(spec));
  const FmhaProblem problem(spec);
  const FmhaOutputs out = by_kernel(problem, spec.heads_q % 3 != 0);
  EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), out), "");
  FmhaSpec decoded = spec;
  for (SegmentSpec& s : decoded.segments) {
    if (s.format == TESSERA_KV_DENSE) continue;
    s.decoded = true;
    s.row_padding *= 8;  // of elements now
  }
  const FmhaProblem dense(decoded);
  EXPECT_EQ(first_difference(problem, by_kernel(dense), out), "") << "the rows' values as dense rows";
}

class MqaFp8 : public CudaTest, public testing::WithParamInterface<tessera_kv_format> {};
INSTANTIATE_TEST_SUITE_P(Formats, MqaFp8, testing::Values(TESSERA_KV_FP8_V4_584, TESSERA_KV_FP8_V32_656),
                         [](const auto& param) { return is_v4(param.param) ? "V4" : "V32"; });

TEST_P(MqaFp8, OneGranuleAndOnePair) {
  for (const int64_t keys : {1, 63, 64, 65, 127, 128, 129, 200}) {
    check(latent(GetParam(), 64, 1, {keys}));
  }
}

TEST_P(MqaFp8, AnyNumberOfHeadsAndTokens) {
  for (const int32_t heads : {1, 8, 24, 64, 96, 128}) {
    check(latent(GetParam(), heads, 5, {300, 0, 71}));
  }
  check(latent(GetParam(), 3, 150, {150}));
  check(latent(GetParam(), 64, 200, {310}));
}

TEST_P(MqaFp8, PagesOfAnySize) {
  for (const int32_t page : {1, 3, 16, 64, 333}) {
    FmhaSpec spec = in_pages(latent(GetParam(), 64, 2, {400, 0, 90}), page, static_cast<uint64_t>(page));
    spec.segments[0].unlisted_pages = page % 2 == 0;
    spec.segments[0].row_padding = page % 2;
    check(spec);
    spec.segments[0].window_left = 70;
    check(spec);
  }
}

TEST_P(MqaFp8, LongSequences) {
  check(latent(GetParam(), 8, 3, {2048, 2049, 4200}));
  FmhaSpec spec = latent(GetParam(), 16, 2, {6300});
  spec.q_amplitude = 4.0F;
  check(spec);
}

TEST_P(MqaFp8, WhatNoTokenSeesMayBeAnything) {
  for (const int32_t page : {1, 2, 64, 333}) {
    FmhaSpec spec = in_pages(latent(GetParam(), 64, 2, {200, 500}), page);
    spec.segments[0].window_left = 20;
    spec.segments[0].poison_masked = spec.segments[0].unlisted_pages = true;
    check(spec);
  }
}

TEST_P(MqaFp8, GatheredKeys) {
  for (const int32_t page : {0, 1, 16, 64, 333}) {
    for (const int32_t heads : {64, 16}) {
      FmhaSpec spec = latent(GetParam(), heads, 3, {500, 900});
      if (page != 0) spec = in_pages(spec, page);
      SegmentSpec& s = spec.segments[0];
      s.causal = 0;
      s.topk = heads == 64 ? 100 : 300;
      s.absent_of = 5;
      s.list_duplicates = heads == 16;
      s.poison_masked = true;
      s.unlisted_pages = page != 0;
      check(spec);
    }
  }
}

TEST_P(MqaFp8, BesideAWindowOfEitherKind) {
  for (const tessera_kv_format window : {TESSERA_KV_DENSE, GetParam()}) {
    for (const int32_t heads : {64, 128, 16}) {
      check(window_and_compressed(window, GetParam(), heads, 3, {1500, 3, 130}, 4, 0));
      check(window_and_compressed(window, GetParam(), heads, 3, {1500, 4, 700}, 4, 130));
      check(window_and_compressed(window, GetParam(), heads, 3, {1500, 3, 130}, 128, 0));
    }
    FmhaSpec spec = window_and_compressed(window, GetParam(), 64, 2, {9000, 5000}, 4, 512);
    check(spec);
    std::swap(spec.segments[0], spec.segments[1]);
    check(spec);
  }
}

TEST_P(MqaFp8, OneLaunchEqualsTwoPassesThatAreMerged) {
  for (const int32_t topk : {0, 130}) {
    const FmhaProblem problem(window_and_compressed(TESSERA_KV_DENSE, GetParam(), 64, 3, {1500}, 4, topk));
    EXPECT_EQ(first_difference(problem, merged_passes(problem), by_kernel(problem)), "") << topk;
  }
}

TEST_P(MqaFp8, StatesAndWideOutput) {
  FmhaSpec spec = window_and_compressed(TESSERA_KV_DENSE, GetParam(), 64, 2, {1500, 4, 130}, 4, 130);
  spec.o_dtype = TESSERA_F32;
  check(spec);
  spec.sinks.clear();
  spec.unnormalized = true;
  check(spec);
}

// The bytes of the one segment's rows and pages.
uint8_t* rows_of(const FmhaProblem& problem) {
  FmhaOutputs out = problem.make_outputs();
  return static_cast<uint8_t*>(problem.params(&out).segments[0].k.data);
}

TEST_P(MqaFp8, ScalesOfEveryKind) {
  constexpr int64_t kKeys = 320;  // five pages of V4
  const FmhaProblem problem(latent(GetParam(), 64, 2, {kKeys}));
  FmhaOutputs out = problem.make_outputs();
  const tessera_kv_segment s = problem.params(&out).segments[0];
  uint8_t* const rows = rows_of(problem);
  for (int64_t key = 0; key < kKeys; ++key) {
    if (is_v4(GetParam())) {
      // Subnormal, tiny, one, large; the last byte of a footer is no scale.
      constexpr uint8_t kBytes[] = {0, 1, 30, 117, 120, 127, 134, 140, 118};
      uint8_t* const footer = rows + s.page_table[key / 64] * s.k.stride_batch + 64 * 576 + key % 64 * 8;
      for (int64_t tile = 0; tile < 7; ++tile) footer[tile] = kBytes[(key * 5 + tile * 2) % 9];
      footer[7] = static_cast<uint8_t>(key);
    } else {
      constexpr float kScales[] = {0.0F, 1e-42F, -0.37F, 1e-30F, 0.011F, -1e-3F, 700.0F, 1.0F, 0.02F};
      for (int64_t tile = 0; tile < 4; ++tile) {
        std::memcpy(rows + key * s.k.stride_token + 512 + 4 * tile, &kScales[(key * 5 + tile * 2) % 9], 4);
      }
    }
  }
  EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), by_kernel(problem)), "");
}

// What lies between the pages and behind the scales of a row is 0xff in other tests.
TEST_P(MqaFp8, PaddingMayBeAnything) {
  FmhaSpec spec = in_pages(latent(GetParam(), 64, 2, {150}), 16);
  spec.segments[0].row_padding = 1;
  const FmhaProblem problem(spec);
  const FmhaOutputs first = by_kernel(problem);
  FmhaOutputs out = problem.make_outputs();
  const tessera_kv_segment s = problem.params(&out).segments[0];
  uint8_t* const rows = rows_of(problem);
  for (int64_t page = 0; page < s.num_pages; ++page) {
    uint8_t* const at = rows + page * s.k.stride_batch;
    for (int64_t slot = 0; slot < 16; ++slot) {
      if (is_v4(GetParam())) {
        at[16 * 576 + slot * 8 + 7] = static_cast<uint8_t>(slot * 17);
      } else {
        std::memset(at + slot * s.k.stride_token + 656, static_cast<int>(slot), 16);
      }
    }
    if (is_v4(GetParam())) std::memset(at + 16 * 584, 0x3c, static_cast<size_t>(s.k.stride_batch - 16 * 584));
  }
  EXPECT_EQ(first_difference(problem, first, by_kernel(problem)), "");
}

}  // namespace
}  // namespace tessera::test
