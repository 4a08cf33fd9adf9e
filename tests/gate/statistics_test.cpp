// Against numbers from tables and from sums written out.
#include "gate/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tessera {
namespace {

TEST(Statistics, QuantilesLieBetweenNeighbours) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(quantile({10, 20, 30, 40, 50}, 0), 10);
  EXPECT_EQ(quantile({10, 20, 30, 40, 50}, 1), 50);
  EXPECT_DOUBLE_EQ(quantile({10, 20, 30, 40, 50}, 0.9), 46);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Statistics, PoissonTailsAreThoseOfTheTables) {
  EXPECT_EQ(poisson_upper_tail(0, 3), 1);
  EXPECT_NEAR(poisson_upper_tail(1, 1), 1 - std::exp(-1.0), 1e-14);
  EXPECT_NEAR(poisson_upper_tail(3, 2), 1 - 5 * std::exp(-2.0), 1e-14);
  EXPECT_NEAR(poisson_upper_tail(10, 4), 0.0081322, 1e-7);
  EXPECT_NEAR(poisson_upper_tail(100, 100), 0.5132988, 1e-6);
  EXPECT_EQ(poisson_upper_tail(1, 0), 0);
  EXPECT_LT(poisson_upper_tail(50, 1), 1e-60);
}

TEST(Statistics, BinomialTailsAreSums) {
  EXPECT_NEAR(binomial_upper_tail(2, 3, 0.5), 0.5, 1e-14);
  EXPECT_NEAR(binomial_upper_tail(9, 10, 0.5), 11.0 / 1024, 1e-14);
  EXPECT_NEAR(binomial_upper_tail(1, 20, 0.05), 1 - std::pow(0.95, 20), 1e-13);
  EXPECT_EQ(binomial_upper_tail(0, 0, 0.5), 1);
  EXPECT_EQ(binomial_upper_tail(1, 5, 0), 0);
}

TEST(Statistics, WilsonsIntervalIsThatOfThePaper) {
  const Interval i = wilson(8, 10);
  EXPECT_NEAR(i.low, 0.4902, 5e-5);
  EXPECT_NEAR(i.high, 0.9433, 5e-5);
  EXPECT_GT(wilson(100, 100).low, 0.96);
  EXPECT_NEAR(wilson(100, 100).high, 1, 1e-12);
  EXPECT_EQ(wilson(0, 0).high, 1);
}

TEST(Statistics, TheBootstrapRepeatsForASeedAndCoversTheMedian) {
  std::vector<double> values;
  std::mt19937_64 random(7);
  for (int i = 0; i < 101; ++i) {
    values.push_back(static_cast<double>(random() % 1000000) * 1e-6);  // uniform in [0, 1)
  }
  const Interval a = bootstrap_median(values, 0.95, 2000, 1);
  const Interval b = bootstrap_median(values, 0.95, 2000, 1);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  EXPECT_LT(a.low, median(values));
  EXPECT_GT(a.high, median(values));
  // The median of n uniform numbers has a standard deviation of 1 / (2 sqrt(n + 2)) = 0.049: the interval is about 4.
  EXPECT_NEAR(a.high - a.low, 0.19, 0.09);
  const std::vector<double> one = {0.25, 0.25, 0.25};
  EXPECT_EQ(bootstrap_median(one, 0.95, 100, 1).low, 0.25);
  EXPECT_EQ(bootstrap_median(one, 0.95, 100, 1).high, 0.25);
  EXPECT_TRUE(std::isnan(bootstrap_median({}, 0.95, 100, 1).low));
}

}  // namespace
}  // namespace tessera
