// Sorts lists of gathered keys, a block per query token: a bitonic network over 2^n entries in shared memory, of which
// those that name no visible key sink to the end.
#include "kernels/sm90/fmha_decode/gather.h"

#include <algorithm>
#include <limits>

namespace tessera::sm90 {
namespace {

constexpr int kNone = std::numeric_limits<int32_t>::max();
constexpr int kMostThreads = 1024;

// Keys [first, end) that the token sees (R2).
struct Interval {
  int64_t first, end;
};
__device__ __forceinline__ Interval visible_keys(const GatheredKeys& g, int64_t length, int64_t position) {
  if (g.compress_ratio > 0) {
    return {0, min(length, max(int64_t{0}, position + 1) / g.compress_ratio)};
  }
  Interval keys{0, length};
  if (g.causal) {
    keys.end = min(keys.end, position + 1);
  }
  if (g.window_right >= 0) {
    keys.end = min(keys.end, position + 1 + g.window_right);
  }
  if (g.window_left >= 0) {
    keys.first = max(int64_t{0}, position - g.window_left);
  }
  return keys;
}

// The row of a key, or -1 if the pool does not have its page.
__device__ __forceinline__ int64_t row_of(const GatheredKeys& g, int64_t batch, int key) {
  if (g.page_table == nullptr) {
    return batch * g.rows + key;
  }
  const int page = g.page_table[batch * g.page_table_stride + key / g.page_size];
  return page >= 0 && page < g.num_pages ? page * g.rows + key % g.page_size : -1;
}

__global__ void __launch_bounds__(kMostThreads) sort_gathered_sm90(const __grid_constant__ GatheredKeys g) {
  extern __shared__ int32_t entries[];
  const int64_t token = blockIdx.x;
  const int64_t batch = token / g.seqlen_q;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  int64_t length = g.seqlen_k;
  if (g.seqlens_k != nullptr) {
    length = min(max(int64_t{g.seqlens_k[batch]}, int64_t{0}), length);
  }
  const int64_t first_position = g.q_positions != nullptr ? g.q_positions[batch] : length - g.seqlen_q;
  const Interval seen = visible_keys(g, length, first_position + token - batch * g.seqlen_q);
  const int count = g.topk_lens == nullptr ? g.topk : min(max(g.topk_lens[token], 0), g.topk);
  int size = 1;
  while (size < count) {
    size *= 2;
  }
  for (int i = thread; i < size; i += threads) {
    const int key = i < count ? g.indices[token * g.indices_stride + i] : -1;
    entries[i] = key >= 0 && key >= seen.first && key < seen.end && row_of(g, batch, key) >= 0 ? key : kNone;
  }
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = thread; i < size / 2; i += threads) {
        const int low = 2 * i - (i & (step - 1));
        const int a = entries[low];
        const int b = entries[low + step];
        if ((a > b) == ((low & run) == 0)) {
          entries[low] = b;
          entries[low + step] = a;
        }
      }
    }
  }
  __syncthreads();
  if (thread == 0 && entries[0] == kNone) {
    g.counts[token] = 0;
  }
  for (int i = thread; i < size; i += threads) {
    if (entries[i] == kNone) {
      break;
    }
    g.sorted[token * g.topk + i] = static_cast<int32_t>(row_of(g, batch, entries[i]));
    if (i + 1 == size || entries[i + 1] == kNone) {
      g.counts[token] = i + 1;
    }
  }
}

}  // namespace

cudaError_t launch_sort_gathered(const GatheredKeys& keys, cudaStream_t stream) {
  if (keys.batch == 0 || keys.seqlen_q == 0) {
    return cudaSuccess;
  }
  int size = 1;
  while (size < keys.topk) {
    size *= 2;
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(keys.batch * keys.seqlen_q));
  launch.blockDim = dim3(static_cast<unsigned>(std::clamp(size / 2, 32, kMostThreads)));
  launch.dynamicSmemBytes = static_cast<size_t>(size) * sizeof(int32_t);
  launch.stream = stream;
  return cudaLaunchKernelEx(&launch, sort_gathered_sm90, keys);
}

}  // namespace tessera::sm90
