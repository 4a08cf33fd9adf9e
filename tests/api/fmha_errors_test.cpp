// Every refusal of tessera_fmha_*: the code, a sentence that begins with the argument, and no output byte written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/tessera.hpp"

namespace tessera::test {
namespace {

constexpr int64_t kHuge = int64_t{1} << 62;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A sound problem: 2 sequences of 3 query tokens, 4 over 2 heads, 8 keys, dim 4; all memory owned.
struct Problem {
  std::vector<float> q = std::vector<float>(2 * 3 * 4 * 4, 0.5f);
  std::vector<float> k = std::vector<float>(2 * 8 * 2 * 4, 0.25f);
  std::vector<float> o = std::vector<float>(2 * 3 * 4 * 4, -7.0f);
  std::vector<float> lse = std::vector<float>(2 * 3 * 4, -7.0f);
  std::vector<float> scalars = std::vector<float>(2 * 3 * 4, -7.0f);
  std::vector<int32_t> cu = {0, 3, 6};
  std::vector<int32_t> cu_k = {0, 8, 16};
  std::vector<int32_t> used = {3, 2};
  std::vector<int32_t> used_k = {8, 5};
  std::vector<int32_t> pages = {0, 1, 2, 3};
  std::vector<float> heads = {0.0f, 1.0f, 2.0f, 3.0f};
  std::vector<uint8_t> bits = std::vector<uint8_t>(64, 0xff);
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  tessera_fmha_params p;

  Problem() {
    p = view::fmha_params(TESSERA_F32, TESSERA_F32);
    p.head_dim_qk = p.head_dim_v = 4;
    p.num_heads_q = 4;
    p.num_heads_kv = 2;
    p.batch = 2;
    p.seqlen_q = 3;
    p.q = view::bshd(q.data(), 3, 4, 4);
    p.o = view::bshd(o.data(), 3, 4, 4);
    p.segments[0].k = p.segments[0].v = view::bshd(k.data(), 8, 2, 4);
    p.segments[0].seqlen_k = 8;
    p.softmax_scale = 0.5f;
    p.lse_natural_no_sink = {lse.data(), 12, 4, 1};
  }
  tessera_kv_segment& segment() { return p.segments[0]; }
  void paged() {
    segment().k = segment().v = view::bshd(k.data(), 4, 2, 4);
    segment().page_table = pages.data();
    segment().page_table_stride = 2;
    segment().page_size = 4;
    segment().num_pages = 4;
  }
  void pages_of_one_key() {
    paged();
    segment().k = segment().v = view::bshd(k.data(), 1, 2, 4);
    segment().page_table_stride = 8;
    segment().page_size = 1;
    segment().num_pages = 16;
  }
  void packed_q() {
    p.cu_seqlens_q = cu.data();
    p.q.stride_batch = p.o.stride_batch = p.lse_natural_no_sink.stride_batch = 0;
  }
  void packed_k() {
    segment().cu_seqlens_k = cu_k.data();
    segment().k.stride_batch = segment().v.stride_batch = 0;
  }
  void unnormalized() {
    p.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
    p.row_max_log2 = p.row_sum = p.lse_natural_no_sink;
    p.row_max_log2.data = p.row_sum.data = scalars.data();
  }
  void* workspace() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64); }
  bool untouched() const {
    const auto is_fill = [](const std::vector<float>& v) {
      for (const float x : v) {
        if (x != -7.0f) return false;
      }
      return true;
    };
    return is_fill(o) && is_fill(lse) && is_fill(scalars);
  }
};

// Stores a number that the enum does not name, as a C caller could.
template <class Enum>
void store(Enum* field, int32_t value) {
  std::memcpy(field, &value, sizeof(value));
}

struct Refusal {
  const char* name;      // of the case
  const char* sentence;  // how the sentence begins
  std::function<void(Problem&)> change;
  tessera_status code = TESSERA_INVALID_ARGUMENT;
};

std::vector<Refusal> refusals() {
  return {
      {"StructSize", "struct_size: got 8;", [](Problem& x) { x.p.struct_size = 8; }},
      {"StructSizeOfNoVersion", "struct_size: got ", [](Problem& x) { x.p.struct_size = sizeof(x.p) - 1; }},
      {"Device", "device: got 5;", [](Problem& x) { store(&x.p.device, 5); }},
      {"Dtype", "dtype: got 9;", [](Problem& x) { store(&x.p.dtype, 9); }},
      {"ODtype", "o_dtype: got 1;", [](Problem& x) { x.p.o_dtype = TESSERA_F16; }},
      {"OutputMode", "output_mode: got 7;", [](Problem& x) { store(&x.p.output_mode, 7); }},
      {"StateDtype", "o_dtype: got f16; allowed f32 in un-normalised mode",
       [](Problem& x) {
         x.unnormalized();
         x.p.dtype = x.p.o_dtype = TESSERA_F16;
       }},
      {"HeadDimQk", "head_dim_qk: got 0;", [](Problem& x) { x.p.head_dim_qk = 0; }},
      {"HeadDimV", "head_dim_v: got 1025;", [](Problem& x) { x.p.head_dim_v = 1025; }},
      {"HeadsQ", "num_heads_q: got -4;", [](Problem& x) { x.p.num_heads_q = -4; }},
      {"HeadsKv", "num_heads_kv: got 0;", [](Problem& x) { x.p.num_heads_kv = 0; }},
      {"HeadsDivide", "num_heads_kv: got 3; allowed divisors of num_heads_q = 4",
       [](Problem& x) { x.p.num_heads_kv = 3; }},
      {"Batch", "batch: got -1;", [](Problem& x) { x.p.batch = -1; }},
      {"BatchTooLarge", "batch: got ", [](Problem& x) { x.p.batch = kHuge; }},
      {"SeqlenQ", "seqlen_q: got -1;", [](Problem& x) { x.p.seqlen_q = -1; }},
      {"QData", "q.data: got NULL;", [](Problem& x) { x.p.q.data = nullptr; }},
      {"QAlignment", "q.data: got 0x", [](Problem& x) { x.p.q.data = reinterpret_cast<char*>(x.p.q.data) + 2; }},
      {"QStride", "q.stride_token: got -16;", [](Problem& x) { x.p.q.stride_token = -16; }},
      {"QStrideWraps", "q.stride_token: got 4611686018427387904", [](Problem& x) { x.p.q.stride_token = kHuge; }},
      {"QStrideOverflow", "q.stride_batch: got 4611686018427387904", [](Problem& x) { x.p.q.stride_batch = kHuge; }},
      {"QOffsetsOverflow", "q.stride_token: got 1152921504606846976",
       [](Problem& x) { x.p.q.stride_token = int64_t{1} << 60; }},
      {"OData", "o.data: got NULL;", [](Problem& x) { x.p.o.data = nullptr; }},
      {"OOverlap", "o.stride_head: got 3 with an extent of 4; allowed >= 4", [](Problem& x) { x.p.o.stride_head = 3; }},
      {"OBroadcast", "o.stride_batch: got 0 with an extent of 2", [](Problem& x) { x.p.o.stride_batch = 0; }},
      {"LseOverlap", "lse_natural_no_sink.stride_token: got 3",
       [](Problem& x) { x.p.lse_natural_no_sink.stride_token = 3; }},
      {"LseAlignment", "lse_natural_no_sink.data: got 0x",
       [](Problem& x) {
         x.p.lse_natural_no_sink.data = reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(x.lse.data()) + 1);
       }},
      {"PackedQStride", "q.stride_batch: got 48; allowed 0 with cu_seqlens_q",
       [](Problem& x) {
         x.packed_q();
         x.p.q.stride_batch = 48;
       }},
      {"PackedOStride", "o.stride_batch: got 48; allowed 0",
       [](Problem& x) {
         x.packed_q();
         x.p.o.stride_batch = 48;
       }},
      {"PackedLseStride", "lse_natural_no_sink.stride_batch: got 12; allowed 0",
       [](Problem& x) {
         x.packed_q();
         x.p.lse_natural_no_sink.stride_batch = 12;
       }},
      {"NoSegment", "num_segments: got 0;", [](Problem& x) { x.p.num_segments = 0; }},
      {"FiveSegments", "num_segments: got 5;", [](Problem& x) { x.p.num_segments = 5; }},
      {"Format", "segments[0].format: got 9;", [](Problem& x) { store(&x.segment().format, 9); }},
      {"SeqlenK", "segments[0].seqlen_k: got -2;", [](Problem& x) { x.segment().seqlen_k = -2; }},
      {"SecondSegment", "segments[1].k.data: got NULL;",
       [](Problem& x) {
         x.p.num_segments = 2;
         x.p.segments[1].seqlen_k = 1;
       }},
      {"KData", "segments[0].k.data: got NULL;", [](Problem& x) { x.segment().k.data = nullptr; }},
      {"VData", "segments[0].v.data: got NULL;", [](Problem& x) { x.segment().v.data = nullptr; }},
      {"KStride", "segments[0].k.stride_head: got -4;", [](Problem& x) { x.segment().k.stride_head = -4; }},
      {"PackedKStride", "segments[0].k.stride_batch: got 64; allowed 0 with cu_seqlens_k",
       [](Problem& x) {
         x.packed_k();
         x.segment().k.stride_batch = 64;
       }},
      {"PageSize", "segments[0].page_size: got 0;",
       [](Problem& x) {
         x.paged();
         x.segment().page_size = 0;
       }},
      {"NumPages", "segments[0].num_pages: got -1;",
       [](Problem& x) {
         x.paged();
         x.segment().num_pages = -1;
       }},
      {"PageTableStride", "segments[0].page_table_stride: got 1; allowed 2",
       [](Problem& x) {
         x.paged();
         x.segment().page_table_stride = 1;
       }},
      {"WindowLeft", "segments[0].window_left: got -2;", [](Problem& x) { x.segment().window_left = -2; }},
      {"WindowRight", "segments[0].window_right: got -9;", [](Problem& x) { x.segment().window_right = -9; }},
      {"CompressRatio", "segments[0].compress_ratio: got -1;", [](Problem& x) { x.segment().compress_ratio = -1; }},
      {"MaskStride", "segments[0].mask.stride_row: got -1;",
       [](Problem& x) {
         x.segment().mask.data = x.bits.data();
         x.segment().mask.stride_row = -1;
       }},
      {"Topk", "segments[0].topk: got -1;",
       [](Problem& x) {
         x.segment().indices = x.pages.data();
         x.segment().topk = -1;
       }},
      {"IndicesStride", "segments[0].indices_stride: got 1; allowed >= topk = 2",
       [](Problem& x) {
         x.segment().indices = x.pages.data();
         x.segment().topk = 2;
         x.segment().indices_stride = 1;
       }},
      {"ScaleZero", "softmax_scale: got 0;", [](Problem& x) { x.p.softmax_scale = 0.0f; }},
      {"ScaleNaN", "softmax_scale: got nan;", [](Problem& x) { x.p.softmax_scale = kNaN; }},
      {"ScaleOverflow", "softmax_scale: got 3", [](Problem& x) { x.p.softmax_scale = 3e38f; }},
      {"Softcap", "softcap: got -1;", [](Problem& x) { x.p.softcap = -1.0f; }},
      {"SoftcapInf", "softcap: got inf;", [](Problem& x) { x.p.softcap = kInf; }},
      {"StateNeedsMax", "row_max_log2.data: got NULL;",
       [](Problem& x) {
         x.unnormalized();
         x.p.row_max_log2.data = nullptr;
       }},
      {"StateNeedsSum", "row_sum.data: got NULL;",
       [](Problem& x) {
         x.unnormalized();
         x.p.row_sum.data = nullptr;
       }},
      {"MaxOfAFinishedRow", "row_max_log2.data: got a pointer;",
       [](Problem& x) { x.p.row_max_log2 = x.p.lse_natural_no_sink; }},
      {"SinksOfAState", "sinks: got a pointer; allowed NULL in un-normalised mode",
       [](Problem& x) {
         x.unnormalized();
         x.p.sinks = x.heads.data();
       }},
      {"ChunksOfAFinishedRow", "chunk_end: got a range of chunks in normalised mode",
       [](Problem& x) { x.p.chunk_end = 1; }},
      {"ChunksOfTwoSegments", "chunk_end: got a range of chunks over 2 segments",
       [](Problem& x) {
         x.unnormalized();
         x.p.num_segments = 2;
         x.p.chunk_end = 1;
       }},
      {"ChunkBegin", "chunk_begin: got -1;",
       [](Problem& x) {
         x.unnormalized();
         x.p.chunk_begin = -1;
         x.p.chunk_end = 1;
       }},
      {"ChunkEnd", "chunk_end: got 2; allowed > chunk_begin = 2",
       [](Problem& x) {
         x.unnormalized();
         x.p.chunk_begin = x.p.chunk_end = 2;
       }},
      {"ChunkRange", "chunk_end: got chunks [1, 3);",
       [](Problem& x) {
         x.unnormalized();
         x.p.chunk_begin = 1;
         x.p.chunk_end = 3;
       }},
      {"ChunkRangeAcrossSuperchunks", "chunk_end: got chunks [16, 33);",
       [](Problem& x) {
         x.unnormalized();
         x.p.chunk_begin = 16;
         x.p.chunk_end = 33;
       }},
      // what lies behind the pointers
      {"CuSeqlensQ", "cu_seqlens_q[0..1]: got 0, -1;",
       [](Problem& x) {
         x.packed_q();
         x.cu[1] = -1;
       }},
      {"CuSeqlensQBound", "cu_seqlens_q[1]: got a length of 4; allowed up to seqlen_q = 3",
       [](Problem& x) {
         x.packed_q();
         x.cu[2] = 7;
       }},
      {"SeqlensQ", "seqlens_q[1]: got 4;",
       [](Problem& x) {
         x.used[1] = 4;
         x.p.seqlens_q = x.used.data();
       }},
      {"SeqlensQInSlot", "seqlens_q[0]: got 3; allowed 0..2",
       [](Problem& x) {
         x.packed_q();
         x.cu = {0, 2, 5};
         x.p.seqlens_q = x.used.data();
       }},
      {"SeqlensK", "segments[0].seqlens_k[0]: got 9;",
       [](Problem& x) {
         x.used_k[0] = 9;
         x.segment().seqlens_k = x.used_k.data();
       }},
      {"SeqlensKNegative", "segments[0].seqlens_k[1]: got -1;",
       [](Problem& x) {
         x.used_k[1] = -1;
         x.segment().seqlens_k = x.used_k.data();
       }},
      {"CuSeqlensK", "segments[0].cu_seqlens_k[1..2]: got 8, 7;",
       [](Problem& x) {
         x.packed_k();
         x.cu_k[2] = 7;
       }},
      {"CuSeqlensKBound", "segments[0].cu_seqlens_k[1]: got a length of 9;",
       [](Problem& x) {
         x.packed_k();
         x.cu_k[2] = 17;
       }},
      {"Page", "segments[0].page_table[1][0]: got 4; allowed 0..3",
       [](Problem& x) {
         x.paged();
         x.pages[2] = 4;
       }},
      {"PageNegative", "segments[0].page_table[0][1]: got -1;",
       [](Problem& x) {
         x.paged();
         x.pages[1] = -1;
       }},
      {"PageOfTheLastTokenAlone", "segments[0].page_table[0][7]: got -1;",
       [](Problem& x) {
         x.pages = {0, 1, 2, 3, 4, 5, 6, -1, 8, 9, 10, 11, 12, 13, 14, 15};
         x.pages_of_one_key();
         x.segment().causal = 1;  // tokens at positions 5, 6, 7
       }},
      {"PageOfTheFirstTokenAlone", "segments[0].page_table[1][5]: got 16; allowed 0..15",
       [](Problem& x) {
         x.pages = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 14, 15};
         x.pages_of_one_key();
         x.segment().window_left = 0;
       }},
      {"PageThatIsPartlyUsed", "segments[0].page_table[1][1]: got -1;",
       [](Problem& x) {
         x.paged();
         x.segment().seqlens_k = x.used_k.data();  // 8 and 5 keys
         x.pages[3] = -1;
       }},
      {"SinkNaN", "sinks[2]: got NaN;",
       [](Problem& x) {
         x.heads[2] = kNaN;
         x.p.sinks = x.heads.data();
       }},
      {"SlopeInf", "alibi_slopes[3]: got inf;",
       [](Problem& x) {
         x.heads[3] = kInf;
         x.p.alibi_slopes = x.heads.data();
       }},
  };
}

class FmhaErrors : public testing::TestWithParam<Refusal> {};

TEST_P(FmhaErrors, NameTheArgumentAndWriteNothing) {
  Problem problem;
  GetParam().change(problem);
  tessera_error error = {};
  const tessera_status code =
      tessera_fmha_run(&problem.p, problem.workspace(), problem.memory.size() - 64, nullptr, &error);
  EXPECT_EQ(code, GetParam().code) << error.text;
  EXPECT_EQ(error.code, code);
  EXPECT_EQ(std::string(error.text).rfind(GetParam().sentence, 0), 0u) << error.text;
  EXPECT_NE(std::string(error.text).find("; allowed "), std::string::npos) << error.text;
  EXPECT_TRUE(problem.untouched());
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), problem.memory.size() - 64, nullptr, nullptr), code);
}

INSTANTIATE_TEST_SUITE_P(All, FmhaErrors, testing::ValuesIn(refusals()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(FmhaApi, TheSoundProblemRuns) {
  Problem problem;
  tessera_error error = {};
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), problem.memory.size() - 64, nullptr, &error), TESSERA_OK)
      << error.text;
  EXPECT_FLOAT_EQ(problem.o[0], 0.25f);
  problem.paged();
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), problem.memory.size() - 64, nullptr, &error), TESSERA_OK);
  problem.packed_q();
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), problem.memory.size() - 64, nullptr, &error), TESSERA_OK)
      << error.text;
}

TEST(FmhaApi, NullArgumentsAreRefused) {
  Problem problem;
  tessera_error error = {};
  EXPECT_EQ(tessera_fmha_run(nullptr, nullptr, 0, nullptr, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("params: got NULL", 0), 0u);
  EXPECT_EQ(tessera_fmha_select(&problem.p, nullptr, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("kernel_name: got NULL", 0), 0u);
  EXPECT_EQ(tessera_fmha_workspace_size(&problem.p, 1, nullptr, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("bytes: got NULL", 0), 0u);
  EXPECT_EQ(tessera_fmha_chunk_keys(&problem.p, nullptr, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("keys: got NULL", 0), 0u);
  EXPECT_EQ(tessera_fmha_contract_id(&problem.p, nullptr, 0, nullptr, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("text: got NULL", 0), 0u);
  EXPECT_EQ(tessera_fmha_merge(nullptr, nullptr, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("params: got NULL", 0), 0u);
}

TEST(FmhaApi, WorkspaceMustBeThereLargeEnoughAndAligned) {
  Problem problem;
  size_t bytes = 0;
  ASSERT_EQ(tessera_fmha_workspace_size(&problem.p, 1, &bytes, nullptr), TESSERA_OK);
  ASSERT_GT(bytes, 0u);
  tessera_error error = {};
  char* workspace = static_cast<char*>(problem.workspace());
  EXPECT_EQ(tessera_fmha_run(&problem.p, nullptr, bytes, nullptr, &error), TESSERA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(tessera_fmha_run(&problem.p, workspace, bytes - 1, nullptr, &error), TESSERA_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(std::string(error.text).rfind("workspace: got ", 0), 0u) << error.text;
  EXPECT_EQ(tessera_fmha_run(&problem.p, workspace + 4, bytes, nullptr, &error), TESSERA_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(problem.untouched());
  EXPECT_EQ(tessera_fmha_run(&problem.p, workspace, bytes, nullptr, &error), TESSERA_OK);
}

TEST(FmhaApi, WorkspaceDependsOnShapesOnly) {
  Problem problem;
  size_t with = 0;
  ASSERT_EQ(tessera_fmha_workspace_size(&problem.p, 2, &with, nullptr), TESSERA_OK);
  problem.p.seqlens_q = reinterpret_cast<const int32_t*>(uintptr_t{16});  // would fault if it were read
  problem.segment().seqlens_k = reinterpret_cast<const int32_t*>(uintptr_t{16});
  problem.p.sinks = reinterpret_cast<const float*>(uintptr_t{16});
  size_t again = 0;
  const char* name = nullptr;
  EXPECT_EQ(tessera_fmha_workspace_size(&problem.p, 2, &again, nullptr), TESSERA_OK);
  EXPECT_EQ(with, again);
  EXPECT_EQ(tessera_fmha_select(&problem.p, &name, nullptr), TESSERA_OK);
}

TEST(FmhaApi, ThreadCountsAndExecutorsAreChecked) {
  Problem problem;
  size_t bytes = 0;
  tessera_error error = {};
  for (const int32_t threads : {0, -1, 5000}) {
    EXPECT_EQ(tessera_fmha_workspace_size(&problem.p, threads, &bytes, &error), TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.text).rfind("num_threads: got ", 0), 0u) << error.text;
  }
  tessera_executor executor = {nullptr, 0, nullptr};
  const tessera_stream stream = {&executor, nullptr};
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), 1 << 19, &stream, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("num_threads: got 0", 0), 0u) << error.text;
  executor.num_threads = 2;
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), 1 << 19, &stream, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("executor.parallel_for: got NULL", 0), 0u) << error.text;
}

TEST(FmhaApi, AnEmptyBatchIsDoneAtOnce) {
  Problem problem;
  problem.p.batch = 0;
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), 1 << 19, nullptr, nullptr), TESSERA_OK);
  problem.p.batch = 2;
  problem.p.seqlen_q = 0;
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), 1 << 19, nullptr, nullptr), TESSERA_OK);
  EXPECT_TRUE(problem.untouched());
}

TEST(FmhaApi, ContractIdentityAndChunkKeys) {
  Problem problem;
  problem.p.head_dim_v = 4;
  char text[64] = "";
  size_t length = 0;
  ASSERT_EQ(tessera_fmha_contract_id(&problem.p, text, sizeof(text), &length, nullptr), TESSERA_OK);
  EXPECT_EQ(std::string(text), "tessera-1/cpu-fma32/f32/d4");
  EXPECT_EQ(length, std::strlen(text));
  char cut[8] = "";
  ASSERT_EQ(tessera_fmha_contract_id(&problem.p, cut, sizeof(cut), &length, nullptr), TESSERA_OK);
  EXPECT_EQ(std::string(cut), "tessera");
  EXPECT_EQ(length, std::strlen(text));
  ASSERT_EQ(tessera_fmha_contract_id(&problem.p, nullptr, 0, &length, nullptr), TESSERA_OK);
  int64_t keys = 0;
  ASSERT_EQ(tessera_fmha_chunk_keys(&problem.p, &keys, nullptr), TESSERA_OK);
  EXPECT_EQ(keys, 2048);
}

// Table entries that only invisible keys would need are free.
TEST(FmhaApi, PagesOutsideTheWindowAreNotLookedAt) {
  Problem problem;
  problem.paged();
  problem.segment().causal = 1;
  problem.segment().window_left = 0;  // tokens at positions 5, 6, 7 see pages 1
  problem.pages[0] = problem.pages[2] = -1;
  tessera_error error = {};
  EXPECT_EQ(tessera_fmha_run(&problem.p, problem.workspace(), 1 << 19, nullptr, &error), TESSERA_OK) << error.text;
}

TEST(FmhaApi, ARangeMayEndWithALastSuperchunkThatIsNotFull) {
  Problem problem;
  problem.unnormalized();
  problem.segment().seqlen_k = 16 * 2048 + 1;  // 17 chunks
  const char* name = nullptr;
  tessera_error error = {};
  for (const int64_t end : {16, 17, 18, 32}) {
    problem.p.chunk_end = end;
    EXPECT_EQ(tessera_fmha_select(&problem.p, &name, &error), TESSERA_OK) << end << ": " << error.text;
  }
  problem.segment().seqlen_k = 17 * 2048 + 1;  // 18 chunks: 17 of them are no prefix of superchunks
  problem.p.chunk_end = 17;
  EXPECT_EQ(tessera_fmha_select(&problem.p, &name, &error), TESSERA_INVALID_ARGUMENT);
}

struct MergeProblem {
  std::vector<float> states = std::vector<float>(2 * 3 * 4, 1.0f);
  std::vector<float> scalars = std::vector<float>(2 * 3, 1.0f);
  std::vector<float> o = std::vector<float>(3 * 4, -7.0f);
  std::vector<float> sink = {kNaN};
  std::vector<int32_t> positions = {0, 1, 2};
  tessera_merge_params p = {};

  MergeProblem() {
    p.struct_size = sizeof(p);
    p.head_dim_qk = p.head_dim_v = 4;
    p.num_heads_q = 1;
    p.num_rows = 3;
    p.num_states = 2;
    p.o_states = {states.data(), 12, 4, 4, 1};
    p.row_max_log2_states = p.row_sum_states = {scalars.data(), 3, 1, 1};
    p.o = {o.data(), 0, 4, 4, 1};
  }
};

struct MergeRefusal {
  const char* sentence;
  void (*change)(MergeProblem& x);
};

TEST(MergeApi, RefusalsNameTheArgumentAndWriteNothing) {
  const MergeRefusal list[] = {
      {"struct_size: got 1;", [](MergeProblem& x) { x.p.struct_size = 1; }},
      {"device: got -1;", [](MergeProblem& x) { store(&x.p.device, -1); }},
      {"dtype: got 5;", [](MergeProblem& x) { store(&x.p.dtype, 5); }},
      {"head_dim_v: got 0;", [](MergeProblem& x) { x.p.head_dim_v = 0; }},
      {"num_rows: got -1;", [](MergeProblem& x) { x.p.num_rows = -1; }},
      {"num_states: got 0;", [](MergeProblem& x) { x.p.num_states = 0; }},
      {"o_states.data: got NULL;", [](MergeProblem& x) { x.p.o_states.data = nullptr; }},
      {"row_max_log2_states.data: got NULL;", [](MergeProblem& x) { x.p.row_max_log2_states.data = nullptr; }},
      {"row_sum_states.data: got NULL;", [](MergeProblem& x) { x.p.row_sum_states.data = nullptr; }},
      {"row_sum_states.stride_token: got -1;", [](MergeProblem& x) { x.p.row_sum_states.stride_token = -1; }},
      {"o.stride_token: got 2", [](MergeProblem& x) { x.p.o.stride_token = 2; }},
      {"o.data: got NULL;", [](MergeProblem& x) { x.p.o.data = nullptr; }},
      {"row_sum.data: got NULL;",
       [](MergeProblem& x) {
         x.p.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
         x.p.row_max_log2 = {x.scalars.data(), 0, 1, 1};
       }},
      {"sinks[0]: got NaN;", [](MergeProblem& x) { x.p.sinks = x.sink.data(); }},
      {"o_rope.rotary_dim: got 3 of 4;",
       [](MergeProblem& x) {
         x.p.o_rope = {x.states.data(), x.states.data(), x.positions.data(), 2, 3};
       }},
      {"o_rope.positions[2]: got 2;",
       [](MergeProblem& x) {
         x.p.o_rope = {x.states.data(), x.states.data(), x.positions.data(), 2, 4};
       }},
      {"force_kernel: got \"cpu_fmha_portable\";", [](MergeProblem& x) { x.p.force_kernel = "cpu_fmha_portable"; }},
  };
  for (const MergeRefusal& refusal : list) {
    MergeProblem problem;
    refusal.change(problem);
    const view::Status status = view::merge(problem.p);
    EXPECT_EQ(status.code(), TESSERA_INVALID_ARGUMENT) << refusal.sentence;
    EXPECT_EQ(status.text().rfind(refusal.sentence, 0), 0u) << status.text();
    EXPECT_EQ(problem.o, std::vector<float>(12, -7.0f));
  }
  MergeProblem sound;
  EXPECT_TRUE(view::merge(sound.p));
}

}  // namespace
}  // namespace tessera::test
