// cos and sin of every rotary angle, computed once in float64 and rounded to fp32, so that prefill and decode read the
// same numbers (rule E3 takes the table as an input).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/config.h"

namespace tessera {

// angle(pos, i) = pos / rope_scale * base^(-2 i / rotary_dim) / factors[i].
class RopeTable {
 public:
  RopeTable() = default;
  // For positions below max_positions. `factors` (rope_freqs.weight, llama3 scaling) is empty or has rotary_dim / 2
  // positive elements.
  RopeTable(const ModelConfig& config, std::span<const float> factors, int64_t max_positions);

  int64_t max_positions() const { return max_positions_; }
  int64_t num_positions() const { return num_positions_; }
  // Computes the rows below `positions` <= max_positions that are not there yet: a table for the whole context would
  // be as large as the cache of a short conversation.
  void grow(int64_t positions);

  const float* cos() const { return cos_.data(); }  // (num_positions, rotary_dim / 2)
  const float* sin() const { return sin_.data(); }

 private:
  int64_t max_positions_ = 0;
  int64_t num_positions_ = 0;
  std::vector<double> frequency_;  // [rotary_dim / 2]
  std::vector<float> cos_;
  std::vector<float> sin_;
};

}  // namespace tessera
