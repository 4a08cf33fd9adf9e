// The kernel of tags.h for head dim 64, bf16, causal mask, general finish.
#include "kernels/sm90/fmha_prefill/launch.cuh"
#include "kernels/sm90/fmha_prefill/tags.h"

namespace tessera::sm90 {

template cudaError_t launch_prefill<PrefillGeneral<PrefillHd64<true, true>>>(const PrefillArguments&, int,
                                                                             cudaStream_t);

}  // namespace tessera::sm90
