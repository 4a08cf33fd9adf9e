// The list of prefill kernels.
#pragma once

#include <span>

#include "kernels/sm90/fmha_prefill/prefill.h"

namespace tessera::sm90 {

std::span<const PrefillEntry> prefill_table();

// The kernel for these types and mask, or null.
const PrefillEntry* find_prefill(int head_dim, bool bf16, bool causal, bool general_finish = false);

// The ragged kernel for head dims up to `head_dim`, or null.
const PrefillEntry* find_ragged_prefill(int head_dim, bool bf16, bool modifiers);

}  // namespace tessera::sm90
