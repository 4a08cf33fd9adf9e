#include "gate/drift.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/sampler/sampler.h"
#include "gate/rows.h"
#include "gate/statistics.h"

namespace tessera {
namespace {

constexpr size_t kTop = 64;
constexpr float kTemperature = 0.8F;
constexpr uint64_t kSeeds = 4;
constexpr int kHistogramShift = 17;  // of the bits of a float: 6 bits of the mantissa stay
constexpr size_t kHistogramBins = size_t{1} << (31 - kHistogramShift);

std::vector<int32_t> largest(std::span<const float> row) {
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t n = std::min(kTop, ids.size());
  std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n - 1), ids.end(), [&](int32_t a, int32_t b) {
    const float x = row[static_cast<size_t>(a)];
    const float y = row[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  ids.resize(n);
  return ids;
}

// log sum exp.
double log_sum(std::span<const float> row, double shift) {
  double sum = 0;
  for (const float x : row) {
    sum += std::exp(double{x} - shift);
  }
  return shift + std::log(sum);
}

double kl_divergence(std::span<const float> record, std::span<const float> now, double best) {
  const double r = log_sum(record, best);
  const double n = log_sum(now, best);
  double kl = 0;
  for (size_t i = 0; i < record.size(); ++i) {
    const double log_r = double{record[i]} - r;
    kl += std::exp(log_r) * (log_r - (double{now[i]} - n));
  }
  return std::max(kl, 0.0);
}

}  // namespace

DriftMeter::DriftMeter(int64_t num_layers) : layers_(static_cast<size_t>(num_layers)), histogram_(kHistogramBins) {}

Status DriftMeter::add(int64_t prompt, int64_t position, std::span<const float> record, std::span<const float> now) {
  ++drift_.rows;
  const int64_t first = greedy_token(record);
  const int64_t winner = greedy_token(now);
  if (first < 0 || winner < 0) {
    ++drift_.rows_not_finite;
    return {};
  }
  drift_.rows_equal += std::memcmp(record.data(), now.data(), record.size_bytes()) == 0 ? 1 : 0;
  double mean = 0;
  for (size_t i = 0; i < record.size(); ++i) {
    mean += double{now[i]} - double{record[i]};
  }
  mean /= static_cast<double>(record.size());
  const auto d = [&](int64_t i) {
    return double{now[static_cast<size_t>(i)]} - double{record[static_cast<size_t>(i)]} - mean;
  };
  for (int64_t i = 0; i < static_cast<int64_t>(record.size()); ++i) {
    const double size = std::fabs(d(i));
    drift_.figures.max_all = std::max(drift_.figures.max_all, size);
    squares_ += size * size;
    ++histogram_[std::min(size_t{std::bit_cast<uint32_t>(static_cast<float>(size)) >> kHistogramShift},
                          kHistogramBins - 1)];
  }
  elements_ += static_cast<int64_t>(record.size());
  const std::vector<int32_t> top = largest(record);
  for (const std::vector<int32_t>& ids : {top, largest(now)}) {
    for (const int32_t i : ids) {
      drift_.figures.max_top = std::max(drift_.figures.max_top, std::fabs(d(i)));
    }
  }
  kl_.push_back(kl_divergence(record, now, double{record[static_cast<size_t>(first)]}));
  drift_.bias += d(first);

  int64_t second = -1;
  for (const int32_t i : top) {
    if (i != first && (second < 0 || record[static_cast<size_t>(i)] > record[static_cast<size_t>(second)])) {
      second = i;
    }
  }
  const auto margin = [&](int64_t other) {
    return double{record[static_cast<size_t>(first)]} - double{record[static_cast<size_t>(other)]};
  };
  drift_.margins.push_back(second < 0 ? HUGE_VAL : margin(second));
  if (winner != first) {
    drift_.flips.push_back({prompt, position, first, winner, margin(winner), d(winner) - d(first)});
  } else if (second >= 0) {
    drift_.pairwise.push_back(std::fabs(d(second) - d(first)));
  }
  return draw(prompt, position, record, now);
}

Status DriftMeter::draw(int64_t prompt, int64_t position, std::span<const float> record, std::span<const float> now) {
  const SamplerParams params{.temperature = kTemperature};
  SamplerWorkspace workspace;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto sequence = static_cast<uint64_t>(prompt);
    Result<int32_t> a = sample(record, params, seed, sequence, static_cast<uint64_t>(position), &workspace);
    TESSERA_RETURN_IF_ERROR(a.status());
    Result<int32_t> b = sample(now, params, seed, sequence, static_cast<uint64_t>(position), &workspace);
    TESSERA_RETURN_IF_ERROR(b.status());
    ++drift_.draws;
    drift_.disagreements += a.value() != b.value() ? 1 : 0;
  }
  return {};
}

void DriftMeter::add_layer(int64_t layer, std::span<const float> record, std::span<const float> now) {
  Layer& l = layers_[static_cast<size_t>(layer)];
  for (size_t i = 0; i < record.size(); ++i) {
    const double error = double{now[i]} - double{record[i]};
    l.error += error * error;
    l.size += double{record[i]} * double{record[i]};
  }
}

Drift DriftMeter::finish() {
  const int64_t judged = drift_.rows - drift_.rows_not_finite;
  if (judged > 0) {
    drift_.figures.rms = std::sqrt(squares_ / static_cast<double>(elements_));
    drift_.bias /= static_cast<double>(judged);
    drift_.figures.kl_mean = std::accumulate(kl_.begin(), kl_.end(), 0.0) / static_cast<double>(judged);
    drift_.figures.kl_max = *std::max_element(kl_.begin(), kl_.end());
    drift_.kl_p99 = quantile(kl_, 0.99);
    uint64_t below = 0;
    for (size_t bin = 0; bin < histogram_.size(); ++bin) {
      below += histogram_[bin];
      if (static_cast<double>(below) >= 0.999 * static_cast<double>(elements_)) {
        // The bin's upper edge; the first bin holds the exact zeros.
        const double edge = std::bit_cast<float>(static_cast<uint32_t>((bin + 1) << kHistogramShift));
        drift_.figures.p999 = bin == 0 ? 0 : std::min(edge, drift_.figures.max_all);
        break;
      }
    }
  }
  for (const Layer& l : layers_) {
    drift_.layers.push_back(l.size > 0 ? std::sqrt(l.error / l.size) : 0);
  }
  return drift_;
}

}  // namespace tessera
