// The ragged kernel with modifiers of tags.h for head dims 192 and 128, bf16.
#include "kernels/sm90/fmha_prefill/launch.cuh"
#include "kernels/sm90/fmha_prefill/tags.h"

namespace tessera::sm90 {

template cudaError_t launch_prefill<PrefillModified<PrefillHd192<true, false>>>(const PrefillArguments&, int,
                                                                                cudaStream_t);

}  // namespace tessera::sm90
