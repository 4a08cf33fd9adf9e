// cos and sin of every rotary angle, computed once in float64 and rounded to fp32, so that prefill and decode read the
// same numbers (rule E3 takes the table as an input).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/config.h"

namespace tessera {

struct RopeTable {
  int64_t num_positions = 0;
  int32_t half = 0;        // rotary_dim / 2
  std::vector<float> cos;  // (num_positions, half)
  std::vector<float> sin;  // (num_positions, half)
};

// angle(pos, i) = pos / rope_scale * base^(-2 i / rotary_dim) / factors[i]. `factors` (rope_freqs.weight, llama3
// scaling) is empty or has rotary_dim / 2 positive elements.
RopeTable make_rope_table(const ModelConfig& config, std::span<const float> factors, int64_t num_positions);

}  // namespace tessera
