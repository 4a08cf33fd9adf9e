// The statistics behind verdicts. Pure functions: the same input, the same number, on every machine with IEEE doubles
// and the same C library.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct Interval {
  double low = 0;
  double high = 0;
};

// 0 <= q <= 1, linear between the neighbours in sorted order; NaN of an empty list.
double quantile(std::vector<double> values, double q);
inline double median(std::vector<double> values) {
  return quantile(std::move(values), 0.5);
}

// Percentile bootstrap of the median: `resamples` lists drawn with replacement, the central share `level` of their
// medians. Random numbers come from `seed` alone. (Efron, Tibshirani, An Introduction to the Bootstrap, chapter 13.)
Interval bootstrap_median(std::span<const double> values, double level, int32_t resamples, uint64_t seed);

// P(K >= k) for K ~ Poisson(lambda): 1 for k = 0; 0 for lambda = 0 and k > 0.
double poisson_upper_tail(int64_t k, double lambda);

// P(K >= k) for K ~ Binomial(n, p).
double binomial_upper_tail(int64_t k, int64_t n, double p);

// Wilson's score interval of a share, k of n; {0, 1} for n = 0.
Interval wilson(int64_t k, int64_t n, double z = 1.959964);

}  // namespace tessera
