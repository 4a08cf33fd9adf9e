// Seeded problems whose output bytes are recorded from a GPU in tests/vectors/fmha_golden.json, so that a machine
// without one can check the oracle against them.
#pragma once

#include <string>
#include <vector>

#include "fmha/problem.h"

namespace tessera::test {

struct GoldenProblem {
  std::string name;  // "bf16/prefill_causal"
  FmhaSpec spec;
};

// fp16 and bf16 in turn. Changing one means recording again.
std::vector<GoldenProblem> golden_problems();

// SHA-256 over the rows in the order (sequence, token, head): O as stored, then LSE, row_max_log2 and row_sum as far as
// the problem has them. Bytes between rows do not count.
std::string golden_digest(const FmhaProblem& problem, const FmhaOutputs& out);

// The recorded file: TESSERA_FMHA_GOLDEN in the environment, or the one of this checkout.
std::string golden_path();

}  // namespace tessera::test
