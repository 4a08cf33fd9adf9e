// Definition of launch; included by the files that instantiate a kernel.
#pragma once

#include "kernels/sm80/fmha/entry.h"
#include "kernels/sm80/fmha/kernel.cuh"

namespace tessera::sm80 {

template <class Tag>
cudaError_t launch(const Arguments& arguments, int blocks, cudaStream_t stream) {
  using L = Layout<Tag>;
  const cudaError_t error =
      cudaFuncSetAttribute(fmha_sm80<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes);
  if (error != cudaSuccess) {
    return error;
  }
  fmha_sm80<Tag><<<static_cast<unsigned>(blocks), L::kThreads, L::kBytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace tessera::sm80
