// Every CUDA kernel of the registry gives the oracle's bytes under hopper-k16-f25, for random problems through the
// public interface; what a kernel does not take it refuses, and then writes nothing.
#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "cuda/draw.h"
#include "cuda/harness.h"
#include "fmha/conformance.h"
#include "oracle/oracle.h"

namespace tessera::test {
namespace {

const char* name_of(tessera_dtype dtype) {
  return dtype == TESSERA_F16 ? "f16" : "bf16";
}

struct Tally {
  int compared = 0;
  int refused = 0;
};

// Kernel -> what became of the problems of a test.
class Tallies {
 public:
  explicit Tallies(const char* family, tessera_dtype dtype) : family_(family), dtype_(dtype) {}
  ~Tallies() {  // read by tools/gpu_check
    for (const auto& [kernel, tally] : tallies_) {
      fmt::print("[ TALLY    ] {} {} {} compared {} refused {}\n", kernel, name_of(dtype_), family_, tally.compared,
                 tally.refused);
    }
  }
  Tallies(const Tallies&) = delete;
  Tallies& operator=(const Tallies&) = delete;

  // Runs every kernel that this machine has.
  void check(const FmhaSpec& spec, Placement placement = {}) {
    const FmhaProblem problem(spec);
    std::optional<FmhaOutputs> expected;
    for (const std::string& kernel : cuda_kernels(TESSERA_OP_FMHA, true)) {
      const CudaRun run = run_cuda(kernel, problem, placement);
      SCOPED_TRACE(kernel + ": " + to_text(problem.spec()));
      ASSERT_EQ(run.damage, "");
      if (run.status == TESSERA_UNSUPPORTED) {
        EXPECT_EQ(first_difference(problem, problem.make_outputs(), run.out), "") << "a refusal writes nothing";
        ++tallies_[kernel].refused;
        continue;
      }
      ASSERT_EQ(run.status, TESSERA_OK) << run.text;
      if (!expected.has_value()) expected = run_hopper_oracle(problem);
      EXPECT_EQ(first_difference(problem, *expected, run.out), "");
      ++tallies_[kernel].compared;
    }
  }
  int compared_by(const std::string& kernel) const {
    const auto at = tallies_.find(kernel);
    return at == tallies_.end() ? 0 : at->second.compared;
  }
  int most_compared() const {
    int most = 0;
    for (const auto& [kernel, tally] : tallies_) most = std::max(most, tally.compared);
    return most;
  }

 private:
  const char* family_;
  tessera_dtype dtype_;
  std::map<std::string, Tally> tallies_;
};

class CudaConformance : public CudaTest, public testing::WithParamInterface<std::tuple<tessera_dtype, int>> {
 protected:
  static tessera_dtype dtype() { return std::get<0>(GetParam()); }
  static uint64_t group() { return static_cast<uint64_t>(std::get<1>(GetParam())); }
};

std::string param_name(const testing::TestParamInfo<std::tuple<tessera_dtype, int>>& param) {
  return fmt::format("{}_{}", name_of(std::get<0>(param.param)), std::get<1>(param.param));
}

using CudaMixes = CudaConformance;

TEST_P(CudaMixes, EqualTheOracle) {
  constexpr int kProblems = 40;
  Tallies tallies("mixes", dtype());
  for (int i = 0; i < kProblems && !HasFatalFailure(); ++i) {
    const uint64_t seed = 5000 + group() * kProblems + static_cast<uint64_t>(i);
    tallies.check(draw_mix(seed, dtype()), {.misalign = seed % 4 == 0 ? 2u : 0u, .keep_lengths = seed % 2 == 0});
  }
  EXPECT_EQ(tallies.most_compared(), kProblems) << "some kernel takes every mix";
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaMixes,
                         testing::Combine(testing::Values(TESSERA_F16, TESSERA_BF16), testing::Range(0, 8)),
                         param_name);

using CudaPrefill = CudaConformance;

TEST_P(CudaPrefill, EqualsTheOracle) {
  constexpr uint64_t kProblems = 40;
  Tallies tallies("prefill", dtype());
  for (uint64_t i = 0; i < kProblems && !HasFatalFailure(); ++i) {
    const uint64_t seed = 9000 + group() * kProblems + i;
    tallies.check(draw_prefill(seed, dtype(), i % 4 == 3 ? 64 : 128));
  }
  EXPECT_GE(tallies.most_compared(), 30) << "these problems are made for the prefill kernels";
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaPrefill,
                         testing::Combine(testing::Values(TESSERA_F16, TESSERA_BF16), testing::Range(0, 2)),
                         param_name);

using CudaRagged = CudaConformance;

TEST_P(CudaRagged, EqualsTheOracle) {
  constexpr int kProblems = 40;
  Tallies tallies("ragged", dtype());
  for (int i = 0; i < kProblems && !HasFatalFailure(); ++i) {
    const uint64_t seed = 20000 + group() * kProblems + static_cast<uint64_t>(i);
    tallies.check(draw_ragged(seed, dtype()), {.keep_lengths = seed % 2 == 0});
  }
  EXPECT_GE(tallies.compared_by("sm90_fmha_ragged"), kProblems - 4)
      << "these problems are made for the ragged prefill kernels";
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaRagged,
                         testing::Combine(testing::Values(TESSERA_F16, TESSERA_BF16), testing::Range(0, 4)),
                         param_name);

using CudaWide = CudaConformance;

TEST_P(CudaWide, EqualsTheOracle) {
  constexpr int kProblems = 30;
  Tallies tallies("wide", dtype());
  for (int i = 0; i < kProblems && !HasFatalFailure(); ++i) {
    const uint64_t seed = 30000 + group() * kProblems + static_cast<uint64_t>(i);
    tallies.check(draw_wide(seed, dtype()), {.keep_lengths = seed % 2 == 0});
  }
  EXPECT_GE(tallies.compared_by("sm90_fmha_prefill_512"), kProblems - 4)
      << "these problems are made for the prefill kernel of head dim 512";
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaWide,
                         testing::Combine(testing::Values(TESSERA_F16, TESSERA_BF16), testing::Range(0, 4)),
                         param_name);

using CudaMqa = CudaConformance;

TEST_P(CudaMqa, EqualsTheOracle) {
  constexpr int kProblems = 30;
  Tallies tallies("mqa", dtype());
  for (int i = 0; i < kProblems && !HasFatalFailure(); ++i) {
    const uint64_t seed = 40000 + group() * kProblems + static_cast<uint64_t>(i);
    tallies.check(draw_mqa(seed, dtype()), {.keep_lengths = seed % 2 == 0});
  }
  EXPECT_GE(tallies.compared_by("sm90_fmha_mqa_512"), kProblems - 3)
      << "these problems are made for the kernel for one K/V head whose V is K";
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaMqa,
                         testing::Combine(testing::Values(TESSERA_F16, TESSERA_BF16), testing::Range(0, 4)),
                         param_name);

class CudaMqaFp8 : public CudaTest, public testing::WithParamInterface<int> {};

TEST_P(CudaMqaFp8, EqualsTheOracle) {
  constexpr int kProblems = 30;
  Tallies tallies("mqa_fp8", TESSERA_BF16);
  for (int i = 0; i < kProblems && !HasFatalFailure(); ++i) {
    const uint64_t seed = 50000 + static_cast<uint64_t>(GetParam()) * kProblems + static_cast<uint64_t>(i);
    tallies.check(draw_mqa_fp8(seed), {.keep_lengths = seed % 2 == 0});
  }
  EXPECT_GE(tallies.compared_by("sm90_fmha_mqa_512"), kProblems - 5)
      << "these problems are made for the kernel that takes FP8 rows";
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaMqaFp8, testing::Range(0, 4));

class CudaWideFew : public CudaTest, public testing::WithParamInterface<tessera_dtype> {};

// So few that they may run under a memory checker: pages of eight keys and more, some missing; windows; packed heads.
TEST_P(CudaWideFew, EqualsTheOracle) {
  Tallies tallies("wide_few", GetParam());
  for (const uint64_t seed : {30005U, 30011U, 30015U, 30033U}) {
    tallies.check(draw_wide(seed, GetParam()), {.keep_lengths = seed % 2 == 0});
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(tallies.compared_by("sm90_fmha_prefill_512"), 3);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaWideFew, testing::Values(TESSERA_F16, TESSERA_BF16),
                         [](const auto& param) { return name_of(param.param); });

FmhaSpec plain(tessera_dtype dtype, int64_t q, int64_t k) {
  FmhaSpec spec;
  spec.dtype = spec.o_dtype = dtype;
  spec.head_dim_qk = spec.head_dim_v = 128;
  spec.heads_q = 2;
  spec.heads_kv = 1;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, q, k);
}

class CudaLong : public CudaTest, public testing::WithParamInterface<tessera_dtype> {};

TEST_P(CudaLong, ChunkAndSuperchunkBoundaries) {
  Tallies tallies("boundaries", GetParam());
  for (const int64_t k : {2047, 2048, 2049, 4096, 32767, 32768, 32769, 33 * 2048 + 5}) {
    tallies.check(plain(GetParam(), 3, k));
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(tallies.most_compared(), 8);
}

// A window whose keys begin in the last chunk of a superchunk (keys 30720 to 32767), for all rows or for the first ones
// only: the first chunk that a kernel looks at then also closes a superchunk.
TEST_P(CudaLong, WindowsThatBeginInASuperchunksLastChunk) {
  Tallies tallies("boundaries", GetParam());
  for (const int32_t dim : {64, 128, 256}) {
    for (const int64_t window : {4000, 2290}) {
      FmhaSpec spec = plain(GetParam(), 70, 35100);
      spec.head_dim_qk = spec.head_dim_v = dim;
      spec.segments[0].window_left = window;
      tallies.check(spec);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(tallies.compared_by("sm90_fmha_ragged"), 6);
}

// Scores of tens: the maximum moves in most granules and weights underflow; queries before the first key see nothing.
TEST_P(CudaLong, MovingMaximaAndRowsWithoutKeys) {
  Tallies tallies("maxima", GetParam());
  for (const float amplitude : {0.0F, 1e-3F, 20.0F, 200.0F}) {
    FmhaSpec spec = plain(GetParam(), 150, 100);
    spec.q_amplitude = amplitude;
    tallies.check(spec);
    spec = plain(GetParam(), 40, 1500);
    spec.q_amplitude = amplitude;
    tallies.check(spec);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(tallies.most_compared(), 8);
}

TEST_P(CudaLong, ElementAlignedArraysAreTakenOrRefused) {
  Tallies tallies("misaligned", GetParam());
  for (const size_t misalign : {2u, 4u, 8u}) tallies.check(plain(GetParam(), 70, 200), {.misalign = misalign});
}

// Up to 32 packed sequences each block of a ragged sm_90 kernel adds up their tiles itself, beyond a step before it
// does.
TEST_P(CudaLong, AsManySequencesAsAWarpHasLanes) {
  Tallies tallies("sequences", GetParam());
  for (const int32_t dim : {64, 128, 256}) {
    for (const int64_t count : {31, 32, 33, 34}) {
      FmhaSpec spec = plain(GetParam(), 1, 1);
      spec.head_dim_qk = spec.head_dim_v = dim;
      spec.packed_q = true;
      spec.segments[0].layout = KvLayout::kPacked;
      spec.q_lengths.clear();
      spec.segments[0].lengths.clear();
      for (int64_t b = 0; b < count; ++b) {
        spec.q_lengths.push_back(b % 4 == 1 ? 0 : b % 11 == 10 ? 200 : 5 + b);
        spec.segments[0].lengths.push_back(3 * b + 7);
      }
      tallies.check(spec);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(tallies.compared_by("sm90_fmha_ragged"), 12);
}

// Negative control: the comparison tells one arithmetic from another.
TEST_P(CudaLong, AnotherArithmeticHasOtherBytes) {
  const FmhaProblem problem(plain(GetParam(), 30, 300));
  const CudaRun run = run_cuda("", problem);
  ASSERT_EQ(run.status, TESSERA_OK) << run.text;
  FmhaOutputs other = problem.make_outputs();
  ASSERT_TRUE(oracle_fmha(Arithmetic::kCpuFma32, problem.params(&other), 2).ok());
  EXPECT_NE(first_difference(problem, other, run.out), "");
  EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), run.out), "");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaLong, testing::Values(TESSERA_F16, TESSERA_BF16),
                         [](const auto& param) { return name_of(param.param); });

}  // namespace
}  // namespace tessera::test
