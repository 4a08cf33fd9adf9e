#include "oracle/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>
#include <thread>
#include <vector>

#include "base/host_device.h"
#include "base/numeric_types.h"
#include "contract/ceil_product.h"
#include "contract/ex2_sm90.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/mma_model.h"
#include "contract/output_rope.h"
#include "contract/tanh.h"
#include "oracle/problem.h"
#include "oracle/steps.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kClasses = 8;  // R7

// R8: the state of a row over some of its keys. Un-normalised; `empty` is "no key seen yet" (m = none).
struct State {
  bool empty = true;
  float m = 0.0F;
  float l = 0.0F;
  std::vector<float> o;  // (head_dim_v)
};

// R8: a := chain(a, b), a the earlier one.
void chain(State& a, State&& b) {
  if (b.empty) {
    return;
  }
  if (a.empty) {
    a = std::move(b);
    return;
  }
  const float m = std::max(a.m, b.m);
  const float weight_a = drop_weight(sub_rn(m, a.m));
  const float weight_b = drop_weight(sub_rn(m, b.m));
  a.l = fma_rn(a.l, weight_a, mul_rn(b.l, weight_b));
  for (size_t d = 0; d < a.o.size(); ++d) {
    a.o[d] = fma_rn(a.o[d], weight_a, mul_rn(b.o[d], weight_b));
  }
  a.m = m;
}

// Decoded operands of R1 and R6 for hopper, or widened ones for cpu-fma32.
struct Operands {
  std::vector<int16_t> significands, exponents;
  std::vector<float> widened;

  void resize(bool hopper, int64_t count) {
    const auto n = static_cast<size_t>(count);
    if (hopper) {
      significands.assign(n, 0);
      exponents.assign(n, kZeroExponent);
    } else {
      widened.assign(n, 0.0F);
    }
  }
  void set(bool hopper, tessera_dtype dtype, int64_t at, const void* data, int64_t offset) {
    if (hopper) {
      const uint16_t bits = load_bits(data, offset);
      put(at, dtype == TESSERA_F16 ? decode_operand<F16Format>(bits) : decode_operand<Bf16Format>(bits));
    } else {
      widened[static_cast<size_t>(at)] = load_element(dtype, data, offset);
    }
  }
  void set_bf16(bool hopper, int64_t at, uint16_t bits) {
    if (hopper) {
      put(at, decode_operand<Bf16Format>(bits));
    } else {
      widened[static_cast<size_t>(at)] = bf16_to_f32(bits);
    }
  }
  void put(int64_t at, DecodedOperand x) {
    significands[static_cast<size_t>(at)] = x.significand;
    exponents[static_cast<size_t>(at)] = x.exponent;
  }
  DecodedSpan decoded(int64_t at) const { return {significands.data() + at, exponents.data() + at}; }
};

// The keys of one segment as one (sequence, K/V head) sees them, in logical order. A slot is the key index that R3..R8
// cut at multiples of G, 16 and C: the index inside the segment, or the rank in the gathered list (R10).
struct Keys {
  std::vector<int64_t> index;  // [slots] key index inside the segment
  Operands k;                  // hopper: (slots, head_dim_qk rounded up to 16); cpu-fma32: (slots, head_dim_qk)
  Operands v;                  // hopper: (blocks of 16 slots, head_dim_v, 16); cpu-fma32: (slots, head_dim_v)
};

struct Problem {
  const tessera_fmha_params& params;
  NumericPlan plan;
  bool hopper;
  bool modifiers;
  float c;             // R0, R1
  int64_t q_width;     // elements of a packed Q or K row
  const Ex2Sm90* ex2;  // set for hopper
};

// R1: elements of a packed Q or K row: head dims that are no multiple of 16 are zero-filled for the k16 steps.
int64_t packed_width(bool hopper, int64_t dims) {
  return hopper ? (dims + kStepTerms - 1) / kStepTerms * kStepTerms : dims;
}

Keys pack_keys(const Problem& problem, const tessera_kv_segment& segment, int64_t b, int64_t kv_head,
               std::vector<int64_t> index, KeyRange wanted) {
  const tessera_fmha_params& params = problem.params;
  const auto slots = static_cast<int64_t>(index.size());
  const int64_t blocks = (slots + kBlockKeys - 1) / kBlockKeys;
  Keys keys;
  keys.k.resize(problem.hopper, slots * problem.q_width);
  keys.v.resize(problem.hopper, (problem.hopper ? blocks * kBlockKeys : slots) * params.head_dim_v);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t j = index[static_cast<size_t>(slot)];
    if (j < wanted.begin || j >= wanted.end) {
      continue;  // hygiene: rows out of every query token's reach are not even read
    }
    const bool dense = segment.format == TESSERA_KV_DENSE;  // R11 else
    const int64_t k_row = dense ? key_offset(segment, segment.k, b, j, kv_head) : 0;
    const int64_t v_row = dense ? key_offset(segment, segment.v, b, j, kv_head) : 0;
    for (int64_t d = 0; d < params.head_dim_qk; ++d) {
      const int64_t at = slot * problem.q_width + d;
      if (dense) {
        keys.k.set(problem.hopper, params.dtype, at, segment.k.data, k_row + d * segment.k.stride_dim);
      } else {
        keys.k.set_bf16(problem.hopper, at, fp8_row_bits(segment, b, j, d));
      }
    }
    for (int64_t d = 0; d < params.head_dim_v; ++d) {
      const int64_t at = problem.hopper ? (slot / kBlockKeys * params.head_dim_v + d) * kBlockKeys + slot % kBlockKeys
                                        : slot * params.head_dim_v + d;
      if (dense) {
        keys.v.set(problem.hopper, params.dtype, at, segment.v.data, v_row + d * segment.v.stride_dim);
      } else {
        keys.v.set_bf16(problem.hopper, at, fp8_row_bits(segment, b, j, d));
      }
    }
  }
  keys.index = std::move(index);
  return keys;
}

// One row (sequence, query token, query head) and what it may see of the segment in hand.
struct Row {
  const Problem& problem;
  int64_t b, i, head;
  Operands q;
  int64_t position = 0;          // p of R2 in this segment
  std::vector<uint8_t> visible;  // [slots]
};

// R2 for key j of the segment; the segment's length bounds j already.
bool may_see(const Row& row, const tessera_kv_segment& segment, int64_t j) {
  const int64_t p = row.position;
  if (segment.compress_ratio > 0) {
    // floor((p + 1) / r): j >= 0, so a position before the first key sees nothing whichever way the division rounds.
    if (p + 1 <= 0 || j >= (p + 1) / segment.compress_ratio) {
      return false;
    }
  } else if ((segment.causal != 0 && j > p) || (segment.window_left >= 0 && j < p - segment.window_left) ||
             (segment.window_right >= 0 && j - segment.window_right > p)) {
    return false;
  }
  return mask_allows(segment, row.b, row.head, row.i, j);
}

// R1's modifiers: softcap and ALiBi make the score natural.
float modify(const Row& row, float s, int64_t j) {
  const tessera_fmha_params& params = row.problem.params;
  float x = mul_rn(s, params.softmax_scale);
  if (params.softcap != 0.0F) {
    x = mul_rn(params.softcap, soft_tanh(div_rn(x, params.softcap)));
  }
  if (params.alibi_slopes != nullptr) {
    x = fma_rn(params.alibi_slopes[row.head], static_cast<float>(j - row.position), x);
  }
  return x;
}

// R1: natural or raw scores of the visible slots [first, end).
void compute_scores(const Row& row, const Keys& keys, int64_t first, int64_t end, float* s) {
  const Problem& problem = row.problem;
  const int64_t at = first * problem.q_width;
  const uint8_t* visible = row.visible.data() + first;
  if (problem.hopper) {
    hopper_scores(problem.params.dtype, row.q.decoded(0), keys.k.decoded(at), problem.q_width / kStepTerms, visible,
                  end - first, s);
  } else {
    fma32_scores(row.q.widened.data(), keys.k.widened.data() + at, problem.q_width, visible, end - first, s);
  }
  for (int64_t slot = first; slot < end && problem.modifiers; ++slot) {
    if (row.visible[static_cast<size_t>(slot)] != 0) {
      s[slot - first] = modify(row, s[slot - first], keys.index[static_cast<size_t>(slot)]);
    }
  }
}

// R5 and R6 for the weights p of slots [first, end) of one granule.
void accumulate_output(const Problem& problem, const Keys& keys, int64_t first, int64_t end, const float* p, float* o) {
  const int64_t dims = problem.params.head_dim_v;
  if (!problem.hopper) {
    for (int64_t slot = first; slot < end; ++slot) {
      if (p[slot - first] != 0.0F) {
        fma32_accumulate(p[slot - first], keys.v.widened.data() + slot * dims, dims, o);
      }
    }
    return;
  }
  for (int64_t block = first; block < end; block += kBlockKeys) {
    int16_t significands[kBlockKeys] = {};
    int16_t exponents[kBlockKeys];
    std::fill_n(exponents, kBlockKeys, kZeroExponent);
    bool any = false;
    for (int64_t t = 0; t < std::min<int64_t>(kBlockKeys, end - block); ++t) {
      const float weight = p[block + t - first];
      const DecodedOperand x = problem.params.dtype == TESSERA_F16 ? decode_operand<F16Format>(f32_to_f16(weight))
                                                                   : decode_operand<Bf16Format>(f32_to_bf16(weight));
      significands[t] = x.significand;
      exponents[t] = x.exponent;
      any |= x.significand != 0;
    }
    if (any) {  // keys with P = +0 are not added; fdot over none but such keys returns O, -0 as +0
      hopper_accumulate(problem.params.dtype, {significands, exponents}, keys.v.decoded(block * dims), dims, o);
    }
  }
}

// R7: class sums of one granule, whose first block starts at p[0]; entries from `count` on are masked (+0).
void granule_sums(const float* p, int64_t count, float* g) {
  for (int64_t block = 0; block < count; block += kBlockKeys) {
    for (int j = 0; j < kClasses; ++j) {
      const float low = block + j < count ? p[block + j] : 0.0F;
      const float high = block + j + kClasses < count ? p[block + j + kClasses] : 0.0F;
      const float t = add_rn(low, high);
      g[j] = block == 0 ? t : add_rn(g[j], t);
    }
  }
}

// R3..R8: the state of one chunk, slots [first, end), starting fresh. `first` is a multiple of C, hence of G and 16.
State chunk_state(const Row& row, const Keys& keys, int64_t first, int64_t end) {
  const Problem& problem = row.problem;
  const NumericPlan& plan = problem.plan;
  State state;
  state.o.assign(static_cast<size_t>(problem.params.head_dim_v), 0.0F);
  float classes[kClasses] = {};
  std::vector<float> s(static_cast<size_t>(plan.granule)), p(s.size());
  for (int64_t granule = first; granule < end; granule += plan.granule) {
    const int64_t granule_end = std::min<int64_t>(end, granule + plan.granule);
    const auto visible =
        std::span(row.visible).subspan(static_cast<size_t>(granule), static_cast<size_t>(granule_end - granule));
    if (std::ranges::none_of(visible, [](uint8_t v) { return v != 0; })) {
      continue;  // R2
    }
    compute_scores(row, keys, granule, granule_end, s.data());

    float mu = -kInfinity;  // R3
    for (size_t t = 0; t < visible.size(); ++t) {
      mu = visible[t] != 0 ? std::max(mu, s[t]) : mu;
    }
    const float u = ceil_product(mu, problem.c);
    const bool moves = state.empty || u > add_rn(state.m, plan.lazy_threshold);
    const float m = moves ? u : state.m;
    const float a = state.empty ? 0.0F : drop_weight(sub_rn(m, state.m));

    const float offset = sub_rn(plan.bias, m);  // R4
    for (size_t t = 0; t < visible.size(); ++t) {
      const float y = visible[t] != 0 ? fma_rn(s[t], problem.c, offset) : 0.0F;
      p[t] = visible[t] == 0 ? 0.0F : problem.hopper ? (*problem.ex2)(y) : soft_exp2(y);
    }

    for (float& o : state.o) {  // R6
      o = mul_rn(o, a);
    }
    accumulate_output(problem, keys, granule, granule_end, p.data(), state.o.data());

    float g[kClasses] = {};  // R7
    granule_sums(p.data(), granule_end - granule, g);
    for (int j = 0; j < kClasses; ++j) {
      classes[j] = state.empty ? g[j] : fma_rn(classes[j], a, g[j]);
    }
    state.m = m;
    state.empty = false;
  }
  state.l = add_rn(add_rn(add_rn(classes[0], classes[1]), add_rn(classes[2], classes[3])),
                   add_rn(add_rn(classes[4], classes[5]), add_rn(classes[6], classes[7])));
  return state;
}

// R8: chunks [chunk_begin, chunk_end) chained inside their superchunks, superchunks chained in order.
State segment_state(const Row& row, const Keys& keys, int64_t chunk_begin, int64_t chunk_end) {
  const NumericPlan& plan = row.problem.plan;
  const auto slots = static_cast<int64_t>(keys.index.size());
  const int64_t chunks = std::min((slots + plan.chunk - 1) / plan.chunk, chunk_end);
  State segment;
  for (int64_t chunk = chunk_begin; chunk < chunks;) {
    const int64_t super_end = std::min(chunks, (chunk / plan.superchunk_chunks + 1) * plan.superchunk_chunks);
    State superchunk;
    for (; chunk < super_end; ++chunk) {
      chain(superchunk, chunk_state(row, keys, chunk * plan.chunk, std::min(slots, (chunk + 1) * plan.chunk)));
    }
    chain(segment, std::move(superchunk));
  }
  return segment;
}

// Where one finished row goes (R9).
struct RowOutput {
  tessera_output_mode mode;
  tessera_dtype dtype;
  void* o;
  int64_t o_offset, o_stride, dims;
  float* lse;
  float* row_max;
  float* row_sum;
  OutputRopeRow rope;
};

// R9, R12: state -> row. `sink` is -Inf when there is none.
void finish(const State& state, float bias, float sink, const RowOutput& out) {
  if (out.lse != nullptr) {
    *out.lse = state.empty ? -kInfinity : mul_rn(add_rn(soft_log2(state.l), sub_rn(state.m, bias)), kLn2);
  }
  if (out.row_max != nullptr) {
    *out.row_max = state.empty ? -kInfinity : sub_rn(state.m, bias);
  }
  if (out.row_sum != nullptr) {
    *out.row_sum = state.empty ? 0.0F : state.l;
  }
  float rescale = 1.0F;
  float l = state.l;
  const float h = mul_rn(sink, kLog2E);
  const bool none = state.empty || h == kInfinity;
  if (h != -kInfinity && !none) {
    const float m = std::max(state.m, std::ceil(h));
    rescale = drop_weight(sub_rn(m, state.m));
    l = add_rn(mul_rn(l, rescale), soft_exp2(add_rn(sub_rn(h, m), bias)));
  }
  const float inverse = out.mode == TESSERA_OUTPUT_UNNORMALIZED ? 1.0F : div_rn(1.0F, l);
  std::vector<float> row(static_cast<size_t>(out.dims), 0.0F);
  for (size_t d = 0; d < row.size() && !none; ++d) {
    row[d] = mul_rn(mul_rn(state.o[d], rescale), inverse);
  }
  for (int32_t i = 0; i < out.rope.rotary_dim / 2 && !none; ++i) {
    float* const pair = &row[static_cast<size_t>(out.dims - out.rope.rotary_dim + 2 * i)];
    turn_back(pair[0], pair[1], out.rope.cos[i], out.rope.sin[i]);
  }
  for (size_t d = 0; d < row.size(); ++d) {
    store_element(out.dtype, out.o, out.o_offset + static_cast<int64_t>(d) * out.o_stride, row[d]);
  }
}

// Rows that share K/V: one block of query tokens of one sequence, for the query heads of one K/V head.
struct Task {
  int64_t b, kv_head, first, end;
};

constexpr int64_t kTaskTokens = 32;

class Worker {
 public:
  explicit Worker(const Problem& problem) : problem_(problem) {}

  void run(const Task& task) {
    const tessera_fmha_params& params = problem_.params;
    if (task.b != packed_b_ || task.kv_head != packed_head_) {
      pack(task.b, task.kv_head);
    }
    const int64_t group = params.num_heads_q / params.num_heads_kv;
    for (int64_t i = task.first; i < task.end; ++i) {
      for (int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
        run_row(task.b, i, head);
      }
    }
  }

 private:
  // Segments that are not gathered are packed once for all rows of (sequence, K/V head).
  void pack(int64_t b, int64_t kv_head) {
    keys_.assign(static_cast<size_t>(problem_.params.num_segments), Keys{});
    for (size_t s = 0; s < keys_.size(); ++s) {
      const tessera_kv_segment& segment = problem_.params.segments[s];
      if (segment.indices == nullptr) {
        std::vector<int64_t> index(static_cast<size_t>(key_length(segment, b)));
        for (size_t j = 0; j < index.size(); ++j) {
          index[j] = static_cast<int64_t>(j);
        }
        keys_[s] =
            pack_keys(problem_, segment, b, kv_head, std::move(index), keys_in_reach(problem_.params, segment, b));
      }
    }
    packed_b_ = b;
    packed_head_ = kv_head;
  }

  // R10: the visible ones of the token's indices in ascending order; -1 is no key, duplicates count as often as listed.
  Keys gather(const tessera_kv_segment& segment, const Row& row, int64_t kv_head) const {
    const int64_t token = packed_query_token(problem_.params, row.b, row.i);
    const int64_t count = segment.topk_lens != nullptr ? segment.topk_lens[token] : segment.topk;
    std::vector<int64_t> index;
    for (int64_t t = 0; t < count; ++t) {
      const int64_t j = segment.indices[token * segment.indices_stride + t];
      if (j >= 0 && may_see(row, segment, j)) {
        index.push_back(j);
      }
    }
    std::ranges::sort(index);
    return pack_keys(problem_, segment, row.b, kv_head, std::move(index), {0, key_length(segment, row.b)});
  }

  void run_row(int64_t b, int64_t i, int64_t head) {
    const tessera_fmha_params& params = problem_.params;
    Row row{problem_, b, i, head, {}, 0, {}};
    const int64_t token = query_token(params, b, i);
    row.q.resize(problem_.hopper, problem_.q_width);
    for (int64_t d = 0; d < params.head_dim_qk; ++d) {
      row.q.set(problem_.hopper, params.dtype, d, params.q.data,
                row_offset(params.q, b, token, head) + d * params.q.stride_dim);
    }

    State state;  // R10
    for (size_t s = 0; s < keys_.size(); ++s) {
      const tessera_kv_segment& segment = params.segments[s];
      row.position = query_position(params, segment, b, i);
      Keys gathered;
      if (segment.indices != nullptr) {
        gathered = gather(segment, row, packed_head_);
        row.visible.assign(gathered.index.size(), 1);
      } else {
        row.visible.resize(keys_[s].index.size());
        for (size_t j = 0; j < row.visible.size(); ++j) {
          row.visible[j] = may_see(row, segment, static_cast<int64_t>(j)) ? 1 : 0;
        }
      }
      const int64_t chunk_end = params.chunk_end == 0 ? std::numeric_limits<int64_t>::max() : params.chunk_end;
      chain(state, segment_state(row, segment.indices != nullptr ? gathered : keys_[s], params.chunk_begin, chunk_end));
    }

    const auto scalar = [&](const tessera_row_scalars& scalars) {
      return scalars.data == nullptr ? nullptr : scalars.data + scalar_offset(scalars, b, token, head);
    };
    finish(state, problem_.plan.bias, params.sinks == nullptr ? -kInfinity : params.sinks[head],
           {params.output_mode, params.o_dtype, params.o.data, row_offset(params.o, b, token, head),
            params.o.stride_dim, params.head_dim_v, scalar(params.lse_natural_no_sink), scalar(params.row_max_log2),
            scalar(params.row_sum), output_rope_row(params.o_rope, packed_query_token(params, b, i))});
  }

  const Problem& problem_;
  int64_t packed_b_ = -1;
  int64_t packed_head_ = -1;
  std::vector<Keys> keys_;
};

}  // namespace

Status oracle_fmha(Arithmetic arithmetic, const tessera_fmha_params& params, int threads) {
  TESSERA_RETURN_IF_ERROR(check_problem(params));
  const Result<NumericPlan> plan = plan_for(arithmetic, params.dtype, params.head_dim_qk, params.head_dim_v);
  if (!plan.ok()) {
    return plan.status();
  }
  const bool hopper = arithmetic == Arithmetic::kHopperK16F25;
  const Problem problem{params,
                        plan.value(),
                        hopper,
                        has_modifiers(params),
                        score_scale(params.softmax_scale, has_modifiers(params)),
                        packed_width(hopper, params.head_dim_qk),
                        hopper ? &ex2_sm90() : nullptr};
  std::vector<Task> tasks;
  for (int64_t b = 0; b < params.batch; ++b) {
    for (int64_t kv_head = 0; kv_head < params.num_heads_kv; ++kv_head) {
      const int64_t tokens = query_length(params, b);
      for (int64_t first = 0; first < tokens; first += kTaskTokens) {
        tasks.push_back({b, kv_head, first, std::min(tokens, first + kTaskTokens)});
      }
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    Worker worker(problem);
    for (size_t t = next++; t < tasks.size(); t = next++) {
      worker.run(tasks[t]);
    }
  };
  std::vector<std::jthread> helpers;
  for (size_t t = 1; t < std::min(tasks.size(), static_cast<size_t>(std::max(threads, 1))); ++t) {
    helpers.emplace_back(work);
  }
  work();
  return {};
}

Status oracle_merge(Arithmetic arithmetic, const tessera_merge_params& params) {
  TESSERA_RETURN_IF_ERROR(check_merge(params));
  const Result<NumericPlan> plan = plan_for(arithmetic, params.dtype, params.head_dim_qk, params.head_dim_v);
  if (!plan.ok()) {
    return plan.status();
  }
  const float bias = plan.value().bias;
  const auto* o_states = static_cast<const float*>(params.o_states.data);
  for (int64_t token = 0; token < params.num_rows; ++token) {
    for (int64_t head = 0; head < params.num_heads_q; ++head) {
      State merged;
      for (int64_t t = 0; t < params.num_states; ++t) {
        const auto scalar = [&](const tessera_row_scalars& s) { return s.data[scalar_offset(s, t, token, head)]; };
        const float row_max = scalar(params.row_max_log2_states);
        State state{row_max == -kInfinity, add_rn(row_max, bias), scalar(params.row_sum_states), {}};
        for (int64_t d = 0; d < params.head_dim_v && !state.empty; ++d) {
          state.o.push_back(o_states[row_offset(params.o_states, t, token, head) + d * params.o_states.stride_dim]);
        }
        chain(merged, std::move(state));
      }
      const auto target = [&](const tessera_row_scalars& s) {
        return s.data == nullptr ? nullptr : s.data + scalar_offset(s, 0, token, head);
      };
      finish(merged, bias, params.sinks == nullptr ? -kInfinity : params.sinks[head],
             {params.output_mode, params.o_dtype, params.o.data, row_offset(params.o, 0, token, head),
              params.o.stride_dim, params.head_dim_v, target(params.lse_natural_no_sink), target(params.row_max_log2),
              target(params.row_sum), output_rope_row(params.o_rope, token)});
    }
  }
  return {};
}

}  // namespace tessera
