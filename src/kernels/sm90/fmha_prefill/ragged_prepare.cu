// One block adds up the query tiles of all sequences, a block's worth of sequences at a time.
#include "kernels/sm90/fmha_prefill/ragged_prepare.h"

#include "kernels/sm90/fmha_prefill/ragged_tiles.h"

namespace tessera::sm90 {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// The sum of `x` over the lanes up to this one.
__device__ __forceinline__ int warp_prefix(int x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffU, x, step);
    x += lane >= step ? before : 0;
  }
  return x;
}

__global__ void __launch_bounds__(kThreads) ragged_prepare_sm90(const __grid_constant__ RaggedPreparation p) {
  __shared__ int warp_sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  int before = 0;  // tiles of earlier rounds
  for (int first = 0; first < p.batch; first += kThreads) {
    const int b = first + thread;
    int tiles = 0;
    if (b < p.batch) {
      const TokenRange q = token_range(p.cu_seqlens_q, p.seqlens_q, p.seqlen_q, b);
      tiles = (q.count + p.block_m - 1) / p.block_m;
    }
    const int in_warp = warp_prefix(tiles);
    if (thread % 32 == 31) {
      warp_sums[thread / 32] = in_warp;
    }
    __syncthreads();
    if (thread < 32) {
      warp_sums[thread] = warp_prefix(warp_sums[thread]);
    }
    __syncthreads();
    const int up_to_here = before + in_warp + (thread < 32 ? 0 : warp_sums[thread / 32 - 1]);
    if (b < p.batch) {
      p.tile_prefix[b + 1] = up_to_here;
    }
    before += warp_sums[kWarps - 1];
    __syncthreads();  // the sums have been read
  }
  if (thread == 0) {
    p.tile_prefix[0] = 0;
  }
}

}  // namespace

cudaError_t launch_ragged_prepare(const RaggedPreparation& preparation, cudaStream_t stream) {
  ragged_prepare_sm90<<<1, kThreads, 0, stream>>>(preparation);
  return cudaGetLastError();
}

}  // namespace tessera::sm90
