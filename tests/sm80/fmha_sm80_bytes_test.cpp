// The sm_80 attention kernels against the oracle under hopper-k16-f25, byte for byte: O, LSE, states, and the guard
// bytes around them. Every byte that no row may use is poison. Needs an sm_90 GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "fmha/conformance.h"
#include "kernels/sm80/fmha/fmha_sm80.h"
#include "sm80/device.h"
#include "sm80/draw.h"
#include "sm80/variants.h"

namespace tessera::test {
namespace {

// fp32 output: 16-bit output would hide most differences.
FmhaSpec plain(tessera_dtype dtype, int32_t head_dim_qk, int32_t head_dim_v) {
  FmhaSpec spec;
  spec.dtype = dtype;
  spec.o_dtype = TESSERA_F32;
  spec.head_dim_qk = head_dim_qk;
  spec.head_dim_v = head_dim_v;
  spec.heads_q = 2;
  spec.heads_kv = 1;
  spec.segments.emplace_back();
  return spec;
}

FmhaSpec causal(FmhaSpec spec) {
  spec.segments[0].causal = 1;
  return spec;
}

using FmhaSm80 = DeviceTest;

// (dtype, head_dim_qk, head_dim_v)
class FmhaSm80Dims : public FmhaSm80,
                     public testing::WithParamInterface<std::tuple<tessera_dtype, std::tuple<int32_t, int32_t>>> {
 protected:
  FmhaSpec spec() const {
    const auto& [dtype, dims] = GetParam();
    return plain(dtype, std::get<0>(dims), std::get<1>(dims));
  }
};

TEST_P(FmhaSm80Dims, LengthsAroundTiles) {
  int64_t turn = 0;
  for (const int64_t q : {1, 31, 32, 33, 65}) {
    for (const int64_t k : {1, 63, 64, 65, 127, 128, 129, 300}) {
      FmhaSpec s = one_sequence(spec(), q, k);
      if (++turn % 2 == 0) s = causal(s);
      if (turn % 3 == 0) s.q_amplitude = 30.0F;
      if (turn % 4 < 2) s.o_dtype = s.dtype;
      expect_oracle_bytes_on_device(s);
    }
  }
}

TEST_P(FmhaSm80Dims, ChunksAndTheirChain) {
  for (const int64_t k : {2047, 2048, 2049, 4097, 8000}) {
    FmhaSpec s = one_sequence(causal(spec()), 5, k);
    s.q_amplitude = k % 2 == 0 ? 1.0F : 20.0F;
    s.unnormalized = k > 2000;
    expect_oracle_bytes_on_device(s);
  }
}

constexpr std::tuple<int32_t, int32_t> kDims[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}, {40, 72}, {131, 35}};

std::string dims_name(const testing::TestParamInfo<FmhaSm80Dims::ParamType>& info) {
  const auto& [dtype, dims] = info.param;
  return std::string(dtype == TESSERA_BF16 ? "bf16" : "f16") + "_d" + std::to_string(std::get<0>(dims)) + "_" +
         std::to_string(std::get<1>(dims));
}

INSTANTIATE_TEST_SUITE_P(Library, FmhaSm80Dims,
                         testing::Combine(testing::Values(TESSERA_BF16, TESSERA_F16), testing::ValuesIn(kDims)),
                         dims_name);

TEST_F(FmhaSm80, SuperchunksAndTheirChain) {
  for (const int64_t k : {32768, 32769, 33 * 2048 + 7}) {
    FmhaSpec s = one_sequence(causal(plain(TESSERA_BF16, 64, 64)), 3, k);
    s.q_amplitude = k % 2 == 0 ? 1.0F : 8.0F;
    expect_oracle_bytes_on_device(s);
    s.unnormalized = true;
    expect_oracle_bytes_on_device(s);
  }
}

TEST_F(FmhaSm80, MaximaThatRiseALittleAreKept) {
  // Scores whose maxima differ by a few octaves from granule to granule: the lazy threshold of R3 decides.
  for (const float amplitude : {3.0F, 5.0F, 8.0F, 12.0F}) {
    FmhaSpec s = one_sequence(plain(TESSERA_BF16, 64, 64), 60, 1000);
    s.q_amplitude = amplitude;
    s.unnormalized = true;
    expect_oracle_bytes_on_device(s);
  }
}

TEST_F(FmhaSm80, WholePrefillsWithSeveralTilesPerBlock) {
  for (const auto& [dim, dtype] : {std::pair{64, TESSERA_BF16}, {128, TESSERA_F16}}) {
    FmhaSpec s = causal(plain(dtype, dim, dim));
    s.q_lengths = {700, 1100};
    s.segments[0].lengths = {1500, 1100};
    const FmhaProblem problem(s);
    const FmhaOutputs expected = run_hopper_oracle(problem);
    DeviceProblem device(problem);
    const sm80::Entry* entry = sm80::find_entry(device.params());
    ASSERT_NE(entry, nullptr);
    for (const int multiprocessors : {1, 3, 132}) {
      EXPECT_EQ(first_difference(problem, expected, run_entry(*entry, problem, multiprocessors)), "")
          << multiprocessors;
    }
  }
}

TEST_F(FmhaSm80, WindowsAndPositions) {
  for (const int64_t left : {0, 1, 100, 1500}) {
    for (const int64_t right : {-1, 0, 30}) {
      FmhaSpec s = one_sequence(plain(TESSERA_BF16, 64, 64), 70, 2600);
      s.segments[0].window_left = left;
      s.segments[0].window_right = right;
      s.segments[0].causal = right < 0 ? 1 : 0;
      s.segments[0].poison_masked = true;
      s.segments[0].q_positions = {left == 100 ? -20 : 2500};
      expect_oracle_bytes_on_device(s);
    }
  }
}

TEST_F(FmhaSm80, CompressedKeys) {
  for (const int32_t ratio : {1, 4, 128}) {
    FmhaSpec s = one_sequence(plain(TESSERA_F16, 128, 128), 40, 900);
    s.segments[0].compress_ratio = ratio;
    s.segments[0].q_positions = {ratio * 3 - 10};
    s.segments[0].poison_masked = true;
    expect_oracle_bytes_on_device(s);
  }
}

TEST_F(FmhaSm80, CustomBitsHideNanRows) {
  for (const int32_t dim : {64, 256}) {
    for (const int density : {0, 1, 6}) {
      // With few rows many keys are hidden from all of them.
      FmhaSpec s = one_sequence(plain(TESSERA_BF16, dim, dim), density == 6 ? 1 : 3, 1300);
      s.heads_q = 4;
      s.heads_kv = 2;
      s.segments[0].mask = true;
      s.segments[0].mask_per_head = density == 1;
      s.segments[0].mask_keys = density == 6 ? 77 : -1;
      s.segments[0].mask_visible_of_8 = density;
      s.segments[0].poison_masked = true;
      expect_oracle_bytes_on_device(s);
    }
  }
}

TEST_F(FmhaSm80, PagesOfAnySizeAndOrder) {
  for (const int32_t page_size : {1, 3, 16, 64, 100, 2000}) {
    FmhaSpec s = causal(plain(TESSERA_BF16, 128, 128));
    s.q_lengths = {1, 4, 33};
    s.heads_q = 8;
    s.segments[0].lengths = {1111, 7, 260};
    s.segments[0].layout = KvLayout::kPaged;
    s.segments[0].page_size = page_size;
    s.segments[0].page_seed = static_cast<uint64_t>(page_size);
    s.segments[0].unlisted_pages = true;
    s.segments[0].poison_masked = true;
    s.segments[0].head_major = page_size % 2 == 0;
    expect_oracle_bytes_on_device(s);
  }
}

TEST_F(FmhaSm80, ScoreModifiers) {
  for (const float cap : {0.0F, 1.0F, 30.0F}) {
    for (const bool alibi : {false, true}) {
      FmhaSpec s = one_sequence(causal(plain(TESSERA_F16, 64, 64)), 20, 700);
      s.softcap = cap;
      s.alibi = alibi;
      s.q_amplitude = 20.0F;
      expect_oracle_bytes_on_device(s);
    }
  }
}

TEST_F(FmhaSm80, SinksStatesAndWideOutput) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  FmhaSpec s = one_sequence(causal(plain(TESSERA_BF16, 128, 128)), 6, 4);  // the first two rows see nothing
  s.heads_q = 6;
  s.sinks = {-kInf, kInf, 0.0F, 2.5F, 80.0F, -50.0F};
  expect_oracle_bytes_on_device(s);
  s.o_dtype = s.dtype;
  expect_oracle_bytes_on_device(s);
  s.o_dtype = TESSERA_F32;
  s.sinks.clear();
  s.unnormalized = true;
  expect_oracle_bytes_on_device(s);
}

TEST_F(FmhaSm80, SegmentsInTheirOrder) {
  FmhaSpec s = plain(TESSERA_F16, 128, 64);
  s.q_lengths = {3, 1, 0};
  s.segments[0].lengths = {4200, 0, 5};
  for (const auto layout : {KvLayout::kPaged, KvLayout::kPacked, KvLayout::kBatched}) {
    SegmentSpec segment;
    segment.lengths = {100, 1030, 1};
    segment.layout = layout;
    s.segments.push_back(segment);
  }
  s.segments[3].lengths = {0, 0, 9};
  expect_oracle_bytes_on_device(s);
}

TEST_F(FmhaSm80, ManySequences) {
  FmhaSpec s = plain(TESSERA_BF16, 16, 16);
  s.heads_q = s.heads_kv = 1;
  s.q_lengths.assign(70000, 1);
  s.segments[0].lengths.assign(70000, 3);
  s.segments[0].layout = KvLayout::kPacked;
  s.packed_q = true;
  expect_oracle_bytes_on_device(s);
}

TEST_F(FmhaSm80, NothingToDo) {
  FmhaSpec s = plain(TESSERA_BF16, 64, 64);
  s.q_lengths = {0, 0};
  s.segments[0].lengths = {5, 0};
  expect_oracle_bytes_on_device(s);
  s.q_lengths = {2, 3};
  s.segments[0].lengths = {0, 0};
  expect_oracle_bytes_on_device(s);
}

// 60 groups of 6 mixes, so that a failure names a small range of seeds.
class FmhaSm80Mixes : public FmhaSm80, public testing::WithParamInterface<int> {};

TEST_P(FmhaSm80Mixes, EqualTheOracle) {
  for (int i = 0; i < 6; ++i) {
    const uint64_t seed = 5000 + static_cast<uint64_t>(GetParam()) * 6 + static_cast<uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_oracle_bytes_on_device(draw_device_spec(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FmhaSm80Mixes, testing::Range(0, 60));

// Every array ends where mapped memory ends: one byte too many is a fault of the device, and every later test fails.
TEST_F(FmhaSm80, NothingIsReadOrWrittenBehindAnArray) {
  for (uint64_t seed = 9000; seed < 9060; ++seed) {
    const FmhaProblem problem(draw_device_spec(seed));
    EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), run_device(problem, Memory::kEdge)), "")
        << "seed " << seed;
    if (HasFailure()) {
      return;
    }
  }
}

// ---------------------------------------------------------------- what the bytes must not depend on

TEST_F(FmhaSm80, EveryScheduleGivesTheSameBytes) {
  for (const Variant& variant : variants()) {
    const sm80::Numbers& numbers = variant.entry.numbers;
    FmhaSpec s = causal(plain(numbers.bf16 ? TESSERA_BF16 : TESSERA_F16, numbers.head_dim_qk, numbers.head_dim_v));
    s.q_lengths = {260, 1, 77};
    s.segments[0].lengths = {2200, 1030, 77};
    for (const bool paged : {false, true}) {
      s.segments[0].layout = paged ? KvLayout::kPaged : KvLayout::kBatched;
      s.segments[0].mask = paged;
      s.segments[0].poison_masked = true;
      s.softcap = paged ? 20.0F : 0.0F;
      const FmhaProblem problem(s);
      const FmhaOutputs library = run_device(problem);
      for (const int multiprocessors : {2, 132}) {
        EXPECT_EQ(first_difference(problem, library, run_entry(variant.entry, problem, multiprocessors)), "")
            << variant.name << " paged " << paged;
      }
    }
  }
}

// The schedules that differ in stages, parts of granules, query tiles and who copies, at the ends of all of these.
void expect_oracle_bytes_of_staged_variants(const FmhaSpec& spec) {
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_hopper_oracle(problem);
  for (const Variant& variant : staged_variants()) {
    EXPECT_EQ(first_difference(problem, expected, run_entry(variant.entry, problem, 132)), "") << variant.name << "\n"
                                                                                               << to_text(spec);
  }
}

TEST_F(FmhaSm80, StagesAndQueryTilesDoNotMoveABit) {
  int64_t turn = 0;
  for (const int64_t k : {1, 31, 33, 63, 64, 65, 96, 127, 128, 129, 191, 193, 256, 300, 2047, 2048, 2049, 4200}) {
    FmhaSpec s = one_sequence(plain(TESSERA_F16, 128, 128), std::array{1, 24, 25, 33, 65}[++turn % 5], k);
    s.segments[0].causal = turn % 2 == 0 ? 1 : 0;
    s.q_amplitude = turn % 3 == 0 ? 25.0F : 1.0F;
    s.segments[0].poison_masked = true;
    expect_oracle_bytes_of_staged_variants(s);
  }
}

TEST_F(FmhaSm80, StagesAndQueryTilesDoNotMoveABitOfWindowsPagesAndSegments) {
  FmhaSpec s = one_sequence(causal(plain(TESSERA_F16, 128, 128)), 150, 2500);
  s.segments[0].poison_masked = true;
  for (const int64_t left : {0, 40, 64, 200}) {
    s.segments[0].window_left = left;
    expect_oracle_bytes_of_staged_variants(s);
  }
  s.segments[0].window_left = -1;
  s.segments[0].layout = KvLayout::kPaged;
  s.segments[0].page_size = 24;
  expect_oracle_bytes_of_staged_variants(s);
  s.segments[0].mask = true;
  expect_oracle_bytes_of_staged_variants(s);
  s.segments.emplace_back();
  s.segments[1].lengths = {333};
  s.row_padding = 3;  // the element-wise path
  expect_oracle_bytes_of_staged_variants(s);
}

TEST_F(FmhaSm80, StagesAndQueryTilesDoNotMoveABitWhileTheDeviceIsFull) {
  FmhaSpec s = causal(plain(TESSERA_F16, 128, 128));
  s.heads_q = 8;
  s.heads_kv = 2;
  s.q_lengths = {1100, 300, 777};
  s.segments[0].lengths = {1500, 300, 777};
  const FmhaProblem problem(s);
  const FmhaOutputs library = run_device(problem);  // whose bytes are the oracle's in the tests above
  const auto expect_bytes = [&](std::span<const Variant> schedules) {
    for (const Variant& variant : schedules) {
      if (!variant.name.ends_with("_lost")) {
        EXPECT_EQ(first_difference(problem, library, run_entry(variant.entry, problem, 132)), "") << variant.name;
      }
    }
  };
  expect_bytes(staged_variants());
  expect_bytes(faulty_variants());  // those that are poisoned only
}

// Two blocks go through all query tiles: what is staged, page bytes, custom bits and mbarriers carry on from tile to
// tile and from segment to segment, some of which are empty for some tiles.
TEST_F(FmhaSm80, BlocksGoOnFromTileToTileAndSegmentToSegment) {
  for (const tessera_dtype dtype : {TESSERA_F16, TESSERA_BF16}) {
    FmhaSpec s = causal(plain(dtype, 128, 128));
    s.heads_q = 4;
    s.heads_kv = 2;
    s.q_lengths = {75, 1, 40};
    s.segments[0].lengths = {300, 0, 129};
    s.segments[0].window_left = 40;
    SegmentSpec paged;
    paged.lengths = {260, 131, 7};
    paged.layout = KvLayout::kPaged;
    paged.page_size = 24;
    s.segments.push_back(paged);
    SegmentSpec masked;
    masked.lengths = {70, 3, 128};
    masked.mask = true;
    s.segments.push_back(masked);
    for (SegmentSpec& segment : s.segments) {
      segment.poison_masked = true;
    }
    const FmhaProblem problem(s);
    const FmhaOutputs expected = run_hopper_oracle(problem);
    DeviceProblem device(problem);
    const sm80::Entry* entry = sm80::find_entry(device.params());
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(first_difference(problem, expected, run_entry(*entry, problem, 1)), "") << "library";
    if (dtype == TESSERA_F16) {  // of the variants
      for (const Variant& variant : staged_variants()) {
        EXPECT_EQ(first_difference(problem, expected, run_entry(variant.entry, problem, 1)), "") << variant.name;
      }
    }
  }
}

TEST_F(FmhaSm80, AStageIsNotReadBeforeItIsFilledNorAfterItIsGiven) {
  for (const int64_t k : {64, 129, 700, 2300}) {
    FmhaSpec s = one_sequence(causal(plain(TESSERA_F16, 128, 128)), 50, k);
    const FmhaProblem problem(s);
    const FmhaOutputs expected = run_hopper_oracle(problem);
    for (const Variant& variant : faulty_variants()) {
      const bool lost = variant.name.ends_with("_lost") && k > 128;  // it loses the second tile
      if (variant.name.ends_with("_lost") && !lost) {
        continue;
      }
      const std::string difference = first_difference(problem, expected, run_entry(variant.entry, problem, 132));
      EXPECT_EQ(difference != "", lost) << variant.name << " k " << k << " " << difference;
    }
  }
}

TEST_F(FmhaSm80, BatchLayoutAndPackingDoNotMoveABit) {
  FmhaSpec alone = one_sequence(causal(plain(TESSERA_F16, 128, 128)), 17, 1500);
  alone.heads_q = 4;
  alone.ids = {7};
  const FmhaProblem single(alone);
  const FmhaOutputs expected = run_device(single);
  FmhaSpec crowd = alone;
  crowd.q_lengths = {3, 17, 40};
  crowd.segments[0].lengths = {900, 1500, 40};
  crowd.ids = {1, 7, 2};
  for (const auto layout : {KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged}) {
    crowd.segments[0].layout = layout;
    crowd.packed_q = layout == KvLayout::kPacked;
    crowd.row_padding = layout == KvLayout::kPaged ? 3 : 0;  // the element-wise path
    const FmhaProblem problem(crowd);
    const FmhaOutputs out = run_device(problem);
    for (int64_t i = 0; i < 17; ++i) {
      for (int64_t h = 0; h < 4; ++h) {
        EXPECT_TRUE(single.row(expected, 0, i, h) == problem.row(out, 1, i, h)) << i << " " << h;
      }
    }
  }
}

TEST_F(FmhaSm80, RunsInACapturedGraph) {
  FmhaSpec s = one_sequence(causal(plain(TESSERA_BF16, 64, 64)), 100, 1400);
  const FmhaProblem problem(s);
  DeviceProblem device(problem);
  const DeviceBytes workspace(fmha_sm80_workspace_bytes(device.params()));
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status status = run_fmha_sm80(device.params(), workspace.data(), {nullptr, stream});
  EXPECT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), device.outputs()), "");
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// ---------------------------------------------------------------- device values out of range

TEST_F(FmhaSm80, PagesThatThePoolDoesNotHaveAreAbsentKeys) {
  FmhaSpec s = one_sequence(plain(TESSERA_BF16, 64, 64), 4, 40);
  s.segments[0].layout = KvLayout::kPaged;
  s.segments[0].page_size = 8;
  const FmhaProblem problem(s);
  DeviceProblem device(problem);
  std::vector<int32_t> table(5);
  ASSERT_EQ(cudaMemcpy(table.data(), device.params().segments[0].page_table, 20, cudaMemcpyDeviceToHost), cudaSuccess);
  table[1] = -5;
  table[3] = static_cast<int32_t>(device.params().segments[0].num_pages);
  device.params().segments[0].page_table = device.put(table);
  ASSERT_TRUE(run_fmha_sm80(device.params(), nullptr, {}).ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  // The same keys hidden by custom bits.
  DeviceProblem with_bits(problem);
  with_bits.params().segments[0].mask = {with_bits.put<uint8_t>({0xff, 0x00, 0xff, 0x00, 0xff}), 0, 0, 0, -1};
  ASSERT_TRUE(run_fmha_sm80(with_bits.params(), nullptr, {}).ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(first_difference(problem, with_bits.outputs(), device.outputs()), "");
}

TEST_F(FmhaSm80, LengthsOutOfRangeReadNothingOutside) {
  FmhaSpec s = plain(TESSERA_F16, 64, 64);
  s.q_lengths = {4, 4, 4};
  s.segments[0].lengths = {50, 60, 60};
  const FmhaProblem problem(s);
  const FmhaOutputs expected = run_device(problem);
  DeviceProblem device(problem);
  device.params().segments[0].seqlens_k = device.put<int32_t>({50, 1000, -7});  // 60 and 0
  device.params().seqlens_q = device.put<int32_t>({4, 1 << 30, 4});
  ASSERT_TRUE(run_fmha_sm80(device.params(), nullptr, {}).ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const FmhaOutputs out = device.outputs();
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(problem.row(expected, 0, i, 0) == problem.row(out, 0, i, 0)) << i;
    EXPECT_TRUE(problem.row(expected, 1, i, 1) == problem.row(out, 1, i, 1)) << i;
    EXPECT_EQ(problem.row(out, 2, i, 0).o, std::vector<uint8_t>(64 * sizeof(float), 0)) << i;
  }
}

TEST_F(FmhaSm80, RefusesWhatItDoesNotCover) {
  const FmhaProblem problem(one_sequence(plain(TESSERA_BF16, 64, 64), 1, 1));
  FmhaOutputs out = problem.make_outputs();
  tessera_fmha_params params = problem.params(&out);
  params.dtype = params.o_dtype = TESSERA_F32;
  EXPECT_EQ(run_fmha_sm80(params, nullptr, {}).code(), Code::kUnsupported);
  params = problem.params(&out);
  params.head_dim_qk = 257;
  EXPECT_EQ(run_fmha_sm80(params, nullptr, {}).code(), Code::kUnsupported);
  params = problem.params(&out);
  params.segments[0].k.stride_dim = 2;
  EXPECT_EQ(run_fmha_sm80(params, nullptr, {}).code(), Code::kUnsupported);
}

}  // namespace
}  // namespace tessera::test
