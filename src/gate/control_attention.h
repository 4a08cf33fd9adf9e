// Attention in plain fp32, outside the contract: the same mathematics in two other orders of summation. What it moves
// the logits by is the size of harmless rounding, from which the tolerance gate takes its thresholds.
#pragma once

#include "engine/forward.h"
#include "tessera/tessera.h"

namespace tessera {

// The softmax of a row over all its keys at once, with the C library's exponential; scores and sums one after the
// other from the first element or key to the last, or from the last to the first. Takes what the engine asks for
// (packed queries, paged keys, causal); TESSERA_UNSUPPORTED for the rest.
AttentionCalls control_attention_ascending();
AttentionCalls control_attention_descending();

}  // namespace tessera
