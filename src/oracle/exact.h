// Attention in float64: what the contract's bits are measured against for accuracy. Natural exponentials, one softmax
// over all keys, no granules, chunks or 16-bit weights.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Rows in the order (sequence, query token, query head). Padding rows beyond a used length have no entry.
struct ExactRows {
  std::vector<double> o;    // (rows, head_dim_v), softmax(S) V, sinks in the denominator; 0 without visible keys
  std::vector<double> lse;  // (rows) natural log of the sum of exp(s), sink excluded; -Inf without visible keys
  std::vector<double>
      mean_abs_v;  // (rows) sum of weight * |v|, largest over the head dim: the scale of rounding errors
};

// The same description as oracle_fmha(); the output tensors, output_mode, chunk range and o_dtype are not looked at.
// Errors as check_problem() of oracle/problem.h.
Result<ExactRows> exact_fmha(const tessera_fmha_params& params);

}  // namespace tessera
