// Host side of the ragged kernels: see prefill.h for what they take.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kernels/sm90/fmha_prefill/config.h"
#include "kernels/sm90/fmha_prefill/prefill.h"
#include "tessera/tessera.h"

namespace tessera::sm90 {

// Whether the problem needs a kernel with modifiers of the scores.
bool needs_modifiers(const tessera_fmha_params& params);

// Head dim of the smallest kernel that takes the problem's.
int64_t ragged_kernel_dim(int64_t head_dim_qk, int64_t head_dim_v);

// Keys of K and V that the copy engine fetches at a time: a granule, or as many as lie behind one another in a page.
// Below kLeastBoxKeys: the page size does not fit.
int64_t ragged_box_keys(int64_t granule_keys, bool paged, int64_t page_size);

// R2 and the chunk range, as RaggedSight applies them.
void set_visibility(const PrefillProblem& problem, RaggedArguments& to);

// Of the scratch: the tiles of each sequence, where they differ.
size_t tile_prefix_bytes(const PrefillProblem& problem);

// Enqueues a ragged kernel; `arguments` has what all kernels share. a.ragged.tile_prefix points to that part of the
// scratch.
Status run_ragged_prefill(const PrefillEntry& entry, const PrefillProblem& problem, PrefillArguments arguments,
                          int multiprocessors, cudaStream_t stream);

}  // namespace tessera::sm90
