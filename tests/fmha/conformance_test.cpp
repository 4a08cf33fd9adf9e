// Every CPU kernel against the oracle, one feature at a time.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "fmha/conformance.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

FmhaSpec plain(int64_t q, int64_t k) {
  FmhaSpec spec;
  spec.segments.emplace_back();
  return one_sequence(spec, q, k);
}

FmhaSpec causal(int64_t q, int64_t k) {
  FmhaSpec spec = plain(q, k);
  spec.segments[0].causal = 1;
  return spec;
}

struct Dims {
  int32_t qk;
  int32_t v;
};

class HeadDims : public testing::TestWithParam<Dims> {};

TEST_P(HeadDims, PrefillAndDecodeInEveryDtype) {
  for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
    for (const int64_t q : {1, 21}) {
      FmhaSpec spec = causal(q, 75);
      spec.dtype = spec.o_dtype = dtype;
      spec.head_dim_qk = GetParam().qk;
      spec.head_dim_v = GetParam().v;
      spec.row_padding = 3;
      expect_oracle_bytes(spec);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, HeadDims,
                         testing::Values(Dims{1, 1}, Dims{8, 8}, Dims{15, 17}, Dims{16, 16}, Dims{40, 40}, Dims{56, 56},
                                         Dims{64, 64}, Dims{72, 72}, Dims{80, 80}, Dims{88, 88}, Dims{96, 96},
                                         Dims{112, 112}, Dims{128, 128}, Dims{160, 160}, Dims{192, 192}, Dims{224, 224},
                                         Dims{256, 256}, Dims{320, 320}, Dims{512, 512}, Dims{576, 576}, Dims{192, 128},
                                         Dims{576, 512}, Dims{64, 200}, Dims{200, 64}),
                         [](const auto& param) {
                           return "qk" + std::to_string(param.param.qk) + "v" + std::to_string(param.param.v);
                         });

class KeyLengths : public testing::TestWithParam<int64_t> {};

TEST_P(KeyLengths, AroundBlockGranuleChunkBoundaries) {
  for (const int64_t q : {1, 5, 19}) {
    FmhaSpec spec = plain(q, GetParam());
    spec.head_dim_qk = spec.head_dim_v = 16;
    spec.heads_q = spec.heads_kv = 1;
    expect_oracle_bytes(spec);
    spec.segments[0].causal = 1;
    expect_oracle_bytes(spec);
  }
}

INSTANTIATE_TEST_SUITE_P(All, KeyLengths,
                         testing::Values(0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 143, 144, 145, 255,
                                         256, 257, 1024, 2047, 2048, 2049, 2064, 2175, 2176, 4095, 4096, 4097));

TEST(Conformance, GranuleOf64ForWideHeads) {
  for (const int64_t k : {63, 64, 65, 127, 128, 129, 1023, 1025}) {
    FmhaSpec spec = causal(9, k);
    spec.head_dim_qk = 136;
    spec.head_dim_v = 24;
    spec.heads_q = spec.heads_kv = 1;
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, SuperchunkBoundaries) {
  for (const int64_t k : {16 * 2048 - 1, 16 * 2048, 16 * 2048 + 1, 33 * 2048 + 5}) {
    FmhaSpec spec = plain(2, k);
    spec.head_dim_qk = 8;
    spec.head_dim_v = 16;
    spec.heads_q = spec.heads_kv = 1;
    expect_oracle_bytes(spec, 2);
    expect_oracle_bytes(spec, 64);  // many threads: units are chunks instead of superchunks
  }
}

TEST(Conformance, GroupSizes) {
  for (const int32_t group : {1, 2, 3, 5, 6, 7, 8, 9, 12, 16, 20, 32, 64, 128}) {
    for (const int64_t q : {1, 4}) {
      FmhaSpec spec = causal(q, 37);
      spec.head_dim_qk = spec.head_dim_v = 24;
      spec.heads_kv = 2;
      spec.heads_q = 2 * group;
      expect_oracle_bytes(spec);
    }
  }
}

TEST(Conformance, QueryRowCountsAroundBlocks) {
  for (const int64_t q : {7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 200}) {
    FmhaSpec spec = causal(q, 201);
    spec.head_dim_qk = spec.head_dim_v = 32;
    spec.heads_q = spec.heads_kv = 1;
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, WindowsLeftRightAndBoth) {
  for (const int64_t left : {-1, 0, 1, 15, 16, 100, 300, 1 << 20}) {
    for (const int64_t right : {-1, 0, 3, 200}) {
      FmhaSpec spec = plain(40, 290);
      spec.segments[0].window_left = left;
      spec.segments[0].window_right = right;
      spec.segments[0].poison_masked = true;
      expect_oracle_bytes(spec);
    }
  }
}

TEST(Conformance, WindowsOfExtremeWidthAreUnlimited) {
  FmhaSpec spec = causal(3, 50);
  const RowBytes expected = row_of(spec, 0, 2, 1);
  for (const int64_t width : {int64_t{1} << 39, int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    spec.segments[0].window_left = width;
    spec.segments[0].window_right = width;
    EXPECT_EQ(row_of(spec, 0, 2, 1), expected) << width;
  }
}

TEST(Conformance, CausalWindowInDecodeSkipsEarlierGranules) {
  for (const int64_t k : {1, 130, 2100, 4200}) {
    FmhaSpec spec = causal(1, k);
    spec.segments[0].window_left = 127;
    spec.segments[0].poison_masked = true;
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, CompressRatios) {
  for (const int32_t ratio : {1, 2, 4, 5, 128}) {
    FmhaSpec spec = plain(70, 60);
    spec.segments[0].compress_ratio = ratio;
    spec.segments[0].q_positions = {40};
    spec.segments[0].poison_masked = true;
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, QueryPositionsBeforeInsideAndBehindTheKeys) {
  for (const int32_t position : {-5, 0, 3, 60, 1000, 2000000000}) {
    FmhaSpec spec = causal(9, 64);
    spec.segments[0].q_positions = {position};
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, BitMasks) {
  for (const int64_t keys : {-1, 0, 1, 7, 8, 9, 33, 300}) {
    for (const bool per_head : {false, true}) {
      for (const int visible : {0, 1, 5, 8}) {
        FmhaSpec spec = causal(13, 150);
        spec.segments[0].mask = true;
        spec.segments[0].mask_keys = keys;
        spec.segments[0].mask_per_head = per_head;
        spec.segments[0].mask_visible_of_8 = visible;
        spec.segments[0].poison_masked = true;
        expect_oracle_bytes(spec);
      }
    }
  }
}

TEST(Conformance, LayoutsOfQueriesAndKeys) {
  for (const bool q_major : {false, true}) {
    for (const bool k_major : {false, true}) {
      for (const KvLayout layout : {KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged}) {
        for (const bool packed_q : {false, true}) {
          FmhaSpec spec;
          spec.head_dim_qk = 24;
          spec.head_dim_v = 40;
          spec.head_major = q_major;
          spec.packed_q = packed_q;
          spec.slot_padding = packed_q ? 2 : 0;
          spec.q_lengths = {3, 0, 12, 1};
          spec.segments.emplace_back();
          spec.segments[0].lengths = {30, 7, 0, 100};
          spec.segments[0].layout = layout;
          spec.segments[0].head_major = k_major;
          spec.segments[0].causal = 1;
          spec.row_padding = 1;
          spec.segments[0].row_padding = 5;
          expect_oracle_bytes(spec);
        }
      }
    }
  }
}

TEST(Conformance, PageSizes) {
  for (const int32_t page : {1, 2, 16, 17, 48, 64, 128, 333}) {
    for (const int64_t q : {1, 20}) {
      FmhaSpec spec;
      spec.head_dim_qk = spec.head_dim_v = 24;
      spec.q_lengths = {q, q, q};
      spec.segments.emplace_back();
      spec.segments[0].lengths = {1, 130, 345};
      spec.segments[0].layout = KvLayout::kPaged;
      spec.segments[0].page_size = page;
      spec.segments[0].page_seed = static_cast<uint64_t>(page);
      spec.segments[0].causal = 1;
      spec.segments[0].window_left = 150;
      spec.segments[0].poison_masked = true;
      spec.segments[0].unlisted_pages = true;
      expect_oracle_bytes(spec);
    }
  }
}

TEST(Conformance, SegmentsInOrder) {
  for (int count = 2; count <= TESSERA_MAX_SEGMENTS; ++count) {
    FmhaSpec spec;
    spec.head_dim_qk = spec.head_dim_v = 32;
    spec.q_lengths = {6, 1};
    for (int i = 0; i < count; ++i) {
      SegmentSpec segment;
      segment.lengths = {20 + 2100 * (i % 2), 9 * i};
      segment.layout = i % 2 == 0 ? KvLayout::kBatched : KvLayout::kPaged;
      segment.causal = i % 2;
      if (i == 2) segment.compress_ratio = 4;
      if (i == 2) segment.q_positions = {50, 60};
      if (i == 3) segment.window_left = 2;
      spec.segments.push_back(segment);
    }
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, SinksOfEveryKind) {
  FmhaSpec spec = causal(5, 4);  // the first row sees no key
  spec.heads_q = 8;
  spec.sinks = {0.0f, 0.5f, -kInf, kInf, 200.0f, -104.0f, -1e4f, 3e38f};
  expect_oracle_bytes(spec);
  spec.segments[0].lengths = {0};
  expect_oracle_bytes(spec);
}

TEST(Conformance, SoftcapAlibiAndBoth) {
  for (const float cap : {0.0f, 0.5f, 30.0f}) {
    for (const bool alibi : {false, true}) {
      for (const int64_t q : {1, 33}) {
        FmhaSpec spec = causal(q, 2100);
        spec.softcap = cap;
        spec.alibi = alibi;
        spec.q_amplitude = 4.0f;
        expect_oracle_bytes(spec);
      }
    }
  }
}

TEST(Conformance, AlibiWithDistancesBeyond32Bits) {
  FmhaSpec spec = plain(2, 40);
  spec.alibi = true;
  spec.segments[0].q_positions = {-2147483647};
  expect_oracle_bytes(spec);
  spec.segments[0].q_positions = {2147483647};
  expect_oracle_bytes(spec);
}

TEST(Conformance, LargeScoresRaiseTheMaximumAndUnderflow) {
  for (const float amplitude : {8.0f, 40.0f, 1000.0f, 1e6f}) {
    FmhaSpec spec = causal(11, 700);
    spec.q_amplitude = amplitude;
    expect_oracle_bytes(spec);
    spec.unnormalized = true;
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, TinyValuesKeepSubnormals) {
  FmhaSpec spec = causal(4, 30);
  spec.q_amplitude = 1e-38f;
  spec.scale = 1e38f;
  expect_oracle_bytes(spec);
}

TEST(Conformance, OutputModesAndDtypes) {
  for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
    FmhaSpec spec = causal(10, 8);
    spec.head_dim_v = 20;
    spec.dtype = dtype;
    for (const tessera_dtype o_dtype : {dtype, TESSERA_F32}) {
      spec.o_dtype = o_dtype;
      expect_oracle_bytes(spec);
      spec.lse = false;
      expect_oracle_bytes(spec);
      spec.lse = true;
    }
    spec.unnormalized = true;
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, ChunkRanges) {
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 2}, {2, 3}, {0, 2}, {0, 3}, {0, 16}, {0, 7}, {5, 6}}) {
    FmhaSpec spec = causal(3, 2500);
    spec.head_dim_qk = spec.head_dim_v = 16;
    spec.unnormalized = true;
    spec.chunk_begin = begin;
    spec.chunk_end = end;
    expect_oracle_bytes(spec);
  }
}

TEST(Conformance, ValuesThatAliasKeys) {
  FmhaSpec spec = causal(2, 90);
  spec.head_dim_qk = 72;
  spec.head_dim_v = 64;
  spec.heads_q = 16;
  spec.heads_kv = 1;
  spec.segments[0].v_is_k = true;
  expect_oracle_bytes(spec);
}

}  // namespace
}  // namespace tessera::test
