#include "engine/sampler/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "engine/sampler/philox.h"

namespace tessera {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The tokens that come up over many positions.
std::set<std::int32_t> support(const std::vector<float>& logits, const SamplerParams& params) {
  std::set<std::int32_t> seen;
  for (std::uint64_t position = 0; position < 4000; ++position) {
    seen.insert(tessera::sample(logits, params, 1, 0, position).value());
  }
  return seen;
}

using Set = std::set<std::int32_t>;

TEST(Greedy, TakesTheHighestLogitAndTheLowestIdOfEqualOnes) {
  EXPECT_EQ(tessera::sample(std::vector<float>{1, 3, 2}, {}, 0, 0, 0).value(), 1);
  EXPECT_EQ(tessera::sample(std::vector<float>{1, 3, 3, 3}, {}, 0, 0, 0).value(), 1);
  EXPECT_EQ(tessera::sample(std::vector<float>{-0.0f, 0.0f}, {}, 0, 0, 0).value(), 0);
  EXPECT_EQ(tessera::sample(std::vector<float>{-kInf, -5}, {}, 0, 0, 0).value(), 1);
  EXPECT_EQ(tessera::sample(std::vector<float>{7}, {}, 0, 0, 0).value(), 0);
}

TEST(Greedy, DependsOnNoSeed) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(tessera::sample(std::vector<float>{1, 3, 2}, {.top_k = 2, .top_p = 0.5f, .min_p = 0.1f}, i, i, i).value(),
              1);
  }
}

TEST(TopK, KeepsTheBestAndTheLowestIdsOfEqualOnes) {
  const std::vector<float> logits = {0, 1, 1, 1, 0, 2};
  EXPECT_EQ(support(logits, {.temperature = 1, .top_k = 1}), (Set{5}));
  EXPECT_EQ(support(logits, {.temperature = 1, .top_k = 3}), (Set{1, 2, 5}));
  EXPECT_EQ(support({1, 1, 1, 1}, {.temperature = 1, .top_k = 2}), (Set{0, 1}));
  EXPECT_EQ(support(logits, {.temperature = 1, .top_k = 6}), (Set{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(support(logits, {.temperature = 1, .top_k = 1000}), (Set{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(support(logits, {.temperature = 1, .top_k = 0}), (Set{0, 1, 2, 3, 4, 5}));
}

TEST(TopP, KeepsTheShortestListThatHoldsTheShare) {
  // Probabilities 1/2, 1/4, 1/8, 1/8 (exact up to the rounding of ln 2).
  const float ln2 = 0.69314718f;
  const std::vector<float> logits = {2 * ln2, 3 * ln2, ln2, ln2};
  EXPECT_EQ(support(logits, {.temperature = 1, .top_p = 0.4f}), (Set{1}));
  EXPECT_EQ(support(logits, {.temperature = 1, .top_p = 0.6f}), (Set{0, 1}));
  EXPECT_EQ(support(logits, {.temperature = 1, .top_p = 0.8f}), (Set{0, 1, 2}));  // the lowest id of the equal ones
  EXPECT_EQ(support(logits, {.temperature = 1, .top_p = 0.9f}), (Set{0, 1, 2, 3}));
  EXPECT_EQ(support(logits, {.temperature = 1, .top_p = 1e-30f}), (Set{1}));
}

TEST(MinP, KeepsTokensAtAShareOfTheBest) {
  const float ln2 = 0.69314718f;
  const std::vector<float> logits = {0, ln2, 2 * ln2, 3 * ln2};
  EXPECT_EQ(support(logits, {.temperature = 1, .min_p = 0.4f}), (Set{2, 3}));
  EXPECT_EQ(support(logits, {.temperature = 1, .min_p = 0.6f}), (Set{3}));
  EXPECT_EQ(support(logits, {.temperature = 1, .min_p = 1.0f}), (Set{3}));
  EXPECT_EQ(support(logits, {.temperature = 1, .min_p = 0.1f}), (Set{0, 1, 2, 3}));
}

TEST(Order, TopPCountsSharesOfWhatTopKLeft) {
  // Equal logits: of the 4 that top_k keeps, half the mass is 2 tokens; of all 8 it would be 4.
  const std::vector<float> logits(8, 0.0f);
  EXPECT_EQ(support(logits, {.temperature = 1, .top_k = 4, .top_p = 0.5f}), (Set{0, 1}));
}

TEST(Order, TemperatureComesBeforeMinP) {
  const std::vector<float> logits = {0, 1};
  EXPECT_EQ(support(logits, {.temperature = 1, .min_p = 0.5f}), (Set{1}));     // e^-1 < 0.5
  EXPECT_EQ(support(logits, {.temperature = 2, .min_p = 0.5f}), (Set{0, 1}));  // e^-0.5 > 0.5
}

TEST(Sample, ImpossibleTokensNeverComeUp) {
  EXPECT_EQ(support({-kInf, 0, -kInf, 0, -kInf}, {.temperature = 100}), (Set{1, 3}));
}

TEST(Sample, ExtremeTemperaturesAndLogitsStayDefined) {
  const std::vector<float> logits = {3.4e38f, -3.4e38f, 3.3e38f};
  EXPECT_EQ(support(logits, {.temperature = 1e-45f}), (Set{0}));
  EXPECT_EQ(support(logits, {.temperature = 1.0f}), (Set{0}));
  EXPECT_EQ(support(logits, {.temperature = 3.4e38f}), (Set{0, 1, 2}));
}

TEST(Sample, IsTheInverseOfTheCumulativeDistributionInIdOrder) {
  const std::vector<float> logits(10, 0.0f);
  for (std::uint64_t position = 0; position < 1000; ++position) {
    const double u = philox_uniform(9, 8, position);
    EXPECT_EQ(tessera::sample(logits, {.temperature = 1}, 9, 8, position).value(), static_cast<std::int32_t>(u * 10));
  }
}

// The same tokens whatever was sampled before, with a fresh, a reused or no workspace.
TEST(Sample, HasNoMemory) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>((i * 7919) % 1000) * 0.01f;
  }
  const std::vector<float> other(5000, 1.0f);
  const SamplerParams params = {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f};
  const auto token = [&](std::uint64_t sequence, std::uint64_t position, SamplerWorkspace* work) {
    return tessera::sample(logits, params, 5, sequence, position, work).value();
  };
  std::vector<std::int32_t> forward;
  for (std::uint64_t i = 0; i < 200; ++i) {
    forward.push_back(token(i % 4, i, nullptr));
  }
  SamplerWorkspace work;
  for (std::uint64_t i = 200; i-- > 0;) {
    ASSERT_TRUE(tessera::sample(other, {.temperature = 2, .top_p = 0.5f}, i, i, i, &work).ok());
    EXPECT_EQ(token(i % 4, i, &work), forward[i]) << i;
  }
  EXPECT_GT(Set(forward.begin(), forward.end()).size(), 5u);
}

TEST(Sample, SequencesDrawIndependently) {
  const std::vector<float> logits(100, 0.0f);
  int equal = 0;
  for (std::uint64_t position = 0; position < 1000; ++position) {
    equal += tessera::sample(logits, {.temperature = 1}, 5, 0, position).value() ==
             tessera::sample(logits, {.temperature = 1}, 5, 1, position).value();
  }
  EXPECT_LT(equal, 30);  // 10 expected
}

// Tokens of a fixed case: any change of order, arithmetic or random numbers shows here.
TEST(Sample, TokensArePinned) {
  std::vector<float> logits(50000);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(philox_uniform(1, 2, i) * 20.0 - 10.0);
  }
  const auto tokens = [&](const SamplerParams& params) {
    std::vector<std::int32_t> out;
    for (std::uint64_t position = 0; position < 6; ++position) {
      out.push_back(tessera::sample(logits, params, 2024, 3, position).value());
    }
    return out;
  };
  using Tokens = std::vector<std::int32_t>;
  EXPECT_EQ(tokens({.temperature = 1}), (Tokens{36940, 48709, 10698, 49200, 9894, 34210}));
  EXPECT_EQ(tokens({.temperature = 0.5f, .top_k = 100}), (Tokens{36315, 48433, 8162, 48905, 8119, 30324}));
  EXPECT_EQ(tokens({.temperature = 0.7f, .top_k = 5000, .top_p = 0.9f, .min_p = 0.05f}),
            (Tokens{36929, 48803, 10350, 49280, 9738, 34096}));
}

std::string refused(const std::vector<float>& logits, const SamplerParams& params) {
  const Status status = tessera::sample(logits, params, 0, 0, 0).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.text();
  return status.text();
}

TEST(Validation, ParametersOutOfRangeAreNamed) {
  const std::vector<float> logits = {0, 1};
  const std::pair<SamplerParams, const char*> cases[] = {
      {{.temperature = -1}, "temperature: got -1"},      {{.temperature = kNan}, "temperature: got nan"},
      {{.temperature = kInf}, "temperature: got inf"},   {{.temperature = 1, .top_k = -1}, "top_k: got -1"},
      {{.temperature = 1, .top_p = 0}, "top_p: got 0"},  {{.temperature = 1, .top_p = 1.01f}, "top_p: got 1.01"},
      {{.temperature = 1, .top_p = kNan}, "top_p: got"}, {{.temperature = 1, .min_p = -0.1f}, "min_p: got -0.1"},
      {{.temperature = 1, .min_p = 2}, "min_p: got 2"},  {{.temperature = 1, .min_p = kNan}, "min_p: got"},
      {{.temperature = 0, .top_p = -1}, "top_p: got"},
  };
  for (const auto& [params, part] : cases) {
    EXPECT_NE(refused(logits, params).find(part), std::string::npos) << part;
    EXPECT_FALSE(check_sampler_params(params).ok());
  }
  EXPECT_TRUE(check_sampler_params({.temperature = 0.7f, .top_k = 40, .top_p = 1, .min_p = 0}).ok());
}

TEST(Validation, UnusableLogitsAreNamed) {
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplerParams params = {.temperature = temperature};
    EXPECT_NE(refused({0, 1, kNan, 2}, params).find("logits[2]: got nan"), std::string::npos);
    EXPECT_NE(refused({kNan}, params).find("logits[0]"), std::string::npos);
    EXPECT_NE(refused({0, kInf}, params).find("logits[1]: got inf"), std::string::npos);
    EXPECT_NE(refused({-kInf, -kInf}, params).find("all -inf"), std::string::npos);
    EXPECT_NE(refused({}, params).find("got 0 values"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
