// A decoded row is the row that a prefill writes, and the oracle's: lengths around the ends of chunks, ratios of heads,
// numbers of query tokens, pages, windows, sinks, head dims. One problem per cell: a prefill kernel computes the last
// rows of the sequence, then the decode kernel the last few of them over the same memory.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/decode.h"

namespace tessera::test {
namespace {

// Rows times keys up to which the oracle, on the CPU, joins in.
constexpr int64_t kOracleWork = 300000;

class CudaDecodeMatrix : public CudaTest, public testing::WithParamInterface<tessera_dtype> {
 protected:
  // `spec` has some query tokens more than `tokens`; the decode kernel computes the last of them.
  static void check(const FmhaSpec& spec, int64_t tokens) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens of " + to_text(spec));
    const FmhaProblem problem(spec);
    DeviceProblem device(problem);
    FmhaOutputs decoded;
    ASSERT_EQ(run_on(device, tail_of(device.params, tokens), kDecode, &decoded), "");
    const std::vector<RowBytes> rows = last_rows(problem, decoded, tokens);
    int prefills = 0;
    for (const char* kernel : {"sm90_fmha_prefill", "sm90_fmha_ragged"}) {
      FmhaOutputs prefilled;
      if (!run_on(device, kernel, &prefilled).empty()) continue;
      EXPECT_TRUE(last_rows(problem, prefilled, tokens) == rows) << "decode differs from " << kernel;
      ++prefills;
    }
    EXPECT_GE(prefills, 1) << "no prefill kernel takes this problem";
    int64_t keys = 0;
    for (const int64_t length : spec.segments[0].lengths) keys += length;
    if (tokens * spec.heads_q * keys <= kOracleWork) {
      EXPECT_EQ(first_difference(problem, oracle_tail(problem, tokens), decoded), "")
          << "decode differs from the oracle";
      ++with_oracle_;
    }
    ++cells_;
  }
  void TearDown() override {
    if (cells_ > 0) std::printf("%d cells, %d of them against the oracle too\n", cells_, with_oracle_);
    cells_ = with_oracle_ = 0;
  }

  static inline int cells_ = 0;
  static inline int with_oracle_ = 0;
};

// More query tokens than decode takes at a time, or as many as there are keys.
FmhaSpec prefill_spec(tessera_dtype dtype, int64_t tokens, int64_t keys, int32_t group = 4) {
  FmhaSpec spec = decode_spec(dtype, std::min(keys, tokens + 67), keys, group);
  spec.seed = static_cast<uint64_t>(keys * 17 + tokens);
  return spec;
}

TEST_P(CudaDecodeMatrix, LengthsAroundTheEndsOfChunks) {
  for (const int64_t keys : {1, 2, 127, 128, 129, 2047, 2048, 2049, 2176, 4095, 4096, 4097, 6145}) {
    for (const int64_t tokens : {1, 2, 5}) {
      if (tokens <= keys) check(prefill_spec(GetParam(), tokens, keys), tokens);
    }
  }
}

TEST_P(CudaDecodeMatrix, LengthsAroundTheEndsOfSuperchunks) {
  for (const int64_t keys : {32767, 32768, 32769, 67585}) {
    FmhaSpec spec = prefill_spec(GetParam(), keys == 32769 ? 3 : 1, keys);
    spec.heads_kv = 1;
    spec.heads_q = 4;
    spec.q_amplitude = 3.0F;
    check(spec, keys == 32769 ? 3 : 1);
  }
}

TEST_P(CudaDecodeMatrix, EveryRatioOfHeads) {
  for (const int32_t group : {1, 4, 5, 6, 7, 8, 16, 64, 128}) {
    for (const int64_t keys : {150, 2049}) {
      check(prefill_spec(GetParam(), 1, keys, group), 1);
      check(prefill_spec(GetParam(), 3, keys, group), 3);
    }
    check(prefill_spec(GetParam(), 16, 300, group), 16);
  }
}

TEST_P(CudaDecodeMatrix, OneToSixteenQueryTokens) {
  for (int64_t tokens = 1; tokens <= 16; ++tokens) {
    for (const int32_t group : {1, 4, 7}) check(prefill_spec(GetParam(), tokens, 2048 + tokens, group), tokens);
    check(prefill_spec(GetParam(), tokens, tokens, 4), tokens);  // the first row sees one key
  }
}

TEST_P(CudaDecodeMatrix, TokensThatSeeEachOther) {
  for (const int64_t tokens : {2, 9, 16}) {
    FmhaSpec spec = decode_spec(GetParam(), tokens, 2050);
    spec.segments[0].causal = 0;
    check(spec, tokens);
  }
}

TEST_P(CudaDecodeMatrix, PagesOfAnySize) {
  for (const int32_t page : {1, 2, 3, 8, 16, 17, 48, 64, 100, 128, 256, 1024, 4096}) {
    for (const int64_t keys : {300, 4097}) {
      FmhaSpec spec = prefill_spec(GetParam(), 2, keys);
      spec.segments[0].layout = KvLayout::kPaged;
      spec.segments[0].page_size = page;
      spec.segments[0].page_seed = static_cast<uint64_t>(page);
      // The prefill kernels take pages of some sizes only: contiguous rows have the same bytes.
      FmhaSpec rows = spec;
      rows.segments[0].layout = KvLayout::kBatched;
      const auto expected = cuda_rows("sm90_fmha_prefill", rows, 0);
      const FmhaProblem problem(spec);
      DeviceProblem device(problem);
      FmhaOutputs decoded;
      ASSERT_EQ(run_on(device, tail_of(device.params, 2), kDecode, &decoded), "");
      const std::vector<RowBytes> last(expected.end() - 2 * spec.heads_q, expected.end());
      EXPECT_TRUE(last_rows(problem, decoded, 2) == last) << to_text(spec);
    }
  }
}

// V in a pool whose rows lie further apart than K's, and its pages further than its rows say.
TEST_P(CudaDecodeMatrix, PoolsWithStridesOfTheirOwn) {
  FmhaSpec spec = prefill_spec(GetParam(), 2, 2100);
  spec.segments[0].layout = KvLayout::kPaged;
  const FmhaProblem problem(spec);
  DeviceProblem device(problem);
  FmhaOutputs expected;
  ASSERT_EQ(run_on(device, tail_of(device.params, 2), kDecode, &expected), "");
  tessera_fmha_params call = tail_of(device.params, 2);
  tessera_kv_segment& s = call.segments[0];
  const int64_t row = 128 + 24;
  const int64_t page = (s.page_size * spec.heads_kv + 1) * row;
  void* pool = nullptr;
  const auto bytes = static_cast<size_t>(s.num_pages * page) * 2;
  ASSERT_EQ(cudaMalloc(&pool, bytes), cudaSuccess);
  ASSERT_EQ(cudaMemset(pool, 0xff, bytes), cudaSuccess);
  for (int64_t i = 0; i < s.num_pages; ++i) {
    ASSERT_EQ(cudaMemcpy2D(step(pool, i * page, false), row * 2, step(s.v.data, i * s.v.stride_batch, false), 256, 256,
                           static_cast<size_t>(s.page_size * spec.heads_kv), cudaMemcpyDeviceToDevice),
              cudaSuccess);
  }
  s.v = {pool, page, spec.heads_kv * row, row, 1};
  FmhaOutputs out;
  EXPECT_EQ(run_on(device, call, kDecode, &out), "");
  EXPECT_EQ(first_difference(problem, expected, out), "");
  EXPECT_EQ(cudaFree(pool), cudaSuccess);
}

TEST_P(CudaDecodeMatrix, WindowsThatBeginAnywhere) {
  for (const int64_t window : {0, 1, 63, 127, 128, 129, 2046, 2047, 2048, 2049, 4095, 5000}) {
    for (const int64_t tokens : {1, 4}) {
      FmhaSpec spec = prefill_spec(GetParam(), tokens, 4097 + window % 7);
      spec.segments[0].window_left = window;
      spec.segments[0].poison_masked = true;
      check(spec, tokens);
    }
  }
  FmhaSpec both = prefill_spec(GetParam(), 3, 2300);
  both.segments[0].causal = 0;
  both.segments[0].window_left = 2100;
  both.segments[0].window_right = 1;
  check(both, 3);
}

TEST_P(CudaDecodeMatrix, SinksOfAnySize) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int64_t keys : {1, 200, 2049, 4500}) {
    for (const int64_t window : {-1, 100}) {
      FmhaSpec spec = prefill_spec(GetParam(), 1, keys);
      spec.sinks = {0.0F, -kInf, kInf, 90.0F, -30.0F, 1.5F, 7.0F, -1e4F};
      spec.segments[0].window_left = window;
      check(spec, 1);
    }
  }
}

TEST_P(CudaDecodeMatrix, HeadDimsInStepsOfEight) {
  for (const int32_t dim : {8, 24, 40, 64, 72, 80, 96, 112, 120, 136, 160, 192, 224, 248, 256}) {
    for (const int64_t keys : {130, 2051}) {
      FmhaSpec spec = prefill_spec(GetParam(), 2, keys);
      spec.head_dim_qk = spec.head_dim_v = dim;
      check(spec, 2);
    }
  }
}

TEST_P(CudaDecodeMatrix, KeysAndValuesOfDifferentHeadDims) {
  for (const auto& [dim_qk, dim_v] : {std::pair{192, 128}, {128, 64}, {64, 128}, {256, 40}, {136, 256}}) {
    for (const int64_t keys : {130, 4099}) {
      for (const int64_t tokens : {1, 3}) {
        FmhaSpec spec = prefill_spec(GetParam(), tokens, keys);
        spec.head_dim_qk = dim_qk;
        spec.head_dim_v = dim_v;
        check(spec, tokens);
      }
    }
  }
}

TEST_P(CudaDecodeMatrix, TreesAndOtherCustomBits) {
  for (const int64_t keys : {40, 2049, 4500}) {
    for (const int64_t tokens : {1, 4, 16}) {
      for (const int64_t covered : {int64_t{-1}, tokens}) {  // all keys, or the drafted tokens only
        FmhaSpec spec = prefill_spec(GetParam(), tokens, keys);
        spec.segments[0].mask = true;
        spec.segments[0].mask_keys = covered;
        spec.segments[0].mask_per_head = keys == 2049;
        check(spec, tokens);
      }
    }
  }
}

TEST_P(CudaDecodeMatrix, SoftcapAndAlibi) {
  for (const int64_t keys : {300, 2049, 4500}) {
    for (const int64_t tokens : {1, 4}) {
      for (const int kind : {1, 2, 3}) {
        FmhaSpec spec = prefill_spec(GetParam(), tokens, keys);
        spec.softcap = kind != 2 ? 20.0F : 0.0F;
        spec.alibi = kind != 1;
        spec.q_amplitude = 4.0F;
        spec.segments[0].window_left = kind == 3 ? 1000 : -1;
        check(spec, tokens);
      }
    }
  }
}

TEST_P(CudaDecodeMatrix, SeveralSequencesAndValuesThatMoveTheMaximum) {
  for (const float amplitude : {0.01F, 8.0F, 60.0F}) {
    FmhaSpec spec = prefill_spec(GetParam(), 2, 2500);
    spec.q_amplitude = amplitude;
    spec.q_lengths.assign(3, spec.q_lengths[0]);
    spec.segments[0].lengths.assign(3, 2500);
    check(spec, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeMatrix, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);

}  // namespace
}  // namespace tessera::test
