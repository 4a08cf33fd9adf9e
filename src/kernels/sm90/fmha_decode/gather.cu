// Sorts lists of gathered keys, a block per query token: a bitonic network over 2^n entries, eight to a thread, of
// which those that name no visible key sink to the end. Steps inside a thread and inside a warp wait for nobody.
#include "kernels/sm90/fmha_decode/gather.h"

#include <limits>

namespace tessera::sm90 {
namespace {

constexpr int kNone = std::numeric_limits<int32_t>::max();
constexpr int kOwn = 8;  // entries of a thread, one after another
constexpr int kInWarp = 32 * kOwn;
constexpr int kMostThreads = kMaxGathered / kOwn;

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

// A step of the network between entries of one thread; `first` is the number of its first entry. Runs of `run` entries
// become sorted, up and down in turns.
template <int kStep>
__device__ __forceinline__ void order_own(int (&own)[kOwn], int first, int run) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if ((i & kStep) == 0) {
      const bool up = ((first + i) & run) == 0;
      const int low = min(own[i], own[i + kStep]);
      const int high = max(own[i], own[i + kStep]);
      own[i] = up ? low : high;
      own[i + kStep] = up ? high : low;
    }
  }
}

// One step, `step` entries apart; `shared` has a place for every entry.
__device__ __forceinline__ void order(int (&own)[kOwn], int first, int run, int step, int* shared) {
  if (step < kOwn) {
    if (step == 4) {
      order_own<4>(own, first, run);
    } else if (step == 2) {
      order_own<2>(own, first, run);
    } else {
      order_own<1>(own, first, run);
    }
    return;
  }
  const bool keeps_low = ((first & step) == 0) == ((first & run) == 0);
  const bool far = step >= kInWarp;
  if (far) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      shared[i * static_cast<int>(blockDim.x) + first / kOwn] = own[i];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int other = far ? shared[i * static_cast<int>(blockDim.x) + (first ^ step) / kOwn]
                          : __shfl_xor_sync(0xffffffffU, own[i], step / kOwn);
    own[i] = keeps_low ? min(own[i], other) : max(own[i], other);
  }
}

__global__ void __launch_bounds__(kMostThreads) sort_gathered_sm90(const __grid_constant__ GatheredKeys g) {
  extern __shared__ int32_t entries[];
  const int64_t token = blockIdx.x;
  const int64_t batch = token / g.seqlen_q;
  int64_t length = g.seqlen_k;
  if (g.seqlens_k != nullptr) {
    length = min(max(int64_t{g.seqlens_k[batch]}, int64_t{0}), length);
  }
  const int64_t first_position = g.q_positions != nullptr ? g.q_positions[batch] : length - g.seqlen_q;
  const Interval seen = visible_keys(g, length, first_position + token - batch * g.seqlen_q);
  const int count = g.topk_lens == nullptr ? g.topk : min(max(g.topk_lens[token], 0), g.topk);
  const int first = static_cast<int>(threadIdx.x) * kOwn;
  int own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    own[i] = first + i < count ? g.indices[token * g.indices_stride + first + i] : -1;
  }
  int visible = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const bool is_key = own[i] >= 0 && own[i] >= seen.first && own[i] < seen.end && row_of(g, batch, own[i]) >= 0;
    own[i] = is_key ? own[i] : kNone;
    visible += __syncthreads_count(is_key ? 1 : 0);
  }
  const int size = static_cast<int>(blockDim.x) * kOwn;
#pragma unroll 1
  for (int run = 2; run <= size; run *= 2) {
#pragma unroll 1
    for (int step = run / 2; step > 0; step /= 2) {
      order(own, first, run, step, entries);
    }
  }
  if (threadIdx.x == 0) {
    g.counts[token] = visible;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (first + i < visible) {
      g.sorted[token * g.topk + first + i] = static_cast<int32_t>(row_of(g, batch, own[i]));
    }
  }
}

}  // namespace

cudaError_t launch_sort_gathered(const GatheredKeys& keys, cudaStream_t stream) {
  if (keys.batch == 0 || keys.seqlen_q == 0) {
    return cudaSuccess;
  }
  int size = kInWarp;
  while (size < keys.topk) {
    size *= 2;
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(keys.batch * keys.seqlen_q));
  launch.blockDim = dim3(static_cast<unsigned>(size / kOwn));
  launch.dynamicSmemBytes = static_cast<size_t>(size) * sizeof(int32_t);
  launch.stream = stream;
  return cudaLaunchKernelEx(&launch, sort_gathered_sm90, keys);
}

}  // namespace tessera::sm90
