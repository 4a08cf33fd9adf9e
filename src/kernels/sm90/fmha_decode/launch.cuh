// What the files that instantiate kernels share: an entry per kernel.
#pragma once

#include "kernels/sm90/fmha_decode/decode.h"
#include "kernels/sm90/fmha_decode/kernel.cuh"

namespace tessera::sm90 {

template <class Tag>
struct DecodeLauncher {
  using Layout = DecodeLayout<Tag>;

  static cudaError_t prepare() {
    return cudaFuncSetAttribute(fmha_decode_sm90<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kBytes);
  }
  static cudaLaunchConfig_t config(int clusters, cudaLaunchAttribute* attribute) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim = {Layout::kCluster, 1, 1};
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(static_cast<unsigned>(clusters * Layout::kCluster));
    launch.blockDim = dim3(Layout::kThreads);
    launch.dynamicSmemBytes = Layout::kBytes;
    launch.attrs = attribute;
    launch.numAttrs = Layout::kCluster > 1 ? 1 : 0;
    return launch;
  }
  static cudaError_t resident_clusters(int* clusters) {
    const cudaError_t error = prepare();
    if (error != cudaSuccess) {
      return error;
    }
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t launch = config(1, &attribute);
    launch.numAttrs = 1;
    return cudaOccupancyMaxActiveClusters(clusters, fmha_decode_sm90<Tag>, &launch);
  }
  static cudaError_t launch(const DecodeArguments& arguments, int clusters, cudaStream_t stream) {
    const cudaError_t error = prepare();
    if (error != cudaSuccess) {
      return error;
    }
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t launch = config(clusters, &attribute);
    launch.stream = stream;
    return cudaLaunchKernelEx(&launch, fmha_decode_sm90<Tag>, arguments);
  }
};

template <class Tag>
constexpr DecodeEntry decode_entry(const char* name) {
  using Launcher = DecodeLauncher<Tag>;
  return {name,
          Tag::kNumbers.head_dim,
          Tag::kNumbers.bf16,
          Tag::kSchedule.rows,
          Tag::kSchedule.cluster,
          Tag::kSchedule.own,
          Tag::kNumbers.chunk_keys,
          DecodeLayout<Tag>::kGranule,
          DecodeLayout<Tag>::kThreads,
          Tag::kSchedule.paged,
          DecodeLayout<Tag>::kPanel,
          &Launcher::resident_clusters,
          &Launcher::launch};
}

}  // namespace tessera::sm90
