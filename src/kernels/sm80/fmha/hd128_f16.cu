// The f16 kernel Hd128 of tags.h.
#include "kernels/sm80/fmha/launch.cuh"
#include "kernels/sm80/fmha/tags.h"

namespace tessera::sm80 {

template cudaError_t launch<Hd128<false>>(const Arguments&, int, cudaStream_t);

}  // namespace tessera::sm80
