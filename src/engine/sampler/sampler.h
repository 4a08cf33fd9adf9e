// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace tessera {

// The steps are applied in the order of the fields. All of them rank tokens by (logit descending, id ascending), so
// ties have one answer.
struct SamplerParams {
  float temperature = 0.0f;  // >= 0; 0 = greedy: the highest logit, the lowest id of equal ones; the rest is not used
  std::int32_t top_k = 0;    // >= 0; keep the k best tokens; 0 = all
  float top_p = 1.0f;        // (0, 1]; keep the shortest list of best tokens that holds this share of what is left
  float min_p = 0.0f;        // [0, 1]; keep tokens at least this share as probable as the best one
};

// kInvalidArgument, naming the parameter, when one is NaN or out of the range above.
Status check_sampler_params(const SamplerParams& params);

// Memory of sample(), to be reused from call to call; what it holds does not influence any result.
struct SamplerWorkspace {
  std::vector<std::int32_t> ids;    // candidates, ascending
  std::vector<double> weights;      // of the candidates; 0 = dropped
  std::vector<std::int32_t> order;  // candidates by rank
};

// The token for `logits` ([vocab] f32, -inf = impossible). A pure function: the same arguments give the same token on
// every machine, in any order of calls and next to any other sequences. All arithmetic is IEEE double:
//
//   w[i] = e^((logit[i] - max) / temperature)      exp_nonpositive(), exactly 1 for the best token
//   top_k, top_p, min_p set w[i] to 0; for top_p a sum in rank order runs up to top_p * (the sum in id order)
//   u = philox_uniform(seed, sequence, position)
//   result: the first id whose running sum of w, in id order, exceeds u * (sum of w in id order)
//
// `position` is the index of the new token in its sequence. Errors, kInvalidArgument: bad parameters, no logits or more
// than 2^31 - 1, a NaN or +inf logit, only -inf logits.
Result<std::int32_t> sample(std::span<const float> logits, const SamplerParams& params, std::uint64_t seed,
                            std::uint64_t sequence, std::uint64_t position, SamplerWorkspace* workspace = nullptr);

}  // namespace tessera
