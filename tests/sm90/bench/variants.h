// Kernels that only the benchmarks build: the contract's constraints lifted one at a time, to price them.
#pragma once

#include <span>

#include "kernels/sm90/fmha_prefill/prefill.h"

namespace tessera::sm90 {

std::span<const PrefillEntry> bench_variants();

}  // namespace tessera::sm90
