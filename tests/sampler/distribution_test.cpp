// The tokens follow the distribution that the parameters describe: chi-square tests with fixed seeds.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/sampler/sampler.h"

namespace tessera {
namespace {

// Chi-square of `draws` samples against probabilities; categories with probability 0 must not occur.
double chi_square(const std::vector<float>& logits, const SamplerParams& params,
                  const std::vector<double>& probabilities, int draws) {
  std::vector<int> counts(logits.size());
  for (int i = 0; i < draws; ++i) {
    const std::uint64_t n = static_cast<std::uint64_t>(i);
    ++counts[tessera::sample(logits, params, 20240229, n % 16, n / 16).value()];
  }
  double sum = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * draws;
    if (expected == 0.0) {
      EXPECT_EQ(counts[i], 0) << i;
    } else {
      sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
  }
  return sum;
}

// Softmax of logits / temperature over the tokens `keep` names (all when empty).
std::vector<double> softmax(const std::vector<float>& logits, double temperature, const std::vector<bool>& keep = {}) {
  std::vector<double> p(logits.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    p[i] = keep.empty() || keep[i] ? std::exp(logits[i] / temperature) : 0.0;
    sum += p[i];
  }
  for (double& value : p) {
    value /= sum;
  }
  return p;
}

// Probabilities at temperature 1: 0.26 0.05 0.08 0.42 0.03 0.16
const std::vector<float> kLogits = {0.5f, -1.2f, -0.7f, 1.0f, -1.6f, 0.0f};

// Bounds are 0.999 quantiles of chi-square for (categories - 1) degrees of freedom.
TEST(Distribution, FollowsTheSoftmaxAtEachTemperature) {
  for (const float temperature : {0.5f, 1.0f, 1.7f}) {
    EXPECT_LT(chi_square(kLogits, {.temperature = temperature}, softmax(kLogits, temperature), 60000), 20.5)
        << temperature;
  }
}

TEST(Distribution, AWrongTemperatureIsDetected) {
  EXPECT_GT(chi_square(kLogits, {.temperature = 1.1f}, softmax(kLogits, 1.0), 60000), 100.0);
}

TEST(Distribution, TruncationRenormalizesWhatIsLeft) {
  const std::vector<bool> best3 = {true, false, false, true, false, true};
  EXPECT_LT(chi_square(kLogits, {.temperature = 1, .top_k = 3}, softmax(kLogits, 1, best3), 60000), 13.9);
  EXPECT_LT(chi_square(kLogits, {.temperature = 1, .top_p = 0.8f}, softmax(kLogits, 1, best3), 60000), 13.9);
  EXPECT_LT(chi_square(kLogits, {.temperature = 1, .min_p = 0.3f}, softmax(kLogits, 1, best3), 60000), 13.9);
}

TEST(Distribution, HoldsOverALargeVocabulary) {
  std::vector<float> logits(300);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i % 10) * 0.2f;
  }
  EXPECT_LT(chi_square(logits, {.temperature = 0.9f}, softmax(logits, 0.9f), 60000), 380.3);
}

}  // namespace
}  // namespace tessera
