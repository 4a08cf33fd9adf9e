// Entries of the kernels in which a cluster takes a unit of head dim 512 at once.
#pragma once

#include "kernels/sm90/fmha_decode/launch.cuh"
#include "kernels/sm90/fmha_decode/wide_team.cuh"

namespace tessera::sm90 {

template <class Tag>
struct WideTeamLauncher {
  using Layout = WideTeamLayout<Tag>;
  static constexpr bool kCounts = true;

  static cudaError_t prepare() {
    return cudaFuncSetAttribute(fmha_decode_wide_team_sm90<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Layout::kBytes);
  }
  static cudaLaunchConfig_t config(int clusters, cudaLaunchAttribute* attribute) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim = {Layout::kTeam, 1, 1};
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(static_cast<unsigned>(clusters * Layout::kTeam));
    launch.blockDim = dim3(Layout::kThreads);
    launch.dynamicSmemBytes = Layout::kBytes;
    launch.attrs = attribute;
    launch.numAttrs = 1;
    return launch;
  }
  static cudaError_t resident(int* clusters) {
    const cudaError_t error = prepare();
    if (error != cudaSuccess) {
      return error;
    }
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t launch = config(1, &attribute);
    return cudaOccupancyMaxActiveClusters(clusters, fmha_decode_wide_team_sm90<Tag>, &launch);
  }
  static cudaError_t launch(const DecodeArguments& arguments, int clusters, cudaStream_t stream) {
    const cudaError_t error = prepare();
    if (error != cudaSuccess) {
      return error;
    }
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t launch = config(clusters, &attribute);
    launch.stream = stream;
    return cudaLaunchKernelEx(&launch, fmha_decode_wide_team_sm90<Tag>, arguments);
  }
};

template <class Tag>
constexpr DecodeEntry wide_team_entry(const char* name) {
  return entry_of<Tag, WideTeamLauncher<Tag>>(name, WideTeamLayout<Tag>::kTeam, kTeamUnits);
}

}  // namespace tessera::sm90
