// The numeric contract (docs/contract.md) written down a second time, for any mix of features of tessera_fmha_params.
// One plain row at a time; kernels are compared with it by memcmp. It shares only src/contract with them.
#pragma once

#include "base/status.h"
#include "contract/plan.h"
#include "tessera/tessera.h"

namespace tessera {

// Writes O, LSE and states as `params` describes (rules R0..R10). `threads` >= 1 workers share the rows; the bits do
// not depend on it. params.force_kernel is not looked at. Errors as check_problem() of oracle/problem.h, and
// kUnsupported for fp32 under hopper-k16-f25; on failure nothing has been written.
Status oracle_fmha(Arithmetic arithmetic, const tessera_fmha_params& params, int threads);

// The chain of R8 over params.num_states states in the order given, then R9 (or a state again).
Status oracle_merge(Arithmetic arithmetic, const tessera_merge_params& params);

}  // namespace tessera
