#include "engine/rope_table.h"

#include <cmath>

namespace tessera {

RopeTable::RopeTable(const ModelConfig& config, std::span<const float> factors, int64_t max_positions)
    : max_positions_(max_positions), frequency_(static_cast<size_t>(config.rotary_dim / 2)) {
  for (size_t i = 0; i < frequency_.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim);
    const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[i]);
    frequency_[i] = std::pow(config.rope_freq_base, exponent) / factor / config.rope_scale;
  }
}

void RopeTable::grow(int64_t positions) {
  for (; num_positions_ < positions; ++num_positions_) {
    for (const double frequency : frequency_) {
      const double angle = static_cast<double>(num_positions_) * frequency;
      cos_.push_back(static_cast<float>(std::cos(angle)));
      sin_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace tessera
