// A kernel that is launched while the one before it still runs (PTX ISA "griddepcontrol"), and its launch.
#pragma once

#include <cuda_runtime.h>

namespace tessera::sm90 {

// The next kernel may start once every block has said so or has ended; it waits for this one's end.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// By every thread: a grid that ends without waiting lets the stream go on.
__device__ __forceinline__ void wait_for_primary() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

template <class Arguments>
cudaError_t launch_dependent(void (*kernel)(Arguments), dim3 blocks, dim3 threads, const Arguments& arguments,
                             cudaStream_t stream) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = blocks;
  launch.blockDim = threads;
  launch.stream = stream;
  launch.attrs = &early;
  launch.numAttrs = 1;
  return cudaLaunchKernelEx(&launch, kernel, arguments);
}

}  // namespace tessera::sm90
