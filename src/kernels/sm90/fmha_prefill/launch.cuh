// Definition of launch_prefill; included by the files that instantiate a kernel.
#pragma once

#include "kernels/sm90/fmha_prefill/kernel.cuh"
#include "kernels/sm90/fmha_prefill/prefill.h"

namespace tessera::sm90 {

template <class Tag>
cudaError_t launch_prefill(const PrefillArguments& arguments, int blocks, cudaStream_t stream) {
  using Layout = PrefillLayout<Tag>;
  const cudaError_t error =
      cudaFuncSetAttribute(fmha_prefill_sm90<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kBytes);
  if (error != cudaSuccess) {
    return error;
  }
  fmha_prefill_sm90<Tag><<<static_cast<unsigned>(blocks), Layout::kThreads, Layout::kBytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace tessera::sm90
