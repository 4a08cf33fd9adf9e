// The kernel for one K/V head whose V is the first 512 dims of K's rows (of 512 or 576) against the oracle, byte for
// byte, through the public interface: windows, compressed and gathered keys, pages, segments, sinks, states, any number
// of heads. Needs an sm_90 GPU.
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "sm90/mqa_512_case.h"

namespace tessera::test {
namespace {

class Mqa512Bytes : public Mqa512Case {};

TEST_P(Mqa512Bytes, OneGranuleAndOnePair) {
  for (const int64_t keys : {1, 63, 64, 65, 127, 128, 129, 200}) {
    check(mqa(64, 1, {keys}));
  }
}

TEST_P(Mqa512Bytes, AnyNumberOfHeads) {
  for (const int32_t heads : {1, 8, 16, 24, 64, 96, 128}) {
    check(mqa(heads, 5, {300}));
    FmhaSpec full = mqa(heads, 3, {70, 0, 257});
    full.segments[0].causal = 0;
    check(full);
  }
}

TEST_P(Mqa512Bytes, TurnedOutputs) {
  for (const int32_t dims : {2, 64, 320, 512}) {
    FmhaSpec spec = window_and_compressed(64, 3, {300, 2, 1000}, 4);
    spec.o_rope_dims = dims;
    check(spec);
  }
  FmhaSpec spec = mqa(24, 9, {5, 70});  // some rows see no key
  spec.o_rope_dims = 64;
  spec.o_dtype = TESSERA_F32;
  check(spec);
  spec.packed_q = true;
  check(spec);
}

TEST_P(Mqa512Bytes, ManyTokens) {
  check(mqa(3, 150, {150}));
  check(mqa(2, 100, {40, 700}));
  check(mqa(1, 300, {1}));
}

TEST_P(Mqa512Bytes, MoreTilesThanBlocks) {
  check(mqa(64, 300, {310}));
}

// Rows of O that the copy engine stores, at tokens that only the device knows.
TEST_P(Mqa512Bytes, PackedSequencesOfWholeTiles) {
  for (const int32_t heads : {64, 128}) {
    for (const int64_t padding : {0, 5}) {
      FmhaSpec spec = mqa(heads, 1, {70, 0, 9, 64, 3});
      spec.q_lengths = {3, 2, 0, 1, 3};
      spec.packed_q = true;
      spec.slot_padding = padding;
      check(spec);
    }
  }
}

// Rows without keys are finished while keys of the block's next tile arrive.
TEST_P(Mqa512Bytes, TilesWithoutKeysBetweenOthers) {
  std::vector<int64_t> lengths;
  for (int i = 0; i < 700; ++i) {
    constexpr int64_t kLengths[] = {70, 0, 130, 0, 200};
    lengths.push_back(kLengths[i % std::size(kLengths)]);
  }
  check(mqa(64, 1, lengths));
}

TEST_P(Mqa512Bytes, WindowsBeginAndEndAnywhere) {
  for (const int64_t keys : {100, 128, 191, 192, 300, 1000}) {
    FmhaSpec spec = mqa(64, 2, {keys, keys - 7});
    spec.segments[0].window_left = 127;
    check(spec);
    spec.heads_q = 8;
    spec.q_lengths = {30, 30};
    spec.segments[0].causal = 0;
    spec.segments[0].window_left = 20;
    spec.segments[0].window_right = 10;
    check(spec);
  }
}

TEST_P(Mqa512Bytes, ChunksAndTheirChain) {
  check(mqa(8, 3, {2048, 2049, 4200}));
  FmhaSpec spec = mqa(16, 2, {6300});
  spec.q_amplitude = 20.0F;
  check(spec);
  spec.segments[0].window_left = 4000;
  check(spec);
}

TEST_P(Mqa512Bytes, SuperchunksAndTheirChain) {
  check(mqa(2, 1, {33000}));
  FmhaSpec spec = window_and_compressed(2, 1, {67000}, 2);
  spec.segments[0].window_left = 36000;
  check(spec);
}

TEST_P(Mqa512Bytes, MovingMaxima) {
  for (const float amplitude : {0.0F, 1e-3F, 20.0F, 200.0F}) {
    FmhaSpec spec = mqa(64, 2, {700});
    spec.q_amplitude = amplitude;
    check(spec);
    spec = window_and_compressed(24, 4, {900, 40}, 4);
    spec.q_amplitude = amplitude;
    check(spec);
  }
}

TEST_P(Mqa512Bytes, PagesOfAnySize) {
  for (const int32_t page : {1, 3, 16, 64, 100}) {
    FmhaSpec spec = mqa(64, 2, {400, 0, 90});
    spec.segments[0].layout = KvLayout::kPaged;
    spec.segments[0].page_size = page;
    spec.segments[0].unlisted_pages = page % 2 == 0;
    check(spec);
    spec.segments[0].window_left = 70;
    check(spec);
  }
}

TEST_P(Mqa512Bytes, WindowAndCompressedKeys) {
  for (const int32_t heads : {64, 128, 16}) {
    for (const int32_t ratio : {4, 128}) {
      check(window_and_compressed(heads, 3, {1500, 3, 130}, ratio));
    }
  }
  FmhaSpec spec = window_and_compressed(64, 2, {9000}, 4);
  check(spec);
  std::swap(spec.segments[0], spec.segments[1]);
  check(spec);
}

TEST_P(Mqa512Bytes, WindowAndGatheredKeys) {
  for (const int32_t heads : {64, 128, 96, 16}) {
    check_gathered(window_and_compressed(heads, 3, {1500, 30, 700}, 4), 1, 130);
  }
  check_gathered(window_and_compressed(64, 2, {9000, 5000}, 4), 1, 512);
  check_gathered(window_and_compressed(64, 1, {9000, 5000}, 4), 1, 700, true);
  check_gathered(window_and_compressed(8, 1, {9000}, 2), 1, 2100);
  FmhaSpec spec = window_and_compressed(64, 2, {3000, 64}, 4);
  std::swap(spec.segments[0], spec.segments[1]);
  check_gathered(spec, 0, 300);
}

TEST_P(Mqa512Bytes, GatheredKeysAloneAndOnPages) {
  for (const int32_t page : {0, 1, 5, 64}) {
    FmhaSpec spec = mqa(64, 2, {900, 17, 2300});
    if (page != 0) {
      spec.segments[0].layout = KvLayout::kPaged;
      spec.segments[0].page_size = page;
    }
    check_gathered(spec, 0, 200);
  }
}

TEST_P(Mqa512Bytes, StatesAndWideOutput) {
  FmhaSpec spec = window_and_compressed(64, 2, {1500, 0, 130}, 4);
  spec.o_dtype = TESSERA_F32;
  check(spec);
  spec.sinks.clear();
  spec.unnormalized = true;
  check(spec);
  check_gathered(spec, 1, 130);
}

TEST_P(Mqa512Bytes, LayoutsWithPaddingAndHeadsFirst) {
  FmhaSpec spec = window_and_compressed(24, 5, {400, 77}, 4);
  spec.row_padding = 8;
  spec.segments[0].row_padding = spec.segments[1].row_padding = 64;
  check(spec);
  spec.head_major = true;
  check(spec);
  spec.q_bound = 9;
  spec.q_lengths = {5, 2};
  check(spec);
}

TEST_P(Mqa512Bytes, OneLaunchEqualsTwoPassesThatAreMerged) {
  const FmhaProblem problem(window_and_compressed(64, 3, {1500}, 4));
  EXPECT_EQ(first_difference(problem, merged_passes(problem), by_kernel(problem, {})), "");
}

// 64 heads alone have the bits that they have among 128.
TEST_P(Mqa512Bytes, HeadsDoNotMeet) {
  const FmhaProblem problem(window_and_compressed(128, 2, {1200}, 4));
  DeviceProblem device(problem);
  FmhaOutputs all;
  ASSERT_EQ(run_on(device, kMqa, &all), "");
  tessera_fmha_params half = device.params;
  half.num_heads_q = 64;
  FmhaOutputs some;
  ASSERT_EQ(run_on(device, half, kMqa, &some), "");
  for (int64_t token = 0; token < 2; ++token) {
    for (int64_t head = 0; head < 64; ++head) {
      EXPECT_TRUE(problem.row(all, 0, token, head) == problem.row(some, 0, token, head)) << token << " " << head;
    }
  }
}

TEST_P(Mqa512Bytes, OtherValuesThanKeysAreRefused) {
  FmhaSpec spec = mqa(64, 1, {100});
  spec.segments[0].v_is_k = false;
  const FmhaProblem problem(spec);
  EXPECT_EQ(run_cuda(kMqa, problem).status, TESSERA_UNSUPPORTED);
}

TEST_P(Mqa512Bytes, OtherHeadDimsAreRefused) {
  FmhaSpec spec = mqa(64, 1, {100});
  spec.head_dim_qk = 544;
  EXPECT_EQ(run_cuda(kMqa, FmhaProblem(spec)).status, TESSERA_UNSUPPORTED);
  spec.head_dim_qk = 576;
  spec.head_dim_v = 448;
  EXPECT_EQ(run_cuda(kMqa, FmhaProblem(spec)).status, TESSERA_UNSUPPORTED);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mqa512Bytes,
                         testing::Values(Kind{TESSERA_BF16, 512}, Kind{TESSERA_F16, 512}, Kind{TESSERA_BF16, 576},
                                         Kind{TESSERA_F16, 576}),
                         kind_name);

}  // namespace
}  // namespace tessera::test
