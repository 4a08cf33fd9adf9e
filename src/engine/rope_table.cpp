#include "engine/rope_table.h"

#include <cmath>

namespace tessera {

RopeTable make_rope_table(const ModelConfig& config, std::span<const float> factors, int64_t num_positions) {
  RopeTable t;
  t.num_positions = num_positions;
  t.half = config.rotary_dim / 2;
  const auto half = static_cast<size_t>(t.half);
  std::vector<double> frequency(half);
  for (size_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim);
    const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[i]);
    frequency[i] = std::pow(config.rope_freq_base, exponent) / factor / config.rope_scale;
  }
  t.cos.resize(static_cast<size_t>(num_positions) * half);
  t.sin.resize(t.cos.size());
  for (int64_t pos = 0; pos < num_positions; ++pos) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(pos) * frequency[i];
      t.cos[static_cast<size_t>(pos) * half + i] = static_cast<float>(std::cos(angle));
      t.sin[static_cast<size_t>(pos) * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return t;
}

}  // namespace tessera
