#include "device_oracle/device_oracle.h"

#include "base/host_device.h"
#include "base/numeric_types.h"
#include "contract/ceil_product.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/mma_model.h"
#include "contract/plan.h"

namespace tessera::test {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxDim = 256;
constexpr int kOutputs = kMaxDim / kThreads;  // of O per thread: dims t and t + 128
constexpr int kClasses = 8;                   // R7

struct Problem {
  tessera_tensor q, k, v, o;
  tessera_row_scalars lse;
  int64_t seqlen_q, seqlen_k;
  int64_t window_left, window_right;
  int32_t heads_q, group, dim_qk, dim_v, granule, chunk, superchunk_chunks;
  bool causal, wide_output;
  float c, bias, lazy_threshold;
};

// A state of R8; every thread holds its dims of O and a copy of m and l.
struct State {
  bool empty = true;
  float m = 0.0F;
  float l = 0.0F;
  float o[kOutputs] = {};
};

__device__ void chain(State& a, const State& b) {
  if (b.empty) {
    return;
  }
  if (a.empty) {
    a = b;
    return;
  }
  const float m = fmaxf(a.m, b.m);
  const float weight_a = drop_weight(sub_rn(m, a.m));
  const float weight_b = drop_weight(sub_rn(m, b.m));
  a.l = fma_rn(a.l, weight_a, mul_rn(b.l, weight_b));
  for (int i = 0; i < kOutputs; ++i) {
    a.o[i] = fma_rn(a.o[i], weight_a, mul_rn(b.o[i], weight_b));
  }
  a.m = m;
}

__device__ float ex2_hardware(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class Format>
__device__ uint16_t round16(float x) {
  return Format::kExponentBias == 15 ? f32_to_f16(x) : f32_to_bf16(x);
}

template <class Format>
struct RowOracle {
  const Problem& problem;
  int64_t row, head, batch;  // query token, query head, sequence
  uint16_t (&q)[kMaxDim];    // shared: the row's query, zeros beyond its dims
  uint16_t (&weights)[kThreads];
  float (&p)[kThreads];
  float (&scratch)[kThreads];

  __device__ const uint16_t* key_row(const tessera_tensor& t, int64_t j) const {
    return static_cast<const uint16_t*>(t.data) + batch * t.stride_batch + j * t.stride_token +
           head / problem.group * t.stride_head;
  }

  // R1 for key j.
  __device__ float score(int64_t j) const {
    const uint16_t* const k = key_row(problem.k, j);
    float s = 0.0F;
    for (int first = 0; first < problem.dim_qk; first += kStepTerms) {
      uint16_t a[kStepTerms];
      uint16_t b[kStepTerms];
      for (int i = 0; i < kStepTerms; ++i) {
        a[i] = q[first + i];
        b[i] = first + i < problem.dim_qk ? k[(first + i) * problem.k.stride_dim] : uint16_t{0};
      }
      s = fdot_k16<Format>(s, a, b);
    }
    return s;
  }

  // R6 for dim d and the 16 keys from `first` on; keys outside [begin, end) have weight +0 and are not read.
  __device__ float accumulate(float o, int d, int64_t first, int64_t granule, int64_t begin, int64_t end) const {
    uint16_t a[kStepTerms];
    uint16_t b[kStepTerms];
    bool any = false;
    for (int i = 0; i < kStepTerms; ++i) {
      const int64_t j = first + i;
      a[i] = weights[j - granule];
      const bool counts = j >= begin && j < end && a[i] != 0;
      b[i] = counts ? key_row(problem.v, j)[d * problem.v.stride_dim] : uint16_t{0};
      any |= counts;
    }
    return any ? fdot_k16<Format>(o, a, b) : o;
  }

  // R3..R8 over the visible keys [begin, end) of one chunk.
  __device__ State chunk_state(int64_t first, int64_t chunk_end, int64_t begin, int64_t end) const {
    const int t = static_cast<int>(threadIdx.x);
    State state;
    float class_sum = 0.0F;  // thread t < 8: class t
    for (int64_t granule = first; granule < chunk_end; granule += problem.granule) {
      if (granule + problem.granule <= begin || granule >= end) {
        continue;  // R2
      }
      const int64_t j = granule + t;
      const bool visible = t < problem.granule && j >= begin && j < end;
      const float s = visible ? score(j) : -INFINITY;
      scratch[t] = s;
      __syncthreads();
      float mu = -INFINITY;
      for (int i = 0; i < problem.granule; ++i) {
        mu = fmaxf(mu, scratch[i]);
      }
      const float u = ceil_product(mu, problem.c);
      const bool moves = state.empty || u > add_rn(state.m, problem.lazy_threshold);
      const float m = moves ? u : state.m;
      const float a = state.empty ? 0.0F : drop_weight(sub_rn(m, state.m));
      const float weight = visible ? ex2_hardware(fma_rn(s, problem.c, sub_rn(problem.bias, m))) : 0.0F;
      __syncthreads();  // all have read the scores
      p[t] = weight;
      weights[t] = round16<Format>(weight);
      __syncthreads();
      for (int i = 0; i < kOutputs; ++i) {
        const int d = t + i * kThreads;
        if (d < problem.dim_v) {
          state.o[i] = mul_rn(state.o[i], a);
          for (int64_t block = granule; block < granule + problem.granule; block += kStepTerms) {
            state.o[i] = accumulate(state.o[i], d, block, granule, begin, end);
          }
        }
      }
      if (t < kClasses) {
        float g = 0.0F;
        for (int block = 0; block < problem.granule; block += kStepTerms) {
          const float pair = add_rn(p[block + t], p[block + t + kClasses]);
          g = block == 0 ? pair : add_rn(g, pair);
        }
        class_sum = state.empty ? g : fma_rn(class_sum, a, g);
      }
      state.m = m;
      state.empty = false;
      __syncthreads();  // weights are read
    }
    scratch[t] = class_sum;
    __syncthreads();
    state.l = add_rn(add_rn(add_rn(scratch[0], scratch[1]), add_rn(scratch[2], scratch[3])),
                     add_rn(add_rn(scratch[4], scratch[5]), add_rn(scratch[6], scratch[7])));
    __syncthreads();
    return state;
  }

  __device__ State segment_state(int64_t begin, int64_t end) const {
    const int64_t chunks = (problem.seqlen_k + problem.chunk - 1) / problem.chunk;
    State segment;
    for (int64_t chunk = 0; chunk < chunks;) {
      State superchunk;
      const int64_t stop = min(chunks, (chunk / problem.superchunk_chunks + 1) * problem.superchunk_chunks);
      for (; chunk < stop; ++chunk) {
        const int64_t first = chunk * problem.chunk;
        if (first < end && first + problem.chunk > begin) {
          chain(superchunk, chunk_state(first, first + problem.chunk, begin, end));
        }
      }
      chain(segment, superchunk);
    }
    return segment;
  }

  // R9 without a sink.
  __device__ void finish(const State& state) const {
    const float inverse = state.empty ? 0.0F : div_rn(1.0F, state.l);
    for (int i = 0; i < kOutputs; ++i) {
      const int d = static_cast<int>(threadIdx.x) + i * kThreads;
      if (d >= problem.dim_v) {
        continue;
      }
      const float value = state.empty ? 0.0F : add_rn(mul_rn(state.o[i], inverse), 0.0F);
      const int64_t at = batch * problem.o.stride_batch + row * problem.o.stride_token + head * problem.o.stride_head +
                         d * problem.o.stride_dim;
      if (problem.wide_output) {
        static_cast<float*>(problem.o.data)[at] = value;
      } else {
        const uint16_t bits = round16<Format>(value);
        static_cast<uint16_t*>(problem.o.data)[at] = (bits & 0x7fff) == 0 ? uint16_t{0} : bits;
      }
    }
    if (problem.lse.data != nullptr && threadIdx.x == 0) {
      problem.lse
          .data[batch * problem.lse.stride_batch + row * problem.lse.stride_token + head * problem.lse.stride_head] =
          state.empty ? -INFINITY : mul_rn(add_rn(soft_log2(state.l), sub_rn(state.m, problem.bias)), kLn2);
    }
  }
};

// Grid: one block per (sequence, head, query token).
template <class Format>
__global__ void __launch_bounds__(kThreads) oracle_rows(const Problem problem) {
  __shared__ uint16_t q[kMaxDim];
  __shared__ uint16_t weights[kThreads];
  __shared__ float p[kThreads];
  __shared__ float scratch[kThreads];
  const int64_t index = blockIdx.x;
  const int64_t row = index % problem.seqlen_q;
  const int64_t head = index / problem.seqlen_q % problem.heads_q;
  const int64_t batch = index / problem.seqlen_q / problem.heads_q;
  for (int d = static_cast<int>(threadIdx.x); d < kMaxDim; d += kThreads) {
    q[d] = d < problem.dim_qk ? static_cast<const uint16_t*>(
                                    problem.q.data)[batch * problem.q.stride_batch + row * problem.q.stride_token +
                                                    head * problem.q.stride_head + d * problem.q.stride_dim]
                              : uint16_t{0};
  }
  __syncthreads();
  const int64_t position = problem.seqlen_k - problem.seqlen_q + row;
  int64_t begin = 0;
  int64_t end = problem.seqlen_k;
  if (problem.causal) {
    end = min(end, position + 1);
  }
  if (problem.window_left >= 0) {
    begin = max(begin, position - problem.window_left);
  }
  if (problem.window_right >= 0) {
    end = min(end, position + problem.window_right + 1);
  }
  const RowOracle<Format> oracle{problem, row, head, batch, q, weights, p, scratch};
  oracle.finish(begin < end ? oracle.segment_state(begin, end) : State{});
}

__global__ void count_differences(const uint8_t* a, const uint8_t* b, int64_t bytes, unsigned long long* count) {
  unsigned long long differing = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += int64_t{gridDim.x} * blockDim.x) {
    differing += a[i] != b[i] ? 1 : 0;
  }
  if (differing != 0) {
    atomicAdd(count, differing);
  }
}

__device__ uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The sum of four uniform values, standard deviation 1 before scaling.
__global__ void fill(bool bf16, uint16_t* data, int64_t elements, float deviation, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t r = mix(seed ^ mix(static_cast<uint64_t>(i)));
    float sum = 0.0F;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>((r >> (16 * part)) & 0xffff) * (1.0F / 65536.0F) - 0.5F;
    }
    const float value = sum * 1.7320508F * deviation;
    data[i] = bf16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
}

}  // namespace

cudaError_t enqueue_device_oracle(const tessera_fmha_params& p, cudaStream_t stream) {
  const tessera_kv_segment& s = p.segments[0];
  const Result<NumericPlan> planned = plan_for(Arithmetic::kHopperK16F25, p.dtype, p.head_dim_qk, p.head_dim_v);
  const bool plain = p.num_segments == 1 && p.cu_seqlens_q == nullptr && p.seqlens_q == nullptr &&
                     s.seqlens_k == nullptr && s.cu_seqlens_k == nullptr && s.page_table == nullptr &&
                     s.compress_ratio == 0 && s.q_positions == nullptr && s.mask.data == nullptr &&
                     s.indices == nullptr && p.softcap == 0.0F && p.alibi_slopes == nullptr && p.sinks == nullptr &&
                     p.output_mode == TESSERA_OUTPUT_NORMALIZED && p.chunk_end == 0;
  const int64_t rows = p.batch * p.num_heads_q * p.seqlen_q;
  if (!planned.ok() || !plain || p.head_dim_qk > kMaxDim || p.head_dim_v > kMaxDim || rows > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0) {
    return cudaSuccess;
  }
  const NumericPlan& plan = planned.value();
  const Problem problem{p.q,
                        s.k,
                        s.v,
                        p.o,
                        p.lse_natural_no_sink,
                        p.seqlen_q,
                        s.seqlen_k,
                        s.window_left,
                        s.window_right,
                        p.num_heads_q,
                        p.num_heads_q / p.num_heads_kv,
                        p.head_dim_qk,
                        p.head_dim_v,
                        plan.granule,
                        plan.chunk,
                        plan.superchunk_chunks,
                        s.causal != 0,
                        p.o_dtype == TESSERA_F32,
                        score_scale(p.softmax_scale, false),
                        plan.bias,
                        plan.lazy_threshold};
  const auto blocks = static_cast<unsigned>(rows);
  if (p.dtype == TESSERA_F16) {
    oracle_rows<F16Format><<<blocks, kThreads, 0, stream>>>(problem);
  } else {
    oracle_rows<Bf16Format><<<blocks, kThreads, 0, stream>>>(problem);
  }
  return cudaGetLastError();
}

cudaError_t enqueue_count_differences(const void* a, const void* b, int64_t bytes, unsigned long long* count,
                                      cudaStream_t stream) {
  count_differences<<<1024, 256, 0, stream>>>(static_cast<const uint8_t*>(a), static_cast<const uint8_t*>(b), bytes,
                                              count);
  return cudaGetLastError();
}

cudaError_t enqueue_fill(tessera_dtype dtype, void* data, int64_t elements, float deviation, uint64_t seed,
                         cudaStream_t stream) {
  fill<<<1024, 256, 0, stream>>>(dtype == TESSERA_BF16, static_cast<uint16_t*>(data), elements, deviation, seed);
  return cudaGetLastError();
}

}  // namespace tessera::test
