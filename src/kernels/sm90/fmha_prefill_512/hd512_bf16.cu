#include "kernels/sm90/fmha_prefill_512/kernel.cuh"

namespace tessera::sm90 {

template cudaError_t launch_prefill_512<Prefill512<true>>(const Arguments512&, int, cudaStream_t);

}  // namespace tessera::sm90
