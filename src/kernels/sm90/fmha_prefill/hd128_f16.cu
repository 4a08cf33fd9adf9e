// The head dim 128 fp16 kernels of tags.h.
#include "kernels/sm90/fmha_prefill/launch.cuh"
#include "kernels/sm90/fmha_prefill/tags.h"

namespace tessera::sm90 {

template cudaError_t launch_prefill<PrefillHd128<false, false>>(const PrefillArguments&, int, cudaStream_t);
template cudaError_t launch_prefill<PrefillHd128<false, true>>(const PrefillArguments&, int, cudaStream_t);

}  // namespace tessera::sm90
