// Where the bytes lie, and what else is in the batch, moves no bit: strides, pages, packing, prefill against decode,
// and NaN in everything that is not a visible key.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "attention_fixture.h"

namespace tessera {
namespace {

class Layout : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, Layout, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

constexpr Shape kShape{.batch = 2, .sq = 5, .sk = 300, .hq = 4, .hk = 2, .dqk = 24, .dv = 20};

void make_causal(Attention& a) {
  a.params.segments[0].causal = 1;
}

TEST_P(Layout, HeadMajorAndTransposedStridesGiveTheSameBits) {
  Attention plain(GetParam(), kShape, 31, 4.0F);
  make_causal(plain);
  plain.run();
  Attention other(GetParam(), kShape, 31, 4.0F);
  make_causal(other);
  // K as (batch, head, token, dim), V as (batch, head, dim, token).
  Tensor k(GetParam().dtype, 2, kShape.hk, kShape.sk, kShape.dqk),
      v(GetParam().dtype, 2, kShape.hk, kShape.dv, kShape.sk);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t j = 0; j < kShape.sk; ++j) {
      for (int64_t h = 0; h < kShape.hk; ++h) {
        for (int64_t d = 0; d < kShape.dqk; ++d) {
          k.set(b, h, j, d, other.k.at(b, j, h, d));
        }
        for (int64_t d = 0; d < kShape.dv; ++d) {
          v.set(b, h, d, j, other.v.at(b, j, h, d));
        }
      }
    }
  }
  other.params.segments[0].k = {k.view().data, int64_t{kShape.hk} * kShape.sk * kShape.dqk, kShape.dqk,
                                kShape.sk * kShape.dqk, 1};
  other.params.segments[0].v = {v.view().data, int64_t{kShape.hk} * kShape.dv * kShape.sk, 1, kShape.dv * kShape.sk,
                                kShape.sk};
  other.run();
  EXPECT_EQ(other.all(), plain.all());
}

// K and V in pages of `size` keys, pages in shuffled order, unused slots and pages NaN.
struct Paged {
  Paged(const Attention& a, int64_t size, std::vector<int64_t> lengths) {
    pages_per_sequence = (a.shape.sk + size - 1) / size;
    const int64_t pool = a.shape.batch * pages_per_sequence + 3;
    k = Tensor(a.numerics.dtype, pool, size, a.shape.hk, a.shape.dqk);
    v = Tensor(a.numerics.dtype, pool, size, a.shape.hk, a.shape.dv);
    k.fill_with(kNan);
    v.fill_with(kNan);
    std::vector<int32_t> ids(static_cast<size_t>(pool));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(9));
    table.assign(ids.begin(), ids.begin() + static_cast<int64_t>(a.shape.batch * pages_per_sequence));
    for (int64_t b = 0; b < a.shape.batch; ++b) {
      for (int64_t j = 0; j < lengths[static_cast<size_t>(b)]; ++j) {
        const int32_t page = table[static_cast<size_t>(b * pages_per_sequence + j / size)];
        k.copy_token(page, j % size, a.k, b, j);
        v.copy_token(page, j % size, a.v, b, j);
      }
    }
    num_pages = pool;
    page_size = static_cast<int32_t>(size);
  }
  void attach(Attention& a) {
    tessera_kv_segment& s = a.params.segments[0];
    s.k = k.view();
    s.v = v.view();
    s.page_table = table.data();
    s.page_table_stride = pages_per_sequence;
    s.page_size = page_size;
    s.num_pages = num_pages;
  }
  Tensor k, v;
  std::vector<int32_t> table;
  int64_t pages_per_sequence, num_pages;
  int32_t page_size;
};

TEST_P(Layout, AnyPageSizeGivesTheBitsOfContiguousKeys) {
  Attention plain(GetParam(), kShape, 32, 4.0F);
  make_causal(plain);
  plain.run();
  for (const int64_t size : {1, 2, 16, 17, 48, 64, 256, 512}) {
    Attention paged(GetParam(), kShape, 32, 4.0F);
    make_causal(paged);
    Paged pages(paged, size, {kShape.sk, kShape.sk});
    pages.attach(paged);
    paged.run();
    EXPECT_EQ(paged.all(), plain.all()) << "page size " << size;
  }
}

TEST_P(Layout, PagesLeftOfTheWindowMayBeFreed) {
  Attention plain(GetParam(), kShape, 33);
  make_causal(plain);
  plain.params.segments[0].window_left = 99;
  plain.run();
  Attention paged(GetParam(), kShape, 33);
  make_causal(paged);
  paged.params.segments[0].window_left = 99;
  Paged pages(paged, 16, {kShape.sk, kShape.sk});
  // The first query token stands at 295 and sees keys from 196 on: pages 0 to 11 are gone.
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t page = 0; page < 12; ++page) {
      pages.table[static_cast<size_t>(b * pages.pages_per_sequence + page)] = -1;
    }
  }
  pages.attach(paged);
  paged.run();
  EXPECT_EQ(paged.all(), plain.all());
}

TEST_P(Layout, NanBeyondTheLengthsAndInMaskedKeysNeverShows) {
  const std::vector<int32_t> lengths = {300, 137};
  const std::vector<int32_t> queries = {5, 2};
  const auto set_up = [&](Attention& a) {
    make_causal(a);
    a.params.segments[0].window_left = 130;
    a.params.segments[0].seqlens_k = lengths.data();
    a.params.seqlens_q = queries.data();
  };
  Attention clean(GetParam(), kShape, 34, 4.0F);
  set_up(clean);
  clean.run();
  Attention dirty(GetParam(), kShape, 34, 4.0F);
  set_up(dirty);
  for (int64_t h = 0; h < kShape.hk; ++h) {
    for (int64_t j = 137; j < 300; ++j) {
      dirty.k.set_row(1, j, h, kNan);
      dirty.v.set_row(1, j, h, kInf);
    }
    for (int64_t j = 0; j < 5; ++j) {  // sequence 1: positions 135 and 136, keys from 5 on
      dirty.k.set_row(1, j, h, -kInf);
      dirty.v.set_row(1, j, h, kNan);
    }
  }
  for (int64_t i = 2; i < 5; ++i) {
    dirty.q.set_row(1, i, 0, kNan);
  }
  dirty.run();
  EXPECT_EQ(dirty.all(), clean.all());
  const std::vector<uint8_t> untouched(clean.o.row_bytes(1, 3, 0).size(), 0xff);
  EXPECT_EQ(clean.o.row_bytes(1, 3, 0), untouched);  // padding rows are not written
}

TEST_P(Layout, AMaskedKeyOfALaterRowMayHoldNanInEarlierRows) {
  // Causal prefill: key 4 is NaN, rows 0..3 do not see it.
  Attention clean(GetParam(), {.sq = 5, .sk = 5});
  make_causal(clean);
  clean.run();
  Attention dirty(GetParam(), {.sq = 5, .sk = 5});
  make_causal(dirty);
  dirty.k.set_row(0, 4, 0, kNan);
  dirty.v.set_row(0, 4, 0, kNan);
  dirty.run();
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(dirty.row(0, i, 0), clean.row(0, i, 0));
  }
}

TEST_P(Layout, DecodeAndChunkedPrefillGiveTheRowsOfPrefill) {
  const Shape shape{.sq = 200, .sk = 200, .hq = 2, .hk = 1, .dqk = 16, .dv = 16};
  Attention prefill(GetParam(), shape, 35, 4.0F);
  make_causal(prefill);
  prefill.params.segments[0].window_left = 150;
  prefill.run();
  for (const int64_t step : {1, 7, 64}) {
    for (int64_t first = 0; first < 200; first += step) {
      if (step == 1 && first % 13 != 0) {
        continue;
      }
      const int64_t count = std::min(step, 200 - first);
      Attention part(GetParam(), {.sq = count, .sk = 200, .hq = 2, .hk = 1, .dqk = 16, .dv = 16}, 35, 4.0F);
      make_causal(part);
      part.params.segments[0].window_left = 150;
      part.params.segments[0].seqlen_k = first + count;
      for (int64_t i = 0; i < count; ++i) {
        part.q.copy_token(0, i, prefill.q, 0, first + i);
      }
      part.run();
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(part.row(0, i, 1), prefill.row(0, first + i, 1)) << "step " << step << " token " << first + i;
      }
    }
  }
}

TEST_P(Layout, PackedSequencesGiveTheRowsOfEachSequenceAlone) {
  const std::vector<int32_t> cu_q = {0, 3, 3, 10, 11};
  const std::vector<int32_t> cu_k = {0, 40, 45, 45, 300};
  Attention packed(GetParam(), {.batch = 1, .sq = 11, .sk = 300, .hq = 2, .hk = 2, .dqk = 16, .dv = 16}, 36, 4.0F);
  make_causal(packed);
  packed.params.batch = 4;
  packed.params.cu_seqlens_q = cu_q.data();
  packed.params.seqlen_q = 7;
  packed.params.segments[0].cu_seqlens_k = cu_k.data();
  packed.params.segments[0].k.stride_batch = packed.params.segments[0].v.stride_batch = 0;
  packed.run();
  for (size_t s = 0; s < 4; ++s) {
    const int64_t sq = cu_q[s + 1] - cu_q[s];
    const int64_t sk = cu_k[s + 1] - cu_k[s];
    if (sq == 0) {
      continue;
    }
    Attention alone(GetParam(), {.sq = sq, .sk = sk, .hq = 2, .hk = 2, .dqk = 16, .dv = 16});
    make_causal(alone);
    for (int64_t i = 0; i < sq; ++i) {
      alone.q.copy_token(0, i, packed.q, 0, cu_q[s] + i);
    }
    for (int64_t j = 0; j < sk; ++j) {
      alone.k.copy_token(0, j, packed.k, 0, cu_k[s] + j);
      alone.v.copy_token(0, j, packed.v, 0, cu_k[s] + j);
    }
    alone.run();
    for (int64_t i = 0; i < sq; ++i) {
      EXPECT_EQ(packed.row(0, cu_q[s] + i, 1), alone.row(0, i, 1)) << "sequence " << s;
    }
  }
}

TEST_P(Layout, NeighboursInTheBatchMoveNoBit) {
  Attention many(GetParam(), {.batch = 6, .sq = 2, .sk = 150, .hq = 2, .hk = 1}, 37, 4.0F);
  const std::vector<int32_t> lengths = {150, 1, 0, 77, 128, 129};
  many.params.segments[0].seqlens_k = lengths.data();
  many.run();
  for (int64_t b = 0; b < 6; ++b) {
    Attention alone(GetParam(), {.sq = 2, .sk = 150, .hq = 2, .hk = 1});
    alone.params.segments[0].seqlen_k = lengths[static_cast<size_t>(b)];
    for (int64_t i = 0; i < 2; ++i) {
      alone.q.copy_token(0, i, many.q, b, i);
    }
    for (int64_t j = 0; j < 150; ++j) {
      alone.k.copy_token(0, j, many.k, b, j);
      alone.v.copy_token(0, j, many.v, b, j);
    }
    alone.run();
    EXPECT_EQ(many.row(b, 1, 1), alone.row(0, 1, 1)) << b;
  }
}

TEST_P(Layout, VMayAliasK) {
  Attention separate(GetParam(), {.sq = 2, .sk = 60, .dqk = 32, .dv = 16}, 38);
  for (int64_t j = 0; j < 60; ++j) {
    for (int64_t d = 0; d < 16; ++d) {
      separate.v.set(0, j, 0, d, separate.k.at(0, j, 0, d));
    }
  }
  separate.run();
  Attention shared(GetParam(), {.sq = 2, .sk = 60, .dqk = 32, .dv = 16}, 38);
  shared.params.segments[0].v = shared.params.segments[0].k;
  shared.run();
  EXPECT_EQ(shared.all(), separate.all());
}

TEST_P(Layout, StridesOfTwoToTheThirtyOneElementsAreSixtyFourBit) {
  // A stride that only the (absent) second sequence would use must not be truncated or multiplied in 32 bits; the
  // addresses of sequence 0 do not depend on it.
  Attention a(GetParam(), {.sq = 1, .sk = 20});
  a.run();
  const std::vector<uint8_t> expected = a.all();
  a.params.segments[0].k.stride_batch = int64_t{1} << 40;
  a.params.segments[0].v.stride_batch = -(int64_t{1} << 40);
  a.run();
  EXPECT_EQ(a.all(), expected);
}

}  // namespace
}  // namespace tessera
