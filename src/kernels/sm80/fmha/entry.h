// A kernel as the host sees it. Tests instantiate further schedules and run them through the same path.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kernels/sm80/fmha/config.h"
#include "tessera/tessera.h"

namespace tessera::sm80 {

struct Entry {
  Numbers numbers;
  int block_m;
  int blocks_per_sm;
  int64_t state_bytes;  // of one block and level in the workspace
  // Enqueues the kernel over `blocks` blocks.
  cudaError_t (*launch)(const Arguments& arguments, int blocks, cudaStream_t stream);
};

template <class Tag>
cudaError_t launch(const Arguments& arguments, int blocks, cudaStream_t stream);

template <class Tag>
constexpr Entry entry() {
  return {Tag::kNumbers, Layout<Tag>::kBlockM, Tag::kSchedule.blocks_per_sm, Layout<Tag>::kStateBytes, &launch<Tag>};
}

// Whether the kernel's numbers are those of the problem (R0) and its head dims fit.
bool fits(const Entry& entry, const tessera_fmha_params& params);

// The kernel of the library for this problem, or null. `params` has passed the checks of check_support.
const Entry* find_entry(const tessera_fmha_params& params);

// Device memory for `entry` on a device of that many multiprocessors.
size_t workspace_bytes(const Entry& entry, const tessera_fmha_params& params, int multiprocessors);

// Builds the arguments and enqueues the kernel.
Status run(const Entry& entry, const tessera_fmha_params& params, void* workspace, int multiprocessors,
           cudaStream_t stream);

// Enqueues the merge of at least one row.
cudaError_t launch_merge(const tessera_merge_params& params, float bias, cudaStream_t stream);

}  // namespace tessera::sm80
