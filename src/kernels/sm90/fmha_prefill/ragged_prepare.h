// The step before a ragged launch with queries of any lengths: where each sequence's query tiles begin.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::sm90 {

struct RaggedPreparation {
  const int32_t* cu_seqlens_q;  // (batch + 1) or null
  const int32_t* seqlens_q;     // (batch) or null
  int32_t seqlen_q;             // their bound
  int32_t batch;
  int32_t block_m;
  int32_t* tile_prefix;  // (batch + 1): tiles of the sequences before, and of all
};

// Enqueues one block.
cudaError_t launch_ragged_prepare(const RaggedPreparation& preparation, cudaStream_t stream);

}  // namespace tessera::sm90
