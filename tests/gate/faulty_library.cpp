// A stand-in for libtessera.so whose attention carries a fault, for the tests of the gates. Plain fp32, online softmax
// over tiles of keys, partial states merged at the end. The environment variable TESSERA_TEST_FAULT picks at every
// call:
//
//   none                          tiles of 64 keys in ascending order, states of 512 keys
//   order: tile, group, reverse   harmless: tiles of 16; states of 96; keys from the last to the first
//   swapped_merge                 states merged from the last to the first
//   sink                          the sink is left out
//   window                        the window is one key short
//   stale_tail                    slots of the last tile beyond the length hold the previous tile's keys, and count
//   lane                          keys 3 mod 8 are missing in the row sum
//   bf16                          the accumulator is rounded to bf16 behind every tile
//   mask_edge                     the first key of a block of 64 is visible one token too early
//   nan                           the output is NaN
//   atomic                        states are merged in an order that changes from call to call
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/numeric_types.h"
#include "tessera/tessera.h"

namespace {

using tessera::bf16_to_f32;
using tessera::f16_to_f32;
using tessera::f32_to_bf16;
using tessera::f32_to_f16;

struct Behaviour {
  std::string name;
  int64_t tile = 64;
  int64_t group = 512;
  bool reverse = false;
};

Behaviour behaviour() {
  const char* const text = std::getenv("TESSERA_TEST_FAULT");
  Behaviour b{.name = text != nullptr ? text : "none"};
  if (b.name == "tile") {
    b.tile = 16;
  } else if (b.name == "group") {
    b.group = 96;
    b.tile = 32;
  } else if (b.name == "reverse") {
    b.reverse = true;
  } else if (b.name == "swapped_merge" || b.name == "atomic") {
    b.group = 32;
    b.tile = 32;
  }
  return b;
}

float element(tessera_dtype dtype, const void* data, int64_t at) {
  if (dtype == TESSERA_F32) {
    return static_cast<const float*>(data)[at];
  }
  const uint16_t bits = static_cast<const uint16_t*>(data)[at];
  return dtype == TESSERA_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void store(tessera_dtype dtype, float value, void* data, int64_t at) {
  if (dtype == TESSERA_F32) {
    static_cast<float*>(data)[at] = value;
    return;
  }
  static_cast<uint16_t*>(data)[at] = dtype == TESSERA_F16 ? f32_to_f16(value) : f32_to_bf16(value);
}

struct State {
  float m = -INFINITY;
  float l = 0;
  std::vector<float> o;
};

struct Row {
  const tessera_fmha_params& p;
  int64_t b, token, position, head;  // token: in the tensors; position: R2
  int64_t length;                    // keys of the sequence
};

int64_t key_row(const Row& r, const tessera_tensor& t, int64_t j) {
  const tessera_kv_segment& s = r.p.segments[0];
  const int64_t kv = r.head / (r.p.num_heads_q / r.p.num_heads_kv) * t.stride_head;
  if (s.page_table == nullptr) {
    return r.b * t.stride_batch + j * t.stride_token + kv;
  }
  const int64_t page = s.page_table[r.b * s.page_table_stride + j / s.page_size];
  return page * t.stride_batch + j % s.page_size * t.stride_token + kv;
}

bool visible(const Row& r, const Behaviour& how, int64_t j) {
  const tessera_kv_segment& s = r.p.segments[0];
  const int64_t early = how.name == "mask_edge" && j % 64 == 0 ? 1 : 0;
  const int64_t left = s.window_left - (how.name == "window" ? 1 : 0);
  return !(s.causal != 0 && j > r.position + early) && !(s.window_left >= 0 && j < r.position - left);
}

// Keys [begin, end) join the state; -inf for a hidden one.
void add_tile(const Row& r, const Behaviour& how, int64_t begin, int64_t end, State* s) {
  const tessera_kv_segment& g = r.p.segments[0];
  const int64_t q = (r.p.cu_seqlens_q == nullptr ? r.b * r.p.q.stride_batch : 0) + r.token * r.p.q.stride_token +
                    r.head * r.p.q.stride_head;
  std::vector<int64_t> keys;
  for (int64_t j = begin; j < end; ++j) {
    if (j < r.length && visible(r, how, j)) {
      keys.push_back(j);
    } else if (j >= r.length && how.name == "stale_tail" && j >= how.tile) {
      keys.push_back(j - how.tile);
    }
  }
  if (how.reverse) {
    std::reverse(keys.begin(), keys.end());
  }
  std::vector<float> scores;
  float m = s->m;
  for (const int64_t j : keys) {
    const int64_t k = key_row(r, g.k, j);
    float dot = 0;
    for (int64_t d = 0; d < r.p.head_dim_qk; ++d) {
      dot += element(r.p.dtype, r.p.q.data, q + d) * element(r.p.dtype, g.k.data, k + d);
    }
    dot *= r.p.softmax_scale;
    dot = r.p.softcap > 0 ? r.p.softcap * std::tanh(dot / r.p.softcap) : dot;
    scores.push_back(dot);
    m = std::max(m, dot);
  }
  if (keys.empty()) {
    return;
  }
  const float rescale = std::exp(s->m - m);
  s->l *= rescale;
  for (float& o : s->o) {
    o *= rescale;
  }
  s->m = m;
  for (size_t i = 0; i < keys.size(); ++i) {
    const float w = std::exp(scores[i] - m);
    s->l += how.name == "lane" && keys[i] % 8 == 3 ? 0.0F : w;
    const int64_t v = key_row(r, g.v, keys[i]);
    for (int64_t d = 0; d < r.p.head_dim_v; ++d) {
      s->o[static_cast<size_t>(d)] += w * element(r.p.dtype, g.v.data, v + d);
    }
  }
  for (float& o : s->o) {
    o = how.name == "bf16" ? bf16_to_f32(f32_to_bf16(o)) : o;
  }
}

void merge(const State& from, State* into) {
  const float m = std::max(from.m, into->m);
  if (m == -INFINITY) {
    return;
  }
  const float a = std::exp(into->m - m);
  const float b = std::exp(from.m - m);
  into->l = into->l * a + from.l * b;
  for (size_t d = 0; d < into->o.size(); ++d) {
    into->o[d] = into->o[d] * a + from.o[d] * b;
  }
  into->m = m;
}

void compute_row(const Row& r, const Behaviour& how, size_t turn) {
  const auto dim = static_cast<size_t>(r.p.head_dim_v);
  std::vector<State> states;
  for (int64_t begin = 0; begin < r.length; begin += how.group) {
    State s{.o = std::vector<float>(dim)};
    const int64_t end = std::min(begin + how.group, (r.length + how.tile - 1) / how.tile * how.tile);
    for (int64_t tile = begin; tile < end; tile += how.tile) {
      add_tile(r, how, tile, std::min(tile + how.tile, end), &s);
    }
    states.push_back(std::move(s));
  }
  if (how.reverse || how.name == "swapped_merge") {
    std::reverse(states.begin(), states.end());
  }
  if (how.name == "atomic" && !states.empty()) {
    std::rotate(states.begin(), states.begin() + static_cast<std::ptrdiff_t>(turn % states.size()), states.end());
  }
  State all{.o = std::vector<float>(dim)};
  for (const State& s : states) {
    merge(s, &all);
  }
  const int64_t out = (r.p.cu_seqlens_q == nullptr ? r.b * r.p.o.stride_batch : 0) + r.token * r.p.o.stride_token +
                      r.head * r.p.o.stride_head;
  float denominator = all.l;
  if (r.p.sinks != nullptr && how.name != "sink") {
    denominator += std::exp(r.p.sinks[r.head] - all.m);
  }
  if (how.name == "nan") {
    denominator = NAN;
  }
  for (size_t d = 0; d < dim; ++d) {
    store(r.p.o_dtype, all.m == -INFINITY ? 0.0F : all.o[d] / denominator, r.p.o.data, out + static_cast<int64_t>(d));
  }
  if (r.p.lse_natural_no_sink.data != nullptr) {
    const tessera_row_scalars& l = r.p.lse_natural_no_sink;
    l.data[r.b * l.stride_batch + r.token * l.stride_token + r.head * l.stride_head] = all.m + std::log(all.l);
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) tessera_status tessera_fmha_select(const tessera_fmha_params*,
                                                                          const char** kernel_name, tessera_error*) {
  *kernel_name = "test_faulty";
  return TESSERA_OK;
}

__attribute__((visibility("default"))) tessera_status tessera_fmha_workspace_size(const tessera_fmha_params*, int32_t,
                                                                                  size_t* bytes, tessera_error*) {
  *bytes = 0;
  return TESSERA_OK;
}

__attribute__((visibility("default"))) tessera_status tessera_fmha_run(const tessera_fmha_params* params, void*, size_t,
                                                                       const tessera_stream*, tessera_error*) {
  static std::atomic<size_t> calls{0};
  const size_t turn = calls.fetch_add(1);
  const Behaviour how = behaviour();
  const tessera_fmha_params& p = *params;
  const tessera_kv_segment& s = p.segments[0];
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t first = p.cu_seqlens_q != nullptr ? p.cu_seqlens_q[b] : 0;
    const int64_t tokens = p.cu_seqlens_q != nullptr ? p.cu_seqlens_q[b + 1] - first : p.seqlen_q;
    const int64_t length = s.seqlens_k != nullptr ? s.seqlens_k[b] : s.seqlen_k;
    const int64_t position0 = s.q_positions != nullptr ? s.q_positions[b] : length - tokens;
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t head = 0; head < p.num_heads_q; ++head) {
        compute_row({p, b, first + i, position0 + i, head, length}, how, turn);
      }
    }
  }
  return TESSERA_OK;
}

// A liar: it claims the contract that it breaks.
__attribute__((visibility("default"))) tessera_status tessera_fmha_contract_id(const tessera_fmha_params* params,
                                                                               char* text, size_t capacity,
                                                                               size_t* length, tessera_error*) {
  const char* const dtype = params->dtype == TESSERA_F32 ? "f32" : params->dtype == TESSERA_F16 ? "f16" : "bf16";
  *length = static_cast<size_t>(
      std::snprintf(text, capacity, "tessera-1/cpu-fma32/%s/d%d", dtype, static_cast<int>(params->head_dim_qk)));
  return TESSERA_OK;
}

__attribute__((visibility("default"))) const char* tessera_contract_version(void) {
  return "tessera-1";
}
}
