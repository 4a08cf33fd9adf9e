// The public parameters as the sm90 prefill kernels take them. Compiled with TESSERA_CUDA only.
#pragma once

#include "kernels/sm90/fmha_prefill/prefill.h"
#include "tessera/tessera.h"

namespace tessera {

// The problem without its scratch, for an ordinary or a ragged kernel. A K/V without keys is never read; its map then
// describes Q's memory.
sm90::PrefillProblem sm90_prefill_problem(const tessera_fmha_params& params, bool ragged);

}  // namespace tessera
