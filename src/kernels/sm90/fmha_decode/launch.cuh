// What the files that instantiate kernels share: an entry per kernel.
#pragma once

#include "kernels/sm90/dependent_launch.cuh"
#include "kernels/sm90/fmha_decode/alone.cuh"
#include "kernels/sm90/fmha_decode/combine.cuh"
#include "kernels/sm90/fmha_decode/decode.h"
#include "kernels/sm90/fmha_decode/segments.cuh"
#include "kernels/sm90/fmha_decode/team.cuh"

namespace tessera::sm90 {

// The kernel that chains states, over the sequences and heads of `shape`, while the first one still runs.
template <class Tag, class Arguments>
cudaError_t launch_second(void (*kernel)(Arguments), const DecodeArguments& shape, const Arguments& arguments,
                          cudaStream_t stream) {
  const bool half = is_half_empty(int64_t{shape.seqlen_q} * shape.group.value);
  return launch_dependent(
      kernel,
      dim3(static_cast<unsigned>(shape.batch) * shape.heads.value, Tag::kRows / 8, combine_blocks(Tag::kValueDim)),
      dim3(combine_warps(Tag::kValueDim) * (half ? 16 : 32)), arguments, stream);
}

template <class Tag>
struct AloneLauncher {
  using Layout = AloneLayout<Tag>;
  static constexpr bool kCounts = false;

  static cudaError_t prepare() {
    return cudaFuncSetAttribute(fmha_decode_alone_sm90<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Layout::kBytes);
  }
  static cudaError_t resident(int* blocks) {  // units
    int device = 0;
    int processors = 0;
    cudaError_t error = prepare();
    if (error == cudaSuccess) {
      error = cudaGetDevice(&device);
    }
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    }
    if (error == cudaSuccess) {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, fmha_decode_alone_sm90<Tag>, Layout::kThreads,
                                                            Layout::kBytes);
      *blocks = *blocks * processors / Layout::kShare;
    }
    return error;
  }
  static cudaError_t launch(const DecodeArguments& arguments, int blocks, cudaStream_t stream) {
    cudaError_t error = prepare();
    if (error != cudaSuccess) {
      return error;
    }
    cudaLaunchConfig_t first{};
    first.gridDim = dim3(static_cast<unsigned>(blocks * Layout::kShare));
    first.blockDim = dim3(Layout::kThreads);
    first.dynamicSmemBytes = Layout::kBytes;
    first.stream = stream;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {Layout::kShare, 1, 1};
    if (Layout::kShare > 1) {
      first.attrs = &cluster;
      first.numAttrs = 1;
    }
    error = cudaLaunchKernelEx(&first, fmha_decode_alone_sm90<Tag>, arguments);
    if (error != cudaSuccess || arguments.state_chunks == 1) {
      return error;
    }
    return launch_second<Tag>(combine_chunks_sm90<Tag>, arguments, arguments, stream);
  }
};

template <class Tag>
struct SegmentsLauncher {
  using Layout = AloneLayout<Tag>;
  // One kernel that chains for all that score; what they differ in does not concern it.
  using Chain = SegmentsKernel<DecodeKernel<Tag::kHeadDim, Tag::kBf16, Tag::kRows, 2, Tag::kValueDim>>;

  static cudaError_t prepare() {
    return cudaFuncSetAttribute(fmha_decode_segments_sm90<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Layout::kBytes);
  }
  static cudaError_t resident(int* blocks) {
    int device = 0;
    int processors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    }
    *blocks = processors * Layout::kResident;
    return error;
  }
  static cudaError_t launch(const SegmentedArguments& arguments, cudaStream_t stream) {
    cudaError_t error = prepare();
    if (error != cudaSuccess) {
      return error;
    }
    const DecodeArguments& last = arguments.segments[arguments.count - 1];
    cudaLaunchConfig_t first{};
    first.gridDim = dim3(static_cast<unsigned>(last.first_block + last.blocks));
    first.blockDim = dim3(Layout::kThreads);
    first.dynamicSmemBytes = Layout::kBytes;
    first.stream = stream;
    error = cudaLaunchKernelEx(&first, fmha_decode_segments_sm90<Tag>, arguments);
    if (error != cudaSuccess) {
      return error;
    }
    return launch_second<Tag>(combine_segments_sm90<Chain>, last, arguments, stream);
  }
};

template <class Tag>
struct TeamLauncher {
  using Layout = TeamLayout<Tag>;
  static constexpr bool kCounts = true;

  static cudaError_t prepare() {
    cudaError_t error =
        cudaFuncSetAttribute(fmha_decode_team_sm90<Tag>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kBytes);
    if (error == cudaSuccess && Layout::kTeam > 8) {
      error = cudaFuncSetAttribute(fmha_decode_team_sm90<Tag>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    return error;
  }
  static cudaLaunchConfig_t config(int clusters, cudaLaunchAttribute* attribute) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim = {Layout::kTeam, 1, 1};
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(static_cast<unsigned>(clusters * Layout::kTeam));
    launch.blockDim = dim3(kTeamThreads);
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
    return cudaOccupancyMaxActiveClusters(clusters, fmha_decode_team_sm90<Tag>, &launch);
  }
  static cudaError_t launch(const DecodeArguments& arguments, int clusters, cudaStream_t stream) {
    const cudaError_t error = prepare();
    if (error != cudaSuccess) {
      return error;
    }
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t launch = config(clusters, &attribute);
    launch.stream = stream;
    return cudaLaunchKernelEx(&launch, fmha_decode_team_sm90<Tag>, arguments);
  }
};

template <class Tag, class Launcher>
constexpr DecodeEntry entry_of(const char* name, int cluster, int64_t most_units) {
  return {.name = name,
          .head_dim = Tag::kHeadDim,
          .value_dim = Tag::kValueDim,
          .bf16 = Tag::kBf16,
          .modified = Tag::kModified,
          .twin = is_twin<Tag>(),
          .segments = false,
          .rows = Tag::kRows,
          .cluster = cluster,
          .counts = Launcher::kCounts,
          .most_units = most_units,
          .resident = &Launcher::resident,
          .launch = &Launcher::launch,
          .launch_segments = nullptr};
}

// Units of blocks that take them alone: with two scoring groups as many as there are multiprocessors.
template <class Tag>
constexpr int64_t alone_units() {
  return Tag::kResident == 1 && Tag::kHeadDim <= 256 ? kSingleUnits : kAnyUnits;
}

template <class Tag>
constexpr DecodeEntry segments_entry(const char* name) {
  using Launcher = SegmentsLauncher<SegmentsKernel<Tag>>;
  return {.name = name,
          .head_dim = Tag::kHeadDim,
          .value_dim = Tag::kValueDim,
          .bf16 = Tag::kBf16,
          .modified = Tag::kModified,
          .twin = false,
          .segments = true,
          .rows = Tag::kRows,
          .cluster = 1,
          .counts = false,
          .most_units = alone_units<Tag>(),
          .resident = &Launcher::resident,
          .launch = nullptr,
          .launch_segments = &Launcher::launch};
}

template <class Tag>
constexpr DecodeEntry alone_entry(const char* name) {
  return entry_of<Tag, AloneLauncher<Tag>>(name, 1, alone_units<Tag>());
}

// For problems of half of the head dim: two K/V heads at a time.
template <class Tag>
constexpr DecodeEntry twin_entry(const char* name) {
  return entry_of<TwinKernel<Tag>, AloneLauncher<TwinKernel<Tag>>>(name, 1, kAnyUnits);
}

// `Tag` of one resident block.
template <class Tag>
constexpr DecodeEntry duo_entry(const char* name) {
  return entry_of<Tag, AloneLauncher<DuoKernel<Tag>>>(name, DuoKernel<Tag>::kShare, kDuoUnits);
}

template <class Tag>
constexpr DecodeEntry team_entry(const char* name) {
  return entry_of<Tag, TeamLauncher<Tag>>(name, TeamLayout<Tag>::kTeam, kTeamUnits);
}

}  // namespace tessera::sm90
