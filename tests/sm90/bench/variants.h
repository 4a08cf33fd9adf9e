// Kernels that only the benchmarks build: the contract's constraints lifted one at a time, to price them.
#pragma once

#include <span>

#include "kernels/sm90/fmha_prefill/prefill.h"
#include "kernels/sm90/fmha_prefill_512/prefill_512.h"

namespace tessera::sm90 {

std::span<const PrefillEntry> bench_variants();
// Of head dim 512, bf16: one chunk without end.
const Prefill512Entry& free_prefill_512();

}  // namespace tessera::sm90
