// Host side of the prefill kernels of head dim 512: from a problem to tensor maps, tile order and a launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/status.h"
#include "kernels/sm90/fmha_prefill/prefill.h"
#include "kernels/sm90/fmha_prefill_512/config.h"

namespace tessera::sm90 {

// A kernel as the launcher sees it.
struct Prefill512Entry {
  const char* name;
  bool bf16;
  cudaError_t (*launch)(const Arguments512& arguments, int clusters, cudaStream_t stream);
};

template <class Tag>
cudaError_t launch_prefill_512(const Arguments512& arguments, int clusters, cudaStream_t stream);

// Whether the query heads of a K/V head have their rows in the same tiles: queries of one head alone would leave a tile
// with room.
constexpr bool prefill_512_packs(int64_t seqlen_q, int64_t group) {
  return group > 1 && seqlen_q < Layout512::kBlockM;
}

const Prefill512Entry& find_prefill_512(bool bf16);

// Scratch of a launch: the tile counter, and per block and consumer the accumulators of R8: of chunks once the keys
// exceed one, of superchunks once they exceed one of those. Launches that run at the same time need scratch of their
// own.
size_t prefill_512_scratch_bytes(const PrefillProblem& problem, int multiprocessors);

// Checks the problem, builds the maps and enqueues the kernel. Head dims of Q and K, and of V, are multiples of 8 up to
// 512. kInvalidArgument or kUnsupported before anything is enqueued, kDevice if CUDA refuses.
Status run_prefill_512(const Prefill512Entry& entry, const PrefillProblem& problem, int multiprocessors,
                       cudaStream_t stream);

}  // namespace tessera::sm90
