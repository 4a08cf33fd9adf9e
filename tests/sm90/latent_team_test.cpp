// Decode with one K/V head whose V is the first 512 dims of K's rows, by clusters that take units at once: which kernel
// the registry takes, and its bytes against the oracle, through the public interface. Needs an sm_90 GPU.
#include <string>
#include <vector>

#include "sm90/mqa_512_case.h"

namespace tessera::test {
namespace {

class LatentTeam : public Mqa512Case {
 protected:
  // What is said of the kernel that a call takes.
  static std::string explain(const DeviceProblem& device) {
    char text[1 << 14];
    tessera_error error{};
    EXPECT_EQ(tessera_fmha_explain(&device.params, text, sizeof(text), nullptr, &error), TESSERA_OK) << error.text;
    return text;
  }
  // A cluster takes each unit of `rows` rows, and the bytes are the oracle's.
  static void expect_team(const FmhaSpec& spec, int rows) {
    SCOPED_TRACE(to_text(spec));
    const FmhaProblem problem(spec);
    DeviceProblem device(problem, {.keep_lengths = spec.q_lengths.size() % 2 == 0});
    const std::string text = explain(device);
    EXPECT_NE(text.find("_r" + std::to_string(rows) + "_team\n"), std::string::npos) << text;
    FmhaOutputs out;
    ASSERT_EQ(run_on(device, nullptr, &out), "");
    EXPECT_EQ(first_difference(problem, by_oracle(problem, {}), out), "");
  }
  // The same on pages.
  static void expect_team_on_pages(FmhaSpec spec, int rows) {
    expect_team(spec, rows);
    for (const int32_t page : {1, 64}) {
      spec.segments[0].layout = KvLayout::kPaged;
      spec.segments[0].page_size = page;
      spec.segments[0].unlisted_pages = page == 64;
      expect_team(spec, rows);
    }
  }
};

TEST_P(LatentTeam, OneGranule) {
  for (const int64_t keys : {1, 63, 64, 65, 200}) {
    expect_team_on_pages(mqa(16, 1, {keys}), 16);
  }
}

TEST_P(LatentTeam, AnyNumberOfHeads) {
  for (const int32_t heads : {1, 8, 9, 24, 64, 96, 128}) {
    expect_team(mqa(heads, 1, {1000}), heads <= 8 ? 8 : 16);
  }
}

TEST_P(LatentTeam, LengthsAroundEndsOfChunks) {
  for (const int64_t keys : {2047, 2048, 2049, 4096, 4097, 6100}) {
    expect_team_on_pages(mqa(64, 1, {keys}), 16);
  }
  expect_team_on_pages(mqa(128, 1, {4096}), 32);
  expect_team(mqa(128, 1, {6100}), 32);
}

TEST_P(LatentTeam, Batches) {
  expect_team(mqa(64, 1, {0, 1500, 70}), 16);
  expect_team(mqa(64, 1, {2048, 3}), 16);
  expect_team(mqa(128, 1, {1000, 0, 2048}), 32);
  expect_team(mqa(8, 1, {4000, 17, 0, 2049, 64, 65, 66}), 8);
}

// An H200 works on 15 clusters of 16 or 32 rows at a time.
TEST_P(LatentTeam, MoreUnitsThanRunAtATime) {
  expect_team(mqa(16, 1, {33000}), 16);
  expect_team(mqa(128, 1, {4000, 4097}), 32);
}

TEST_P(LatentTeam, SeveralTokensAndWindows) {
  FmhaSpec spec = mqa(16, 5, {2300});
  expect_team_on_pages(spec, 16);
  spec.segments[0].window_left = 100;
  expect_team_on_pages(spec, 16);
  spec = mqa(64, 3, {4100});
  spec.segments[0].window_left = 2000;
  expect_team(spec, 32);
}

TEST_P(LatentTeam, MovingMaxima) {
  for (const float amplitude : {0.0F, 1e-3F, 20.0F, 200.0F}) {
    for (const int32_t heads : {8, 64, 128}) {
      FmhaSpec spec = mqa(heads, 1, {4090});
      spec.q_amplitude = amplitude;
      expect_team(spec, heads == 8 ? 8 : heads == 64 ? 16 : 32);
    }
  }
}

TEST_P(LatentTeam, SinksStatesAndWideOutput) {
  FmhaSpec spec = mqa(64, 1, {0, 3000});
  for (int32_t head = 0; head < 64; ++head) {
    spec.sinks.push_back(0.25F * static_cast<float>(head % 9) - 1.0F);
  }
  expect_team(spec, 32);
  spec.o_dtype = TESSERA_F32;
  expect_team(spec, 32);
  spec.sinks.clear();
  spec.unnormalized = true;
  expect_team(spec, 32);
}

TEST_P(LatentTeam, MoreUnitsThanClustersAreForOthers) {
  const FmhaProblem problem(mqa(128, 1, {16384}));
  DeviceProblem device(problem);
  EXPECT_EQ(explain(device).find("_team\n"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LatentTeam,
                         testing::Values(Kind{TESSERA_BF16, 512}, Kind{TESSERA_F16, 512}, Kind{TESSERA_BF16, 576},
                                         Kind{TESSERA_F16, 576}),
                         kind_name);

}  // namespace
}  // namespace tessera::test
