#include "kernels/sm90/fmha_mqa_512/kernel.cuh"

namespace tessera::sm90 {

template cudaError_t launch_mqa_512<Mqa512<512, true, true>>(const MqaArguments&, int, cudaStream_t);

}  // namespace tessera::sm90
