// A sequence of given tokens, evaluated row by row: what identity and tolerance gate have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace tessera {

// Tokens and what was generated from them, greedily or by the record.
struct Sequence {
  std::span<const int32_t> prompt;
  std::span<const int32_t> forced;  // evaluated behind the prompt, one call each, as decoding does
};

// Called for the logits row behind every token, in order; position counts from 0. False ends the evaluation.
using OnRow = std::function<bool(int64_t position, std::span<const float> logits)>;

// The prompt goes in calls of some 60 tokens (a row of logits is large), the rest token by token. The sequence is
// freed afterwards.
Status evaluate_rows(Engine& engine, const Sequence& tokens, const OnRow& on_row);

// The same, going on greedily from the prompt for `count` tokens. kInvalidArgument when a row has no largest logit.
Status generate_rows(Engine& engine, std::span<const int32_t> prompt, int64_t count, std::vector<int32_t>* generated,
                     const OnRow& on_row);

// Index of the largest logit, the lowest of equal ones; -1 when any value is NaN or infinite: such a row is never
// right.
int64_t greedy_token(std::span<const float> logits);

}  // namespace tessera
