#include "gate/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

namespace tessera {

double quantile(std::vector<double> values, double q) {
  if (values.empty()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

Interval bootstrap_median(std::span<const double> values, double level, int32_t resamples, uint64_t seed) {
  if (values.empty() || resamples < 1) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan};
  }
  std::mt19937_64 random(seed);
  std::vector<double> medians;
  std::vector<double> drawn(values.size());
  for (int32_t r = 0; r < resamples; ++r) {
    for (double& d : drawn) {
      d = values[random() % values.size()];  // the modulo's bias is below 2^-50: lists are short
    }
    medians.push_back(median(drawn));
  }
  const double tail = (1 - level) / 2;
  return {quantile(medians, tail), quantile(medians, 1 - tail)};
}

double poisson_upper_tail(int64_t k, double lambda) {
  if (k <= 0) {
    return 1;
  }
  if (!(lambda > 0)) {
    return 0;
  }
  double sum = 0;
  double term = std::exp(static_cast<double>(k) * std::log(lambda) - lambda - std::lgamma(static_cast<double>(k) + 1));
  for (auto i = static_cast<double>(k); term > 0; ++i) {
    sum += term;
    if (i > lambda && term < sum * 1e-17) {
      break;
    }
    term *= lambda / (i + 1);
  }
  return std::min(sum, 1.0);
}

double binomial_upper_tail(int64_t k, int64_t n, double p) {
  if (k <= 0) {
    return 1;
  }
  if (k > n || !(p > 0)) {
    return 0;
  }
  if (p >= 1) {
    return 1;
  }
  const auto nd = static_cast<double>(n);
  double sum = 0;
  for (int64_t i = k; i <= n; ++i) {
    const auto id = static_cast<double>(i);
    sum += std::exp(std::lgamma(nd + 1) - std::lgamma(id + 1) - std::lgamma(nd - id + 1) + id * std::log(p) +
                    (nd - id) * std::log1p(-p));
  }
  return std::min(sum, 1.0);
}

Interval wilson(int64_t k, int64_t n, double z) {
  if (n <= 0) {
    return {0, 1};
  }
  const auto nd = static_cast<double>(n);
  const double share = static_cast<double>(k) / nd;
  const double center = share + z * z / (2 * nd);
  const double half = z * std::sqrt(share * (1 - share) / nd + z * z / (4 * nd * nd));
  const double scale = 1 + z * z / nd;
  return {std::max(0.0, (center - half) / scale), std::min(1.0, (center + half) / scale)};
}

}  // namespace tessera
