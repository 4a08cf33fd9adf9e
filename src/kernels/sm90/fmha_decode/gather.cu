// Sorts lists of gathered keys, a block per query token, after it has dropped what names no visible key. Mostly a bit
// per key of the sequence is enough: those that are set, in their order. A list that names a key twice, or a sequence
// of very many keys, goes through a bitonic network over 2^n entries, eight to a thread, in which what is no key sinks
// to the end; its steps inside a thread and inside a warp wait for nobody.
#include "kernels/sm90/fmha_decode/gather.h"

#include <limits>

namespace tessera::sm90 {
namespace {

constexpr int kNone = std::numeric_limits<int32_t>::max();
constexpr int kOwn = 8;  // entries of a thread, one after another
constexpr int kInWarp = 32 * kOwn;
constexpr int kMostThreads = kMaxGathered / kOwn;
constexpr int64_t kMostBits = int64_t{1} << 18;  // keys of a sequence whose bits a block has room for

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

// Sorts `own` of all threads, of which those that are no keys are kNone, into `entries` by a bit per key, and returns
// how many keys there are; or -1 if one is there twice.
__device__ __forceinline__ int sort_by_bits(const int (&own)[kOwn], int32_t* entries, uint32_t* bits, int words) {
  __shared__ int of_warp[kMostThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < words; i += threads) {
    bits[i] = 0;
  }
  __syncthreads();
  bool twice = false;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (own[i] != kNone) {
      const uint32_t bit = 1U << own[i] % 32;
      twice = (atomicOr(&bits[own[i] / 32], bit) & bit) != 0 || twice;
    }
  }
  if (__syncthreads_or(twice ? 1 : 0) != 0) {
    return -1;
  }
  // A thread's words follow each other; first how many keys are before them.
  const int each = (words + threads - 1) / threads;
  const int first = min(thread * each, words);
  const int end = min(first + each, words);
  int keys = 0;
  for (int i = first; i < end; ++i) {
    keys += __popc(bits[i]);
  }
  int before = keys;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, before, lanes);
    before += thread % 32 >= lanes ? other : 0;
  }
  if (thread % 32 == 31) {
    of_warp[thread / 32] = before;
  }
  before -= keys;
  __syncthreads();
  int all = 0;
  for (int warp = 0; warp < threads / 32; ++warp) {
    before += warp < thread / 32 ? of_warp[warp] : 0;
    all += of_warp[warp];
  }
  for (int i = first; i < end; ++i) {
    for (uint32_t word = bits[i]; word != 0; word &= word - 1) {
      entries[before] = i * 32 + __ffs(static_cast<int>(word)) - 1;
      ++before;
    }
  }
  __syncthreads();
  return all;
}

// The same by a bitonic network, keys that are there twice included.
__device__ __forceinline__ int sort_by_network(int (&own)[kOwn], int32_t* entries) {
  int keys = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    keys += __syncthreads_count(own[i] != kNone ? 1 : 0);
  }
  const int first = static_cast<int>(threadIdx.x) * kOwn;
  const int size = static_cast<int>(blockDim.x) * kOwn;
#pragma unroll 1
  for (int run = 2; run <= size; run *= 2) {
#pragma unroll 1
    for (int step = run / 2; step > 0; step /= 2) {
      order(own, first, run, step, entries);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    entries[first + i] = own[i];
  }
  __syncthreads();
  return keys;
}

// `words` of bits, 0: none.
__global__ void __launch_bounds__(kMostThreads, 1)
    sort_gathered_sm90(const __grid_constant__ GatheredKeys g, const int words) {
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
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  int own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int entry = i * threads + thread;
    own[i] = entry < count ? g.indices[token * g.indices_stride + entry] : -1;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const bool is_key = own[i] >= 0 && own[i] >= seen.first && own[i] < seen.end && row_of(g, batch, own[i]) >= 0;
    own[i] = is_key ? own[i] : kNone;
  }
  int keys = -1;
  if (words > 0) {
    keys = sort_by_bits(own, entries, reinterpret_cast<uint32_t*>(entries + threads * kOwn), words);
  }
  if (keys < 0) {
    keys = sort_by_network(own, entries);
  }
  if (thread == 0) {
    g.counts[token] = keys;
  }
  for (int i = thread; i < keys; i += threads) {
    g.sorted[token * g.topk + i] = static_cast<int32_t>(row_of(g, batch, entries[i]));
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
  const int words = keys.seqlen_k <= kMostBits ? static_cast<int>((keys.seqlen_k + 31) / 32) : 0;
  const size_t bytes = static_cast<size_t>(size + words) * sizeof(int32_t);
  const cudaError_t error =
      cudaFuncSetAttribute(sort_gathered_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>((kMaxGathered + kMostBits / 32) * int64_t{sizeof(int32_t)}));
  if (error != cudaSuccess) {
    return error;
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(keys.batch * keys.seqlen_q));
  launch.blockDim = dim3(static_cast<unsigned>(size / kOwn));
  launch.dynamicSmemBytes = bytes;
  launch.stream = stream;
  return cudaLaunchKernelEx(&launch, sort_gathered_sm90, keys, words);
}

}  // namespace tessera::sm90
