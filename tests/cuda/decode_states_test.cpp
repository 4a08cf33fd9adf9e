// States of decode calls and their merge (R8 to R10): branches of keys in passes of their own, merged outside, against
// one call with a list of segments; a sequence cut into chunks by hand; and cuts that are wrong, which the comparison
// has to notice.
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contract/plan.h"
#include "cuda/decode.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Device memory for `count` states of a problem's rows, as NaN.
class States {
 public:
  States(const tessera_fmha_params& p, int64_t count)
      : rows_(p.batch * p.seqlen_q), heads_(p.num_heads_q), dim_(p.head_dim_v), tokens_(p.seqlen_q), count_(count) {
    const auto bytes = static_cast<size_t>(count * rows_ * heads_ * (dim_ + 2)) * sizeof(float);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&o_), bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(o_, 0xff, bytes), cudaSuccess);
    max_ = o_ + count * rows_ * heads_ * dim_;
    sum_ = max_ + count * rows_ * heads_;
  }
  ~States() { cudaFree(o_); }
  States(const States&) = delete;
  States& operator=(const States&) = delete;

  // The call that writes state `slot` of what `p` describes.
  tessera_fmha_params writing(tessera_fmha_params p, int64_t slot) const {
    p.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
    p.o_dtype = TESSERA_F32;
    p.sinks = nullptr;
    p.o = {o_ + slot * rows_ * heads_ * dim_, tokens_ * heads_ * dim_, heads_ * dim_, dim_, 1};
    p.row_max_log2 = {max_ + slot * rows_ * heads_, tokens_ * heads_, heads_, 1};
    p.row_sum = {sum_ + slot * rows_ * heads_, tokens_ * heads_, heads_, 1};
    p.lse_natural_no_sink = {};
    return p;
  }
  // The merge of the states, in this order, into the outputs of `p`, whose rows have to be contiguous.
  tessera_merge_params merging(const tessera_fmha_params& p) const {
    tessera_merge_params m{};
    m.struct_size = sizeof(m);
    m.dtype = p.dtype;
    m.o_dtype = p.o_dtype;
    m.head_dim_qk = p.head_dim_qk;
    m.head_dim_v = p.head_dim_v;
    m.num_heads_q = p.num_heads_q;
    m.num_rows = rows_;
    m.num_states = count_;
    m.o_states = {o_, rows_ * heads_ * dim_, heads_ * dim_, dim_, 1};
    m.row_max_log2_states = {max_, rows_ * heads_, heads_, 1};
    m.row_sum_states = {sum_, rows_ * heads_, heads_, 1};
    m.sinks = p.sinks;
    m.o = p.o;
    m.o.stride_batch = 0;
    m.lse_natural_no_sink = p.lse_natural_no_sink;
    m.lse_natural_no_sink.stride_batch = 0;
    m.device = TESSERA_DEVICE_CUDA;
    return m;
  }

 private:
  float* o_ = nullptr;
  float* max_ = nullptr;
  float* sum_ = nullptr;
  int64_t rows_, heads_, dim_, tokens_, count_;
};

// Runs the calls by the decode kernel, one state each, merges them in this order, and gives the problem's outputs.
FmhaOutputs merged(DeviceProblem& device, const std::vector<tessera_fmha_params>& calls) {
  const tessera_fmha_params whole = device.params;
  const States states(whole, static_cast<int64_t>(calls.size()));
  for (size_t slot = 0; slot < calls.size(); ++slot) {
    FmhaOutputs untouched;
    EXPECT_EQ(run_on(device, states.writing(calls[slot], static_cast<int64_t>(slot)), kDecode, &untouched), "");
  }
  device.reset_outputs();
  const Stream stream;
  const tessera_stream where{nullptr, stream.get()};
  const tessera_merge_params merge = states.merging(whole);
  tessera_error error{};
  EXPECT_EQ(tessera_fmha_merge(&merge, &where, &error), TESSERA_OK) << error.text;
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  return device.outputs();
}

// The pass over one segment of a call.
tessera_fmha_params pass(tessera_fmha_params p, int32_t segment) {
  p.segments[0] = p.segments[segment];
  p.num_segments = 1;
  return p;
}

class CudaDecodeStates : public CudaTest, public testing::WithParamInterface<tessera_dtype> {
 protected:
  static void expect_passes_equal_one_call(const FmhaSpec& spec) {
    SCOPED_TRACE(to_text(spec));
    const FmhaProblem problem(spec);
    DeviceProblem device(problem, {.keep_lengths = true});
    const FmhaOutputs expected = run_hopper_oracle(problem);
    int together = 0;
    for (const char* kernel : {kDecode, "sm90_fmha_ragged", "sm80_fmha"}) {
      FmhaOutputs out;
      if (!run_on(device, kernel, &out).empty()) continue;
      EXPECT_EQ(first_difference(problem, expected, out), "") << "one call by " << kernel;
      ++together;
    }
    EXPECT_GE(together, 1) << "no kernel takes the segments together";
    std::vector<tessera_fmha_params> passes;
    passes.reserve(static_cast<size_t>(device.params.num_segments));
    for (int32_t i = 0; i < device.params.num_segments; ++i) passes.push_back(pass(device.params, i));
    EXPECT_EQ(first_difference(problem, expected, merged(device, passes)), "") << "passes, merged";
  }

  // A window over the pages of the recent keys, then another branch over all of what it keeps; sinks.
  static FmhaSpec branches(int64_t tokens, const std::vector<int64_t>& recent, const std::vector<int64_t>& kept) {
    FmhaSpec spec = decode_spec(GetParam(), tokens, 1);
    spec.q_lengths.assign(recent.size(), tokens);
    SegmentSpec& window = spec.segments[0];
    window.lengths = recent;
    window.window_left = 127;
    window.layout = KvLayout::kPaged;
    window.page_size = 16;
    SegmentSpec other;
    other.lengths = kept;
    spec.segments.push_back(other);
    spec.sinks.assign(static_cast<size_t>(spec.heads_q), 0.7F);
    spec.sinks[1] = -kInf;
    spec.sinks[2] = 12.0F;
    return spec;
  }
};

TEST_P(CudaDecodeStates, B15_WindowOtherBranchAndSinkInTwoPassesOrOneCall) {
  expect_passes_equal_one_call(branches(1, {3000, 40, 2049}, {500, 2100, 7}));
  expect_passes_equal_one_call(branches(4, {700, 4100}, {64, 130}));
  FmhaSpec wide = branches(1, {900}, {5000});
  wide.o_dtype = TESSERA_F32;
  expect_passes_equal_one_call(wide);
  FmhaSpec narrow = branches(2, {300, 5}, {2050, 64});
  narrow.head_dim_qk = narrow.head_dim_v = 64;
  expect_passes_equal_one_call(narrow);
  FmhaSpec widest = branches(1, {300, 2049}, {4500, 64});
  widest.head_dim_qk = widest.head_dim_v = 512;
  expect_passes_equal_one_call(widest);
}

TEST_P(CudaDecodeStates, B15_APrefixAndASuffix) {
  for (const int64_t prefix : {3072, 4096}) {
    FmhaSpec spec = decode_spec(GetParam(), 2, prefix);
    spec.segments[0].causal = 0;
    SegmentSpec suffix;
    suffix.lengths = {64};
    suffix.causal = 1;
    spec.segments.push_back(suffix);
    expect_passes_equal_one_call(spec);
  }
}

TEST_P(CudaDecodeStates, B11_B12_B18_EmptyBranchesAreTheIdentity) {
  expect_passes_equal_one_call(branches(1, {0, 500, 0, 129}, {600, 0, 0, 37}));
  FmhaSpec three = branches(1, {0, 512, 37}, {8, 8, 8});
  three.segments.push_back(three.segments[1]);
  three.segments[1].lengths = {0, 0, 2049};
  expect_passes_equal_one_call(three);

  // A branch beside an empty one is the branch alone, with its sink.
  const FmhaProblem problem(branches(1, {0, 0}, {2500, 3}));
  DeviceProblem device(problem, {.keep_lengths = true});
  const std::vector<tessera_fmha_params> both = {pass(device.params, 0), pass(device.params, 1)};
  const FmhaOutputs passes = merged(device, both);
  FmhaOutputs branch;
  ASSERT_EQ(run_on(device, both[1], kDecode, &branch), "");
  EXPECT_EQ(first_difference(problem, branch, passes), "");
}

TEST_P(CudaDecodeStates, B21_TheOrderOfTheBranchesIsTheDeclaredOne) {
  FmhaSpec spec = branches(1, {3000}, {2500});
  spec.o_dtype = TESSERA_F32;
  spec.sinks.clear();
  SegmentSpec third;
  third.lengths = {900};
  spec.segments.push_back(third);
  const FmhaProblem problem(spec);
  DeviceProblem device(problem, {.keep_lengths = true});
  const FmhaOutputs expected = run_hopper_oracle(problem);
  const std::vector<tessera_fmha_params> passes = {pass(device.params, 0), pass(device.params, 1),
                                                   pass(device.params, 2)};
  EXPECT_EQ(first_difference(problem, expected, merged(device, passes)), "");
  EXPECT_NE(first_difference(problem, expected, merged(device, {passes[0], passes[2], passes[1]})), "");
}

// A window, compressed keys and a third branch: one launch of the decode kernel against a call of it per segment, whose
// states the public merge chains in the order of the list and finishes.
TEST_P(CudaDecodeStates, OneLaunchIsACallPerSegmentMergedInTheirOrder) {
  for (const auto& [qk, v] : {std::pair{64, 64}, {128, 128}, {192, 128}, {256, 256}}) {
    for (const bool sinks : {true, false}) {
      FmhaSpec spec = branches(2, {3000, 40, 4200}, {750, 10, 2100});
      spec.head_dim_qk = qk;
      spec.head_dim_v = v;
      SegmentSpec& compressed = spec.segments[1];
      compressed.compress_ratio = 4;
      compressed.q_positions = {2998, 38, 4198};
      SegmentSpec third;
      third.lengths = {900, 0, 2500};
      spec.segments.push_back(third);
      if (!sinks) {  // and nothing hides a difference: fp32, not rounded again
        spec.sinks.clear();
        spec.o_dtype = TESSERA_F32;
      }
      SCOPED_TRACE(to_text(spec));
      const FmhaProblem problem(spec);
      DeviceProblem device(problem, {.keep_lengths = true});
      FmhaOutputs launch;
      ASSERT_EQ(run_on(device, kDecode, &launch), "");
      const std::vector<tessera_fmha_params> passes = {pass(device.params, 0), pass(device.params, 1),
                                                       pass(device.params, 2)};
      EXPECT_EQ(first_difference(problem, launch, merged(device, passes)), "");
      if (sinks) continue;
      const std::vector<tessera_fmha_params> swapped = {passes[0], passes[2], passes[1]};
      EXPECT_NE(first_difference(problem, launch, merged(device, swapped)), "") << "another order is another result";
      tessera_fmha_params list = device.params;
      std::swap(list.segments[1], list.segments[2]);
      FmhaOutputs other;
      ASSERT_EQ(run_on(device, list, kDecode, &other), "");
      EXPECT_EQ(first_difference(problem, other, merged(device, swapped)), "") << "but the same one both ways";
      EXPECT_NE(first_difference(problem, launch, other), "");
    }
  }
}

// ---- cuts of one sequence, right and wrong

struct Range {
  int64_t begin, end;  // keys
};

// Parts of the keys as calls of their own; no mask, so that positions do not matter.
std::vector<tessera_fmha_params> parts_of(const tessera_fmha_params& whole, const std::vector<Range>& ranges) {
  std::vector<tessera_fmha_params> parts;
  for (const Range& range : ranges) {
    tessera_fmha_params p = whole;
    tessera_kv_segment& s = p.segments[0];
    s.k.data = step(s.k.data, range.begin * s.k.stride_token, false);
    s.v.data = step(s.v.data, range.begin * s.v.stride_token, false);
    s.seqlen_k = range.end - range.begin;
    s.causal = 0;
    parts.push_back(p);
  }
  return parts;
}

class CudaDecodeSplit : public CudaDecodeStates {
 protected:
  static constexpr int64_t kKeys = 3 * kChunkKeys + 700;

  static FmhaSpec spec() {
    FmhaSpec wide = decode_spec(GetParam(), 1, kKeys);
    wide.o_dtype = TESSERA_F32;  // rounding to 16 bits would hide most of what a wrong cut does
    return wide;
  }
  static std::vector<Range> chunks() {
    return {{0, kChunkKeys}, {kChunkKeys, 2 * kChunkKeys}, {2 * kChunkKeys, 3 * kChunkKeys}, {3 * kChunkKeys, kKeys}};
  }
  void SetUp() override {
    CudaDecodeStates::SetUp();
    if (IsSkipped()) return;
    problem_ = std::make_unique<FmhaProblem>(spec());
    device_ = std::make_unique<DeviceProblem>(*problem_);
    ASSERT_EQ(run_on(*device_, kDecode, &whole_), "");
  }
  // Where the merge of these parts differs from the whole call first, or "".
  std::string difference_of(const std::vector<Range>& ranges) {
    return first_difference(*problem_, whole_, merged(*device_, parts_of(device_->params, ranges)));
  }

  std::unique_ptr<FmhaProblem> problem_;
  std::unique_ptr<DeviceProblem> device_;
  FmhaOutputs whole_;
};

TEST_P(CudaDecodeSplit, ChunksByHandAreTheWholeCall) {
  EXPECT_EQ(difference_of(chunks()), "");
  EXPECT_EQ(first_difference(*problem_, oracle_tail(*problem_, 1), whole_), "");
}

// The negative controls: each of these is a way in which a split kernel can be wrong.
TEST_P(CudaDecodeSplit, NegativeControl_ChunksMergedInAnotherOrder) {
  std::vector<Range> ranges = chunks();
  std::swap(ranges[1], ranges[2]);
  EXPECT_NE(difference_of(ranges), "");
}

TEST_P(CudaDecodeSplit, NegativeControl_AChunkEndsOneGranuleEarly) {
  std::vector<Range> ranges = chunks();
  ranges[0].end -= 128;
  ranges[1].begin -= 128;
  EXPECT_NE(difference_of(ranges), "");
}

TEST_P(CudaDecodeSplit, NegativeControl_AChunkEndsOneKeyEarly) {
  std::vector<Range> ranges = chunks();
  ranges[1].end -= 1;
  ranges[2].begin -= 1;
  EXPECT_NE(difference_of(ranges), "");
}

TEST_P(CudaDecodeSplit, NegativeControl_AChunkIsMissingOrCountsTwice) {
  std::vector<Range> ranges = chunks();
  ranges.erase(ranges.begin() + 1);
  EXPECT_NE(difference_of(ranges), "");
  ranges = chunks();
  ranges.insert(ranges.begin(), ranges[0]);
  EXPECT_NE(difference_of(ranges), "");
}

TEST_P(CudaDecodeSplit, NegativeControl_TwoChunksAreOne) {
  // Half the splits: the keys of two chunks as one call, which chains them itself, are right; the last chunks chained
  // with each other first are not.
  EXPECT_EQ(difference_of({{0, 2 * kChunkKeys}, {2 * kChunkKeys, 3 * kChunkKeys}, {3 * kChunkKeys, kKeys}}), "");
  EXPECT_NE(difference_of({{0, kChunkKeys}, {kChunkKeys, kKeys}}), "");
}

TEST_P(CudaDecodeSplit, NegativeControl_OneKeyLessInAWindowOrAtTheEnd) {
  FmhaOutputs out;
  tessera_fmha_params call = device_->params;
  call.segments[0].seqlen_k = kKeys - 1;
  ASSERT_EQ(run_on(*device_, call, kDecode, &out), "");
  EXPECT_NE(first_difference(*problem_, whole_, out), "");
  call = device_->params;
  for (const int64_t window : {1, 127, 2047, 2048, 3000}) {
    FmhaOutputs right;
    call.segments[0].window_left = window;
    ASSERT_EQ(run_on(*device_, call, kDecode, &right), "");
    call.segments[0].window_left = window - 1;
    ASSERT_EQ(run_on(*device_, call, kDecode, &out), "");
    EXPECT_NE(first_difference(*problem_, right, out), "") << window;
  }
}

TEST_P(CudaDecodeSplit, NegativeControl_ASinkInEveryPart) {
  // Sinks belong to the merge alone (R9): counted in no part, or in every part, they are not the same.
  FmhaSpec sunk = spec();
  sunk.sinks.assign(static_cast<size_t>(sunk.heads_q), 5.0F);
  const FmhaProblem problem(sunk);
  DeviceProblem device(problem);
  FmhaOutputs whole;
  ASSERT_EQ(run_on(device, kDecode, &whole), "");
  EXPECT_EQ(first_difference(problem, whole, merged(device, parts_of(device.params, chunks()))), "");
  device.params.sinks = nullptr;
  EXPECT_NE(first_difference(problem, whole, merged(device, parts_of(device.params, chunks()))), "");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeStates, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);
INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeSplit, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);

}  // namespace
}  // namespace tessera::test
