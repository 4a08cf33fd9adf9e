// Bad descriptions are refused with a sentence that names the field, and nothing is written.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "attention_fixture.h"

namespace tessera {
namespace {

constexpr Shape kShape{.batch = 2, .sq = 3, .sk = 40, .hq = 4, .hk = 2};

struct Case {
  const char* name;
  Code code;
  const char* words;  // in the error text
  std::function<void(Attention&)> spoil;
};

const std::vector<int32_t> kNegative = {-1, 3};
const std::vector<int32_t> kTooLong = {3, 41};
const std::vector<int32_t> kFalling = {0, 5, 4};
const std::vector<int32_t> kBadPages = {0, 1, 2, 0, 5, 1};
const std::vector<int32_t> kBadIndices = {0, 1, 2, 3, 40, 5, 6, 7, 8, 9, 10, 11};
const std::vector<float> kNanValues = {0.0F, kNan, 0.0F, 0.0F};

std::vector<Case> cases() {
  const Code invalid = Code::kInvalidArgument;
  return {
      {"struct_size", invalid, "struct_size", [](Attention& a) { a.params.struct_size = 8; }},
      {"dtype", invalid, "dtype", [](Attention& a) { a.params.dtype = static_cast<tessera_dtype>(3); }},
      {"o_dtype", invalid, "o_dtype", [](Attention& a) { a.params.o_dtype = TESSERA_F16; }},
      {"head_dim", invalid, "head_dim_qk", [](Attention& a) { a.params.head_dim_qk = 0; }},
      {"heads", invalid, "num_heads_kv", [](Attention& a) { a.params.num_heads_kv = 3; }},
      {"no_heads", invalid, "num_heads_kv", [](Attention& a) { a.params.num_heads_kv = 0; }},
      {"batch", invalid, "batch", [](Attention& a) { a.params.batch = -1; }},
      {"no_segments", invalid, "num_segments", [](Attention& a) { a.params.num_segments = 0; }},
      {"five_segments", invalid, "num_segments", [](Attention& a) { a.params.num_segments = 5; }},
      {"scale_zero", invalid, "softmax_scale", [](Attention& a) { a.params.softmax_scale = 0.0F; }},
      {"scale_nan", invalid, "softmax_scale", [](Attention& a) { a.params.softmax_scale = kNan; }},
      {"scale_inf", invalid, "softmax_scale", [](Attention& a) { a.params.softmax_scale = kInf; }},
      {"softcap", invalid, "softcap", [](Attention& a) { a.params.softcap = -1.0F; }},
      {"alibi", invalid, "alibi_slopes[1]", [](Attention& a) { a.params.alibi_slopes = kNanValues.data(); }},
      {"sink_nan", invalid, "sinks[1]", [](Attention& a) { a.params.sinks = kNanValues.data(); }},
      {"seqlen_q", invalid, "seqlen_q", [](Attention& a) { a.params.seqlen_q = -2; }},
      {"seqlens_q", invalid, "seqlens_q[0]", [](Attention& a) { a.params.seqlens_q = kNegative.data(); }},
      {"seqlens_k", invalid, "segments[0].seqlens_k[1]",
       [](Attention& a) { a.params.segments[0].seqlens_k = kTooLong.data(); }},
      {"cu_seqlens_k", invalid, "segments[0].cu_seqlens_k[1]",
       [](Attention& a) { a.params.segments[0].cu_seqlens_k = kFalling.data(); }},
      {"window", invalid, "window_left", [](Attention& a) { a.params.segments[0].window_left = -2; }},
      {"huge_window", invalid, "window_left",
       [](Attention& a) { a.params.segments[0].window_left = std::numeric_limits<int64_t>::max(); }},
      {"compress", invalid, "compress_ratio", [](Attention& a) { a.params.segments[0].compress_ratio = -1; }},
      {"null_k", invalid, "segments[0].k.data", [](Attention& a) { a.params.segments[0].k.data = nullptr; }},
      {"null_q", invalid, "q.data", [](Attention& a) { a.params.q.data = nullptr; }},
      {"fp8_dims", invalid, "segments[0].format: got FP8 rows with dtype bf16, head dims 16, 16 and 2 K/V heads",
       [](Attention& a) { a.params.segments[0].format = TESSERA_KV_FP8_V32_656; }},
      {"fp8_page_table", invalid, "segments[0].page_table: got NULL",
       [](Attention& a) {
         a.params.segments[0].format = TESSERA_KV_FP8_V4_584;
         a.params.head_dim_qk = a.params.head_dim_v = 512;
         a.params.num_heads_kv = 1;
       }},
      {"format", invalid, "segments[0].format: got 3",
       [](Attention& a) { a.params.segments[0].format = static_cast<tessera_kv_format>(3); }},
      {"page_size", invalid, "page_size",
       [](Attention& a) {
         a.params.segments[0].page_table = kBadPages.data();
         a.params.segments[0].page_size = 0;
       }},
      {"page_entry", invalid, "page_table of sequence 1, page 1: got 5; allowed 0 to 2",
       [](Attention& a) {
         a.params.segments[0].page_table = kBadPages.data();
         a.params.segments[0].page_table_stride = 3;
         a.params.segments[0].page_size = 16;
         a.params.segments[0].num_pages = 3;
       }},
      {"index", invalid, "indices of token 2, entry 0: got 40; allowed -1 to 39",
       [](Attention& a) {
         a.params.segments[0].indices = kBadIndices.data();
         a.params.segments[0].indices_stride = 2;
         a.params.segments[0].topk = 2;
       }},
      {"topk", invalid, "topk",
       [](Attention& a) {
         a.params.segments[0].indices = kBadIndices.data();
         a.params.segments[0].topk = -1;
       }},
      {"chunk_range_needs_state", invalid, "chunk_begin", [](Attention& a) { a.params.chunk_end = 1; }},
      {"chunk_range_across_superchunks", invalid, "chunk_begin",
       [](Attention& a) {
         a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
         a.params.chunk_begin = 2;
         a.params.chunk_end = 4;
       }},
      {"state_in_f16", invalid, "o_dtype",
       [](Attention& a) {
         a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
         a.params.o_dtype = TESSERA_BF16;
       }},
  };
}

class Refusal : public testing::TestWithParam<Case> {};

TEST_P(Refusal, NamesTheFieldAndWritesNothing) {
  Attention a(kHopperBf16, kShape);
  ASSERT_TRUE(a.try_run().ok());
  GetParam().spoil(a);
  const Status status = a.try_run();
  EXPECT_EQ(status.code(), GetParam().code) << status.text();
  EXPECT_NE(status.text().find(GetParam().words), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("got"), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("allowed"), std::string::npos) << status.text();
  EXPECT_TRUE(std::all_of(a.o.bytes().begin(), a.o.bytes().end(), [](uint8_t x) { return x == 0xff; }));
}

INSTANTIATE_TEST_SUITE_P(All, Refusal, testing::ValuesIn(cases()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Refusal, HopperHasNoF32) {
  Attention a({Arithmetic::kHopperK16F25, TESSERA_F32}, kShape);
  EXPECT_EQ(a.try_run().code(), Code::kUnsupported);
}

TEST(Refusal, SinksOfAStateBelongToTheMerge) {
  const std::vector<float> sinks(4, 0.0F);
  Attention a(kCpuF32, kShape);
  a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
  a.params.sinks = sinks.data();
  EXPECT_NE(a.try_run().text().find("sinks"), std::string::npos);
}

TEST(Refusal, EmptyBatchAndNoQueriesAreFine) {
  Attention no_batch(kCpuF32, kShape);
  no_batch.params.batch = 0;
  EXPECT_TRUE(no_batch.try_run().ok());
  Attention no_queries(kCpuF32, kShape);
  no_queries.params.seqlen_q = 0;
  no_queries.params.segments[0].k.data = nullptr;
  EXPECT_TRUE(no_queries.try_run().ok());
}

TEST(Refusal, MergeChecksItsDescription) {
  tessera_merge_params m{};
  EXPECT_NE(oracle_merge(Arithmetic::kCpuFma32, m).text().find("struct_size"), std::string::npos);
  m.struct_size = sizeof(m);
  m.head_dim_qk = m.head_dim_v = 16;
  m.num_heads_q = 1;
  m.num_rows = 1;
  EXPECT_NE(oracle_merge(Arithmetic::kCpuFma32, m).text().find("got NULL"), std::string::npos);
  m.num_rows = -1;
  EXPECT_NE(oracle_merge(Arithmetic::kCpuFma32, m).text().find("num_rows"), std::string::npos);
}

}  // namespace
}  // namespace tessera
