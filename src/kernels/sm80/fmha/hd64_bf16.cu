// The bf16 kernel Hd64 of tags.h.
#include "kernels/sm80/fmha/launch.cuh"
#include "kernels/sm80/fmha/tags.h"

namespace tessera::sm80 {

template cudaError_t launch<Hd64<true>>(const Arguments&, int, cudaStream_t);

}  // namespace tessera::sm80
