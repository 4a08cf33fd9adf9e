// Gathered keys (R10) on the decode kernels, against the oracle: lists in any order with entries that are no key and
// keys that are listed twice, for each query token, alone and beside another segment.
#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/decode.h"
#include "cuda/gathered.h"

namespace tessera::test {
namespace {

class CudaDecodeGathered : public CudaTest, public testing::WithParamInterface<tessera_dtype> {
 protected:
  static FmhaOutputs by_oracle(const FmhaProblem& problem, size_t segment, const Lists& lists) {
    FmhaOutputs out = problem.make_outputs();
    tessera_fmha_params params = problem.params(&out);
    lists.put(&params.segments[segment], lists.indices.data(), lists.lens.data());
    const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
    const Status status = oracle_fmha(Arithmetic::kHopperK16F25, params, threads);
    EXPECT_TRUE(status.ok()) << status.text();
    return out;
  }
  static FmhaOutputs by_decode(const FmhaProblem& problem, size_t segment, const Lists& lists) {
    DeviceProblem device(problem, {.keep_lengths = true});
    DeviceArrays arrays;
    const auto place = [&](const std::vector<int32_t>& values) {
      return static_cast<const int32_t*>(arrays.place(values.data(), values.size() * sizeof(int32_t), false));
    };
    lists.put(&device.params.segments[segment], place(lists.indices), place(lists.lens));
    FmhaOutputs out;
    EXPECT_EQ(run_on(device, kDecode, &out), "");
    EXPECT_EQ(arrays.damage(), "");
    return out;
  }
  static void check(const FmhaSpec& spec, size_t segment, int32_t topk, bool limited = false) {
    SCOPED_TRACE(to_text(spec) + ", topk " + std::to_string(topk));
    const FmhaProblem problem(spec);
    const Lists lists(spec, segment, topk, limited, static_cast<uint32_t>(topk) + 9);
    EXPECT_EQ(first_difference(problem, by_oracle(problem, segment, lists), by_decode(problem, segment, lists)), "");
  }
  static FmhaSpec gathered(int64_t tokens, const std::vector<int64_t>& lengths) {
    FmhaSpec spec = decode_spec(GetParam(), tokens, 1);
    spec.q_lengths.assign(lengths.size(), tokens);
    spec.segments[0].lengths = lengths;
    spec.sinks.assign(static_cast<size_t>(spec.heads_q), 0.5F);
    return spec;
  }
};

TEST_P(CudaDecodeGathered, ListsOfAnyLengthAndEveryHeadDim) {
  for (const auto& [qk, v] : {std::pair{64, 64}, {128, 128}, {192, 128}, {256, 256}, {512, 512}, {576, 512}}) {
    for (const int32_t topk : {1, 33, 300, 2500}) {
      FmhaSpec spec = gathered(1, {3000, 0, 129, 7000});
      spec.head_dim_qk = qk;
      spec.head_dim_v = v;
      check(spec, 0, topk, topk == 300);
    }
  }
  check(gathered(1, {5000}), 0, 2048);
  check(gathered(1, {9000}), 0, 8192);
  check(gathered(1, {40, 50}), 0, 0);
}

TEST_P(CudaDecodeGathered, KeysOfPagesAndOfHeadsFirst) {
  for (const int32_t page : {1, 3, 16, 64}) {
    FmhaSpec spec = gathered(1, {900, 17, 2300});
    spec.segments[0].layout = KvLayout::kPaged;
    spec.segments[0].page_size = page;
    check(spec, 0, 500);
  }
  FmhaSpec spec = gathered(1, {900, 17, 2300});
  spec.head_major = spec.segments[0].head_major = true;
  spec.segments[0].row_padding = 8;
  check(spec, 0, 500);
}

TEST_P(CudaDecodeGathered, EveryTokenHasAListAndSeesNoKeysBehindIt) {
  for (const int64_t tokens : {2, 7, 40}) {
    FmhaSpec spec = gathered(tokens, {1000, 40, 300});
    check(spec, 0, 130, true);
    spec.segments[0].q_positions = {300, 0, -4};
    check(spec, 0, 130);
    spec.segments[0].causal = 0;
    spec.segments[0].window_left = 100;
    spec.segments[0].window_right = 20;
    check(spec, 0, 130);
    spec.segments[0].compress_ratio = 4;
    spec.segments[0].q_positions = {3000, 80, 1150};
    spec.unnormalized = true;
    spec.o_dtype = TESSERA_F32;
    spec.sinks.clear();
    check(spec, 0, 130);
  }
}

TEST_P(CudaDecodeGathered, BesideAWindowOverTheRawKeys) {
  for (const bool first : {true, false}) {
    FmhaSpec spec = gathered(1, {3000, 17, 9000, 0});
    SegmentSpec window = spec.segments[0];
    window.window_left = 127;
    window.layout = KvLayout::kPaged;
    spec.segments.insert(first ? spec.segments.end() : spec.segments.begin(), window);
    check(spec, first ? 0 : 1, 700);
    check(spec, first ? 0 : 1, 2100, true);
  }
}

TEST_P(CudaDecodeGathered, A23_TheOrderOfAListMovesNoBit) {
  const FmhaSpec spec = gathered(1, {4000, 300});
  const FmhaProblem problem(spec);
  Lists lists(spec, 0, 1500, false, 4);
  const FmhaOutputs expected = by_decode(problem, 0, lists);
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::mt19937 random(seed);
    for (int64_t b = 0; b < 2; ++b) {
      const auto begin = lists.indices.begin() + b * lists.stride;
      std::shuffle(begin, begin + lists.topk, random);
    }
    EXPECT_EQ(first_difference(problem, expected, by_decode(problem, 0, lists)), "") << seed;
  }
  lists.indices[0] = lists.indices[0] == 7 ? 8 : 7;
  EXPECT_NE(first_difference(problem, expected, by_decode(problem, 0, lists)), "") << "another key";
}

// Indices that are none are no keys: nothing is read for them, least of all key 0.
TEST_P(CudaDecodeGathered, D12_InvalidIndicesReadNoKey) {
  const FmhaProblem problem(gathered(1, {2300}));
  Lists lists(problem.spec(), 0, 600, false, 6);
  for (int32_t& index : lists.indices) index = index == 0 ? 1 : index;
  const FmhaOutputs expected = by_oracle(problem, 0, lists);
  int32_t next = 0;
  for (int32_t& index : lists.indices) {
    constexpr int32_t kInvalid[] = {-1, 2300, 1 << 30, -7, std::numeric_limits<int32_t>::max(), -(1 << 30)};
    if (index == -1) index = kInvalid[next++ % 6];
  }
  DeviceProblem device(problem, {.keep_lengths = true});
  DeviceArrays arrays;
  lists.put(&device.params.segments[0],
            static_cast<const int32_t*>(arrays.place(lists.indices.data(), lists.indices.size() * 4, false)), nullptr);
  const tessera_kv_segment& s = device.params.segments[0];
  for (const tessera_tensor* t : {&s.k, &s.v}) {  // the rows of key 0 of both heads
    ASSERT_EQ(cudaMemset(t->data, 0xff, static_cast<size_t>(t->stride_token) * 2), cudaSuccess);
  }
  device.params.force_kernel = kDecode;
  ASSERT_EQ(device.make_workspace(), "");
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const Stream stream;
  ASSERT_EQ(device.enqueue(stream.get(), nullptr), TESSERA_OK);
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(first_difference(problem, expected, device.outputs()), "");
}

TEST_P(CudaDecodeGathered, RefusalsNameTheField) {
  const FmhaProblem problem(gathered(2, {300, 300}));
  DeviceProblem device(problem);
  const auto refusal = [&](auto change) {
    tessera_fmha_params p = device.params;
    p.force_kernel = kDecode;
    p.segments[0].indices_stride = p.segments[0].topk = 100;
    p.segments[0].indices = reinterpret_cast<const int32_t*>(uintptr_t{1} << 20);  // never read
    change(&p);
    size_t bytes = 0;
    tessera_error error{};
    return tessera_fmha_workspace_size(&p, 1, &bytes, &error) == TESSERA_OK ? std::string() : std::string(error.text);
  };
  EXPECT_EQ(refusal([](tessera_fmha_params*) {}), "");
  const auto has = [&](const char* words, auto change) {
    EXPECT_NE(refusal(change).find(words), std::string::npos) << words << ": " << refusal(change);
  };
  has("topk: got more than 8192",
      [](tessera_fmha_params* p) { p->segments[0].indices_stride = p->segments[0].topk = 8193; });
  has("indices: got several query tokens and a segment without", [](tessera_fmha_params* p) {
    p->segments[1] = p->segments[0];
    p->segments[1].indices = nullptr;
    p->num_segments = 2;
  });
  has("alibi_slopes", [](tessera_fmha_params* p) { p->alibi_slopes = p->sinks; });
  has("mask", [](tessera_fmha_params* p) {
    p->segments[0].mask.data = reinterpret_cast<const uint8_t*>(uintptr_t{1} << 20);
    p->segments[0].mask.num_keys = 8;
  });
  has("strides of q, o", [](tessera_fmha_params* p) { p->q.stride_batch += 8; });
  has("strides of k, v", [](tessera_fmha_params* p) { p->segments[0].v.stride_batch += 8; });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeGathered, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);

}  // namespace
}  // namespace tessera::test
