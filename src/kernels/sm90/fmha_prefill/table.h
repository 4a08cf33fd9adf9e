// The list of prefill kernels.
#pragma once

#include <span>

#include "kernels/sm90/fmha_prefill/prefill.h"

namespace tessera::sm90 {

std::span<const PrefillEntry> prefill_table();

// The kernel for these types and mask, or null.
const PrefillEntry* find_prefill(int head_dim, bool bf16, bool causal, bool general_finish = false);

// The ragged kernel for these head dims, or null. Whose tiles are the smallest: others may have another granule (R0).
const PrefillEntry* find_ragged_prefill(int64_t head_dim_qk, int64_t head_dim_v, bool bf16, bool modifiers);

}  // namespace tessera::sm90
