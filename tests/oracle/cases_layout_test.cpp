// Inputs that broke other attention libraries: stale and padded memory (D), masks, windows, paging and zero lengths
// (F).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention_fixture.h"
#include "expect_close.h"

namespace tessera {
namespace {

class CasesLayout : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, CasesLayout, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

// Paged copies of an Attention's keys, pages in reverse order, every byte that no key owns NaN.
class Pages {
 public:
  Pages(Attention& a, int64_t size, const std::vector<int32_t>& lengths)
      : per_sequence_((a.shape.sk + size - 1) / size) {
    const int64_t pool = per_sequence_ * a.shape.batch;
    k_ = Tensor(a.numerics.dtype, pool, size, a.shape.hk, a.shape.dqk);
    v_ = Tensor(a.numerics.dtype, pool, size, a.shape.hk, a.shape.dv);
    k_.fill_with(kNan);
    v_.fill_with(kNan);
    for (int64_t b = 0; b < a.shape.batch; ++b) {
      for (int64_t page = 0; page < per_sequence_; ++page) {
        table_.push_back(static_cast<int32_t>(pool - 1 - (b * per_sequence_ + page)));
      }
      for (int64_t j = 0; j < lengths[static_cast<size_t>(b)]; ++j) {
        const int32_t page = table_[static_cast<size_t>(b * per_sequence_ + j / size)];
        k_.copy_token(page, j % size, a.k, b, j);
        v_.copy_token(page, j % size, a.v, b, j);
      }
    }
    tessera_kv_segment& s = a.params.segments[0];
    s.k = k_.view();
    s.v = v_.view();
    s.page_table = table_.data();
    s.page_table_stride = per_sequence_;
    s.page_size = static_cast<int32_t>(size);
    s.num_pages = pool;
    s.seqlens_k = lengths.data();
  }
  Tensor& v() { return v_; }
  Tensor& k() { return k_; }
  const std::vector<int32_t>& table() const { return table_; }

 private:
  int64_t per_sequence_;
  Tensor k_, v_;
  std::vector<int32_t> table_;
};

TEST_P(CasesLayout, B2B4PagedSequencesWriteEveryRow) {
  const std::vector<int32_t> lengths = {1000, 700};
  Attention a(GetParam(), {.batch = 2, .sq = 1, .sk = 1024, .hq = 4, .hk = 4}, 81);
  Pages pages(a, 256, lengths);
  expect_close(a);
  for (int64_t h = 0; h < 4; ++h) {
    EXPECT_TRUE(std::isfinite(a.o.at(1, 0, h, 0)));
  }
}

TEST_P(CasesLayout, D1NanPadsEqualZeroPads) {
  const std::vector<int32_t> lengths = {1, 3};
  const auto run_with = [&](float pad) {
    Attention a(GetParam(), {.batch = 2, .sq = 1, .sk = 3, .dqk = 64, .dv = 64}, 82);
    a.q.fill_with(0.5F);
    a.params.segments[0].seqlens_k = lengths.data();
    for (int64_t j = 1; j < 3; ++j) {
      a.k.set_row(0, j, 0, pad);
      a.v.set_row(0, j, 0, pad);
    }
    a.run();
    return a.all();
  };
  EXPECT_EQ(run_with(kNan), run_with(0.0F));
}

TEST_P(CasesLayout, D3F24LengthsOffTheTile) {
  for (const int64_t keys : {1, 63, 65, 127, 128, 129, 227}) {
    Attention a(GetParam(), {.sq = 1, .sk = keys, .hq = 2, .hk = 2, .dqk = 64, .dv = 64}, 83);
    expect_close(a);
  }
}

TEST_P(CasesLayout, D4PagesLeftOfTheWindowHoldNan) {
  const std::vector<int32_t> lengths = {500};
  Attention a(GetParam(), {.sq = 1, .sk = 500, .hq = 8, .hk = 1, .dqk = 64, .dv = 64}, 84);
  Pages pages(a, 16, lengths);
  a.params.segments[0].causal = 1;
  a.params.segments[0].window_left = 127;  // keys 372..499: pages 0..22 are free
  for (size_t page = 0; page < 23; ++page) {
    for (int64_t t = 0; t < 16; ++t) {
      pages.k().set_row(pages.table()[page], t, 0, kNan);
      pages.v().set_row(pages.table()[page], t, 0, kNan);
    }
  }
  expect_close(a);
}

TEST_P(CasesLayout, D9PackedTailBeyondTheLastSequence) {
  const std::vector<int32_t> cu = {0, 60, 100};
  Attention clean(GetParam(), {.batch = 1, .sq = 100, .sk = 160}, 85);
  Attention dirty(GetParam(), {.batch = 1, .sq = 100, .sk = 160}, 85);
  for (Attention* a : {&clean, &dirty}) {
    a->params.batch = 2;
    a->params.cu_seqlens_q = cu.data();
    a->params.segments[0].cu_seqlens_k = cu.data();
    a->params.segments[0].k.stride_batch = a->params.segments[0].v.stride_batch = 0;
    a->params.segments[0].causal = 1;
  }
  for (int64_t j = 100; j < 160; ++j) {
    dirty.k.set_row(0, j, 0, kNan);
    dirty.v.set_row(0, j, 0, kNan);
  }
  clean.run();
  dirty.run();
  EXPECT_EQ(dirty.all(), clean.all());
}

TEST_P(CasesLayout, D10F25MaskOfExactSizeSharedByAllHeads) {
  Attention a(GetParam(), {.batch = 2, .sq = 96, .sk = 96, .hq = 2, .hk = 1}, 86);
  std::vector<uint8_t> bits(96 * 12);
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<uint8_t>(i * 151 + 3);
  }
  a.params.segments[0].mask = {bits.data(), 0, 0, 12, -1};
  expect_close(a);
}

TEST_P(CasesLayout, D11D12InvalidIndicesDoNotReadKeyZero) {
  const std::vector<int32_t> indices = {-1, 9, -1, 4, -1, -1, 12, -1};
  Attention clean(GetParam(), {.sq = 1, .sk = 20}, 87);
  Attention dirty(GetParam(), {.sq = 1, .sk = 20}, 87);
  for (Attention* a : {&clean, &dirty}) {
    a->params.segments[0].indices = indices.data();
    a->params.segments[0].indices_stride = 8;
    a->params.segments[0].topk = 8;
  }
  clean.k.set_row(0, 0, 0, 0.0F);
  clean.v.set_row(0, 0, 0, 0.0F);
  dirty.k.set_row(0, 0, 0, kNan);
  dirty.v.set_row(0, 0, 0, kNan);
  clean.run();
  dirty.run();
  EXPECT_EQ(dirty.all(), clean.all());
}

TEST_P(CasesLayout, F1NonCausalWindowFromTheFirstRowOn) {
  const std::vector<int32_t> lengths = {1000};
  Attention a(GetParam(), {.sq = 150, .sk = 1000, .hq = 4, .hk = 1}, 88);
  Pages pages(a, 16, lengths);
  a.params.segments[0].window_left = 333;
  expect_close(a);
}

TEST_P(CasesLayout, F4WindowHasExactlyItsKeys) {
  for (const int64_t window : {128, 4096}) {
    Attention a(GetParam(), {.sq = 1, .sk = 5000}, 89);
    a.zero_queries();
    a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
    a.params.segments[0].causal = 1;
    a.params.segments[0].window_left = window - 1;
    a.run();
    EXPECT_EQ(a.visible_keys(0, 0, 0), window);
  }
}

TEST_P(CasesLayout, F7GroupOfSevenWithOneMoreKeyThanQueries) {
  const std::vector<int32_t> lengths = {9};
  Attention a(GetParam(), {.sq = 8, .sk = 9, .hq = 14, .hk = 2, .dqk = 64, .dv = 64}, 90, 2.0F);
  Pages pages(a, 16, lengths);
  a.params.segments[0].causal = 1;
  expect_close(a);
}

TEST_P(CasesLayout, F8F10F12PagesOfEverySize) {
  const std::vector<int32_t> lengths = {100, 300};
  for (const int64_t size : {1, 2, 16, 17, 48, 64, 256, 512, 1024}) {
    Attention a(GetParam(), {.batch = 2, .sq = 1, .sk = 300, .hq = 2, .hk = 2, .dqk = 192, .dv = 128}, 91);
    Pages pages(a, size, lengths);
    expect_close(a);
  }
}

TEST_P(CasesLayout, F9RowsShorterThanAPage) {
  const std::vector<int32_t> lengths = {1, 1};
  Attention a(GetParam(), {.batch = 2, .sq = 1, .sk = 2, .hq = 8, .hk = 2, .dqk = 64, .dv = 64}, 92);
  Pages pages(a, 2, lengths);
  expect_close(a);
  const float value = a.v.at(1, 0, 0, 0);  // one key: its value, up to the rounding of its weight
  EXPECT_NEAR(a.o.at(1, 0, 0, 0), value, output_tolerance(GetParam()) * std::fabs(value));
}

TEST_P(CasesLayout, F16SlotStartsAreNotCumulativeLengths) {
  // Sequences of 3, 2 and 4 tokens that start at 0, 4 and 8 of the packed K/V: used lengths below the slots' sizes.
  const std::vector<int32_t> starts = {0, 4, 8, 13};
  const std::vector<int32_t> lengths = {3, 2, 4};
  Attention a(GetParam(), {.batch = 1, .sq = 13, .sk = 13}, 93);
  a.params.batch = 3;
  a.params.seqlen_q = 5;
  a.params.cu_seqlens_q = starts.data();
  a.params.seqlens_q = lengths.data();
  a.params.segments[0].cu_seqlens_k = starts.data();
  a.params.segments[0].seqlens_k = lengths.data();
  a.params.segments[0].k.stride_batch = a.params.segments[0].v.stride_batch = 0;
  a.params.segments[0].causal = 1;
  for (const int64_t hole : {3, 6, 7, 12}) {
    a.k.set_row(0, hole, 0, kNan);
    a.v.set_row(0, hole, 0, kNan);
  }
  a.run();
  for (size_t s = 0; s < 3; ++s) {
    for (int32_t i = 0; i < lengths[s]; ++i) {
      EXPECT_TRUE(std::isfinite(a.lse_at(0, starts[s] + i, 0)));
    }
    // The first token of each sequence sees one key only: its own.
    const float value = a.v.at(0, starts[s], 0, 2);
    EXPECT_NEAR(a.o.at(0, starts[s], 0, 2), value, output_tolerance(GetParam()) * std::fabs(value));
  }
  EXPECT_TRUE(std::isnan(a.lse_at(0, 3, 0)));  // the hole's row is not written
}

TEST_P(CasesLayout, F18TwoSequencesInterleavedInOnePool) {
  // Tokens of the two sequences alternate in the pool: pages of one key.
  const std::vector<int32_t> lengths = {600, 600};
  Attention a(GetParam(), {.batch = 2, .sq = 1, .sk = 600}, 94);
  Tensor k(GetParam().dtype, 1200, 1, 1, 16), v(GetParam().dtype, 1200, 1, 1, 16);
  std::vector<int32_t> table;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t j = 0; j < 600; ++j) {
      table.push_back(static_cast<int32_t>(2 * j + b));
      k.copy_token(2 * j + b, 0, a.k, b, j);
      v.copy_token(2 * j + b, 0, a.v, b, j);
    }
  }
  a.params.segments[0].causal = 1;
  a.params.segments[0].window_left = 511;
  a.run();
  const std::vector<uint8_t> contiguous = a.all();
  tessera_kv_segment& s = a.params.segments[0];
  s.k = k.view();
  s.v = v.view();
  s.page_table = table.data();
  s.page_table_stride = 600;
  s.page_size = 1;
  s.num_pages = 1200;
  a.run();
  EXPECT_EQ(a.all(), contiguous);
}

TEST_P(CasesLayout, F23F29TailOfTheLastPage) {
  for (const int32_t keys : {12, 13, 64}) {
    const std::vector<int32_t> lengths = {keys};
    Attention a(GetParam(), {.sq = 1, .sk = keys}, 95);
    Pages pages(a, 128, lengths);
    expect_close(a);
  }
}

TEST_P(CasesLayout, F26ManySequencesOverOnePageSize) {
  const std::vector<int32_t> lengths(16, 333);
  Attention a(GetParam(), {.batch = 16, .sq = 1, .sk = 333}, 96);
  Pages pages(a, 16, lengths);
  a.params.segments[0].causal = 1;
  a.params.segments[0].window_left = 63;
  expect_close(a);
}

TEST_P(CasesLayout, F27MaskedPromptInTwoPassesGivesTheBitsOfOne) {
  constexpr int64_t kTokens = 128;
  std::vector<uint8_t> bits(kTokens * 16);
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<uint8_t>(i * 91 | 1);
  }
  Attention whole(GetParam(), {.sq = kTokens, .sk = kTokens}, 97);
  whole.params.segments[0].causal = 1;
  whole.params.segments[0].mask = {bits.data(), 0, 0, 16, -1};
  whole.run();
  for (const int64_t first : {int64_t{0}, kTokens / 2}) {
    Attention half(GetParam(), {.sq = kTokens / 2, .sk = kTokens}, 97);
    for (int64_t i = 0; i < kTokens / 2; ++i) {
      half.q.copy_token(0, i, whole.q, 0, first + i);
    }
    half.params.segments[0].causal = 1;
    half.params.segments[0].seqlen_k = first + kTokens / 2;
    half.params.segments[0].mask = {bits.data() + first * 16, 0, 0, 16, -1};
    half.run();
    for (int64_t i = 0; i < kTokens / 2; ++i) {
      ASSERT_EQ(half.row(0, i, 0), whole.row(0, first + i, 0)) << first + i;
    }
  }
}

TEST_P(CasesLayout, F28CachedPrefixPagesAndANewTailGiveTheSameBits) {
  const std::vector<int32_t> lengths = {257};
  Attention fresh(GetParam(), {.sq = 257, .sk = 257, .dqk = 128, .dv = 128}, 98);
  fresh.params.segments[0].causal = 1;
  fresh.run();
  Attention reused(GetParam(), {.sq = 1, .sk = 257, .dqk = 128, .dv = 128}, 98);
  reused.q.copy_token(0, 0, fresh.q, 0, 256);
  Pages pages(reused, 64, lengths);
  reused.params.segments[0].causal = 1;
  reused.run();
  EXPECT_EQ(reused.row(0, 0, 0), fresh.row(0, 256, 0));
}

}  // namespace
}  // namespace tessera
