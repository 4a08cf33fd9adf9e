// Several segments in one launch of the decode kernels (R10), against the oracle: raw keys under a window beside keys
// that stand for r of them each, positions of the queries, pages of other sizes in each segment, segments without keys,
// sinks; and the rows that prefill kernels write for the same tokens.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/decode.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// `tokens` query tokens at the end of each context: a window over its keys, then what they were compressed to.
FmhaSpec window_and_compressed(tessera_dtype dtype, int64_t tokens, const std::vector<int64_t>& contexts, int32_t ratio,
                               int32_t group = 4) {
  FmhaSpec spec = decode_spec(dtype, tokens, 1, group);
  spec.seed = static_cast<uint64_t>(tokens * 31 + ratio + group);
  spec.q_lengths.assign(contexts.size(), tokens);
  SegmentSpec& window = spec.segments[0];
  window.lengths = contexts;
  window.window_left = 127;
  window.layout = KvLayout::kPaged;
  window.page_size = 16;
  window.poison_masked = true;
  SegmentSpec compressed;
  compressed.lengths.clear();
  for (const int64_t context : contexts) {
    compressed.lengths.push_back(context / ratio);
    compressed.q_positions.push_back(static_cast<int32_t>(context - tokens));
  }
  compressed.compress_ratio = ratio;
  compressed.layout = KvLayout::kPaged;
  compressed.page_size = 64;
  compressed.page_seed = 5;
  compressed.poison_masked = true;
  spec.segments.push_back(compressed);
  return spec;
}

class CudaDecodeSegments : public CudaTest, public testing::WithParamInterface<tessera_dtype> {
 protected:
  // One launch, its scratch NaN, gives the oracle's bytes.
  static void check(const FmhaSpec& spec) {
    SCOPED_TRACE(to_text(spec));
    const FmhaProblem problem(spec);
    DeviceProblem device(problem, {.keep_lengths = true});
    FmhaOutputs out;
    ASSERT_EQ(run_on(device, kDecode, &out), "");
    EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), out), "");
  }
};

TEST_P(CudaDecodeSegments, WindowAndCompressedKeysOfEveryHeadDim) {
  for (const auto& [qk, v] : {std::pair{64, 64},
                              {128, 128},
                              {192, 128},
                              {256, 256},
                              {512, 512},
                              {576, 512},
                              {80, 80},
                              {40, 24},
                              {320, 512}}) {
    for (const int32_t ratio : {4, 128}) {
      FmhaSpec spec = window_and_compressed(GetParam(), 1, {700, 3, 9000, 130, 2049}, ratio);
      spec.head_dim_qk = qk;
      spec.head_dim_v = v;
      check(spec);
    }
  }
}

// Few launches that reach every role and both chains: what tools/gpu_check may give to the memory checkers.
TEST_P(CudaDecodeSegments, FewLaunches) {
  check(window_and_compressed(GetParam(), 2, {300, 0, 8500}, 4));
}

TEST_P(CudaDecodeSegments, OneToSixteenQueryTokens) {
  for (int64_t tokens = 1; tokens <= 16; ++tokens) {
    for (const int32_t ratio : {4, 128}) {
      check(window_and_compressed(GetParam(), tokens, {tokens, 600 + tokens, 2300}, ratio));
    }
  }
}

TEST_P(CudaDecodeSegments, EveryRatioOfHeads) {
  for (const int32_t group : {1, 4, 5, 7, 8, 16, 64, 128}) {
    check(window_and_compressed(GetParam(), group > 16 ? 1 : 3, {1000, 140}, 4, group));
  }
}

TEST_P(CudaDecodeSegments, ContextsAroundTheEndsOfCompressedKeysAndChunks) {
  for (const int64_t context : {1, 3, 4, 5, 127, 128, 129, 511, 512, 513, 8191, 8192, 8193, 8196}) {
    check(window_and_compressed(GetParam(), 1, {context}, 4));
    if (context > 3) check(window_and_compressed(GetParam(), 3, {context}, 128));
  }
}

TEST_P(CudaDecodeSegments, PagesOfOtherSizesInEachSegment) {
  for (const auto& [first, second] : {std::pair{1, 64}, {16, 3}, {256, 17}, {0, 16}, {48, 0}}) {
    FmhaSpec spec = window_and_compressed(GetParam(), 2, {5000, 77, 300}, 4);
    int i = 0;
    for (const int32_t page : {first, second}) {
      SegmentSpec& s = spec.segments[static_cast<size_t>(i++)];
      s.layout = page == 0 ? KvLayout::kBatched : KvLayout::kPaged;
      s.page_size = page == 0 ? 16 : page;
      s.unlisted_pages = true;
    }
    check(spec);
  }
}

TEST_P(CudaDecodeSegments, SegmentsWithoutKeysAndSinksThatCountOnce) {
  FmhaSpec spec = window_and_compressed(GetParam(), 1, {5000, 77, 300, 40}, 4);
  spec.sinks = {0.7F, -kInf, 12.0F, kInf, -40.0F, 0.0F, 3.0F, 90.0F};
  check(spec);
  for (const bool first : {true, false}) {
    FmhaSpec half = spec;
    half.segments[first ? 0 : 1].lengths = {0, 0, 0, 0};
    check(half);
    half.segments[first ? 1 : 0].lengths = {0, 33, 0, 1};
    check(half);
  }
  FmhaSpec none = spec;
  for (SegmentSpec& s : none.segments) s.lengths = {0, 0, 0, 0};
  check(none);
  spec.sinks.clear();
  spec.unnormalized = true;
  spec.o_dtype = TESSERA_F32;
  check(spec);
  for (SegmentSpec& s : spec.segments) s.lengths = {0, 5000, 0, 1};
  check(spec);
}

TEST_P(CudaDecodeSegments, FourSegmentsWithSoftcapAlibiAndCustomBits) {
  FmhaSpec spec = window_and_compressed(GetParam(), 4, {2600, 150}, 4);
  spec.softcap = 20.0F;
  spec.alibi = true;
  spec.sinks.assign(static_cast<size_t>(spec.heads_q), 1.0F);
  SegmentSpec shared = spec.segments[1];
  shared.compress_ratio = 128;
  spec.segments.push_back(shared);
  SegmentSpec drafted;
  drafted.lengths = {4, 4};
  drafted.mask = true;
  drafted.q_positions = {2596, 146};
  spec.segments.push_back(drafted);
  check(spec);
}

// Windows at given positions may begin and end anywhere: in more chunks than ones that end with the keys would take.
TEST_P(CudaDecodeSegments, WindowsAtPositionsFarFromTheEnd) {
  for (const auto& [left, right] : {std::pair<int64_t, int64_t>{10, -1}, {10, 9000}, {-1, 10}, {3000, 5}, {0, 0}}) {
    FmhaSpec spec = decode_spec(GetParam(), 2, 1);
    spec.q_lengths = {2, 2, 2, 2};
    SegmentSpec& s = spec.segments[0];
    s.causal = 0;
    s.lengths = {13000, 13000, 9000, 100};
    s.window_left = left;
    s.window_right = right;
    s.q_positions = {0, 6000, 12990, -1};
    s.poison_masked = true;
    check(spec);
    s.causal = 1;
    check(spec);
  }
}

TEST_P(CudaDecodeSegments, PositionsOfAnySize) {
  for (const int32_t ratio : {0, 1, 4, 128}) {
    for (const bool alibi : {false, true}) {
      // Under ALiBi not so far that all weights vanish: the row would be 0 / 0.
      const int32_t least = alibi ? -(1 << 20) : std::numeric_limits<int32_t>::min();
      const int32_t most = alibi ? 1 << 20 : std::numeric_limits<int32_t>::max();
      FmhaSpec spec = window_and_compressed(GetParam(), 3, {400, 400, 400, 400, 400, 400}, 4);
      spec.alibi = alibi;
      spec.segments[1].compress_ratio = ratio;
      spec.segments[1].causal = ratio == 0 ? 1 : 0;
      spec.segments[1].q_positions = {least, most, -3, -1, most / 2, 0};
      spec.segments[0].q_positions = {most, least, 600, 400, -1, 127};
      check(spec);
    }
  }
}

// A decoded row is the row of a prefill of all tokens: by the ragged kernel, one compressed segment at given positions;
// by the sm80 kernel all segments.
TEST_P(CudaDecodeSegments, APrefillWritesTheDecodedRows) {
  for (const int64_t tokens : {1, 4}) {
    for (const int32_t ratio : {4, 128}) {
      for (const bool together : {false, true}) {
        constexpr int64_t kAll = 80;
        FmhaSpec last = window_and_compressed(GetParam(), tokens, {3000, 400}, ratio);
        if (!together) last.segments.erase(last.segments.begin());
        last.q_first.assign(2, kAll - tokens);
        FmhaSpec all = last;
        all.q_lengths.assign(2, kAll);
        all.q_first.clear();
        for (SegmentSpec& s : all.segments) {
          for (int32_t& position : s.q_positions) position -= static_cast<int32_t>(kAll - tokens);
        }
        SCOPED_TRACE(to_text(all));
        const FmhaProblem decode(last);
        DeviceProblem device(decode, {.keep_lengths = true});
        FmhaOutputs decoded;
        ASSERT_EQ(run_on(device, kDecode, &decoded), "");
        const FmhaProblem prefill(all);
        DeviceProblem whole(prefill, {.keep_lengths = true});
        FmhaOutputs rows;
        ASSERT_EQ(run_on(whole, together ? "sm80_fmha" : "sm90_fmha_ragged", &rows), "");
        EXPECT_TRUE(last_rows(prefill, rows, tokens) == last_rows(decode, decoded, tokens));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeSegments, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);

}  // namespace
}  // namespace tessera::test
