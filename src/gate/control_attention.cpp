#include "gate/control_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/numeric_types.h"

namespace tessera {
namespace {

float element(tessera_dtype dtype, const void* data, int64_t at) {
  if (dtype == TESSERA_F32) {
    return static_cast<const float*>(data)[at];
  }
  const uint16_t bits = static_cast<const uint16_t*>(data)[at];
  return dtype == TESSERA_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// The i-th of n in the order of the sum.
template <bool kDescending>
int64_t in_order(int64_t i, int64_t n) {
  return kDescending ? n - 1 - i : i;
}

// First element of a key's row.
int64_t key_row(const tessera_kv_segment& s, const tessera_tensor& t, int64_t b, int64_t head, int64_t j) {
  const int64_t page = s.page_table[b * s.page_table_stride + j / s.page_size];
  return page * t.stride_batch + (j % s.page_size) * t.stride_token + head * t.stride_head;
}

template <bool kDescending>
void compute_row(const tessera_fmha_params& p, int64_t b, int64_t token, int64_t visible, int64_t head) {
  const tessera_kv_segment& s = p.segments[0];
  const int64_t kv_head = head / (p.num_heads_q / p.num_heads_kv);
  const int64_t q_row = token * p.q.stride_token + head * p.q.stride_head;
  float* const out = static_cast<float*>(p.o.data) + token * p.o.stride_token + head * p.o.stride_head;
  std::vector<float> weight(static_cast<size_t>(visible));
  float largest = -INFINITY;
  for (int64_t j = 0; j < visible; ++j) {
    const int64_t k_row = key_row(s, s.k, b, kv_head, j);
    float dot = 0;
    for (int64_t i = 0; i < p.head_dim_qk; ++i) {
      const int64_t d = in_order<kDescending>(i, p.head_dim_qk);
      dot += element(p.dtype, p.q.data, q_row + d) * element(p.dtype, s.k.data, k_row + d);
    }
    weight[static_cast<size_t>(j)] = dot * p.softmax_scale;
    largest = std::max(largest, dot * p.softmax_scale);
  }
  std::fill_n(out, p.head_dim_v, 0.0F);
  float sum = 0;
  for (int64_t i = 0; i < visible; ++i) {
    const int64_t j = in_order<kDescending>(i, visible);
    const float w = std::exp(weight[static_cast<size_t>(j)] - largest);
    const int64_t v_row = key_row(s, s.v, b, kv_head, j);
    sum += w;
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      out[d] += w * element(p.dtype, s.v.data, v_row + d);
    }
  }
  for (int64_t d = 0; d < p.head_dim_v && visible > 0; ++d) {
    out[d] /= sum;
  }
}

bool covers(const tessera_fmha_params& p) {
  const tessera_kv_segment& s = p.segments[0];
  return p.num_segments == 1 && p.cu_seqlens_q != nullptr && s.seqlens_k != nullptr && s.page_table != nullptr &&
         s.causal != 0 && s.window_left < 0 && s.window_right < 0 && s.mask.data == nullptr && s.indices == nullptr &&
         p.sinks == nullptr && p.softcap == 0 && p.alibi_slopes == nullptr && p.o_dtype == TESSERA_F32 &&
         p.output_mode == TESSERA_OUTPUT_NORMALIZED && p.device == TESSERA_DEVICE_CPU;
}

tessera_status refuse(tessera_error* error) {
  if (error != nullptr) {
    error->code = TESSERA_UNSUPPORTED;
    std::snprintf(error->text, sizeof(error->text),
                  "control attention: got a problem with other features; allowed packed queries, paged keys, causal");
  }
  return TESSERA_UNSUPPORTED;
}

tessera_status no_workspace(const tessera_fmha_params* params, int32_t, size_t* bytes, tessera_error* error) {
  *bytes = 0;
  return covers(*params) ? TESSERA_OK : refuse(error);
}

template <bool kDescending>
tessera_status run(const tessera_fmha_params* params, void*, size_t, const tessera_stream* stream,
                   tessera_error* error) {
  if (!covers(*params)) {
    return refuse(error);
  }
  struct Job {
    const tessera_fmha_params* p;
    std::vector<int32_t> sequence_of_token;
  } job{params, {}};
  for (int64_t b = 0; b < params->batch; ++b) {
    job.sequence_of_token.resize(static_cast<size_t>(params->cu_seqlens_q[b + 1]), static_cast<int32_t>(b));
  }
  const auto task = [](void* arg, int64_t index, int32_t) {
    const Job& j = *static_cast<Job*>(arg);
    const tessera_fmha_params& p = *j.p;
    const int64_t token = index / p.num_heads_q;
    const int64_t b = j.sequence_of_token[static_cast<size_t>(token)];
    // R2, bottom-right aligned: the last query token sees every key.
    const int64_t visible = p.segments[0].seqlens_k[b] - (p.cu_seqlens_q[b + 1] - 1 - token);
    compute_row<kDescending>(p, b, token, visible, index % p.num_heads_q);
  };
  const int64_t tasks = static_cast<int64_t>(job.sequence_of_token.size()) * params->num_heads_q;
  if (stream != nullptr && stream->executor != nullptr) {
    stream->executor->parallel_for(stream->executor->context, tasks, task, &job);
  } else {
    for (int64_t i = 0; i < tasks; ++i) {
      task(&job, i, 0);
    }
  }
  return TESSERA_OK;
}

}  // namespace

AttentionCalls control_attention_ascending() {
  return {.workspace_size = &no_workspace, .run = &run<false>};
}

AttentionCalls control_attention_descending() {
  return {.workspace_size = &no_workspace, .run = &run<true>};
}

}  // namespace tessera
