// The f16 kernel Hd192 of tags.h.
#include "kernels/sm80/fmha/launch.cuh"
#include "kernels/sm80/fmha/tags.h"

namespace tessera::sm80 {

template cudaError_t launch<Hd192<false>>(const Arguments&, int, cudaStream_t);

}  // namespace tessera::sm80
