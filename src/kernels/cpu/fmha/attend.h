// The work items of an attention call, numbered as in README.md: granule steps 3 to 6, chunk, superchunk and segment
// chains, and the finished rows. Instantiated once per instruction set by fmha_<isa>.cpp.
#pragma once

#include <stdint.h>

#include "kernels/cpu/fmha/block.h"
#include "kernels/cpu/fmha/fmha.h"
#include "kernels/cpu/fmha/scores.h"
#include "kernels/cpu/fmha/softmax.h"
#include "kernels/cpu/fmha/states.h"
#include "kernels/cpu/fmha/values.h"

namespace tessera::cpu_fmha {
namespace {

// Register blocks: rows x vectors of accumulators that leave room for operands.
template <class V>
struct RegisterBlock {
  static constexpr bool kWide = V::kRegisters >= 32;
  static constexpr int kScoreRows = kWide ? 4 : 2;
  static constexpr int kValueRows = kWide ? 6 : 2;
  static constexpr int kValueVectors = kWide ? 4 : 2;
  static constexpr int kDirectScoreRows = 4;
  static constexpr int kDirectValueRows = kWide ? 4 : 2;
};

// Calls body.template operator()<n>(first) with n = rows, if n <= kMax.
template <int kMax, class Body>
inline void with_row_count(int rows, int first, const Body& body) {
  if constexpr (kMax > 0) {
    if (rows == kMax) {
      body.template operator()<kMax>(first);
    } else {
      with_row_count<kMax - 1>(rows, first, body);
    }
  }
}

// The same for groups of kMax rows and one group of the rest.
template <int kMax, class Body>
inline void for_row_groups(int rows, const Body& body) {
  int r = 0;
  for (; r + kMax <= rows; r += kMax) body.template operator()<kMax>(r);
  with_row_count<kMax - 1>(rows - r, r, body);
}

// ---- step 3: S

inline uint32_t union_of_rows(const Block& b, int first, int rows, int key_block) {
  const int stride = b.schedule->granule / 16;
  uint32_t any = 0;
  for (int r = first; r < first + rows; ++r) any |= b.visible[r * stride + key_block];
  return any;
}

// Direct. Meanwhile the V rows of the same keys are asked for.
template <class V, class E>
inline void compute_direct_scores(const Block& b, int key_block, uint32_t present) {
  const FmhaSchedule& s = *b.schedule;
  const int64_t stride_q = s.dim_qk_padded;
  const int64_t stride_s = s.granule;
  const int first = key_block * 16;
  Prefetch ahead{b.rows_at.v + first, 16, b.params->head_dim_v * static_cast<int>(sizeof(typename E::Type))};
  const auto groups = [&]<int kMaxRows, int kVectors>() {
    for_row_groups<kMaxRows>(b.rows, [&]<int kRows>(int r) {
      direct_scores<V, E, kRows, kVectors>(b.q + r * stride_q, stride_q, b.rows_at.k + first, present,
                                           b.params->head_dim_qk, ahead, b.products, b.scores + first + r * stride_s,
                                           stride_s);
      ahead.count = 0;  // once for all rows
    });
  };
  constexpr bool kWide = RegisterBlock<V>::kWide;  // room for 16 vectors of Q beside the sums
  if (kWide && b.params->head_dim_qk == 64) {
    groups.template operator()<4, kWide ? 4 : 0>();
  } else if (kWide && b.params->head_dim_qk == 128) {
    groups.template operator()<2, kWide ? 8 : 0>();
  } else {
    groups.template operator()<RegisterBlock<V>::kDirectScoreRows, 0>();
  }
}

// Packed.
template <class V, class E>
inline void compute_packed_scores(const Block& b, bool all_visible, int key_block, uint32_t present) {
  const FmhaSchedule& s = *b.schedule;
  const int dim = b.params->head_dim_qk;
  const int64_t stride_q = s.dim_qk_padded;
  const int64_t stride_s = s.granule;
  float* scores = b.scores + key_block * 16;
  float* packed = b.packed_k + static_cast<int64_t>(key_block) * dim * 16;
  pack_keys<V, E>(b.rows_at.k + key_block * 16, present, dim, packed);
  const auto groups = [&]<int kDim>() {
    for_row_groups<RegisterBlock<V>::kScoreRows>(b.rows, [&]<int kRows>(int r) {
      if (!all_visible && union_of_rows(b, r, kRows, key_block) == 0) return;  // hidden from all: S is not looked at
      constexpr bool kFullGroup = kRows == RegisterBlock<V>::kScoreRows;
      constexpr int kGroupDim = kFullGroup * kDim;  // 0: any head dim; few rows need no special copy
      packed_scores<V, kRows, kGroupDim>(b.q + r * stride_q, stride_q, packed, dim, scores + r * stride_s, stride_s);
    });
  };
  switch (dim) {
    case 64:
      return groups.template operator()<64>();
    case 96:
      return groups.template operator()<96>();
    case 128:
      return groups.template operator()<128>();
    default:
      return groups.template operator()<0>();
  }
}

// ---- steps 4 and 5: P, m, l

template <class V, bool kMasked, bool kModified>
inline void softmax_rows(const Block& b, int64_t granule_key, int begin, int end) {
  const FmhaSchedule& s = *b.schedule;
  const tessera_fmha_params& p = *b.params;
  const int stride = s.granule / 16;
  for (int r = 0; r < b.rows; ++r) {
    Modifiers modifiers{p.softmax_scale, p.softcap, 0.0f, p.alibi_slopes != nullptr};
    if (modifiers.alibi) modifiers.slope = p.alibi_slopes[b.row[r].head];
    softmax_row<V, kMasked, kModified>(b.scores + static_cast<int64_t>(r) * s.granule, b.visible + r * stride, begin,
                                       end, s.c, s.lazy_threshold, modifiers, granule_key, b.row[r].position,
                                       b.chunk.m + r, b.row_sums + r * 8, b.rescale + r, b.nonzero + r * stride);
  }
}

// ---- step 6: O

template <class V, int kRows, int kVectors, class Values>
inline void accumulate_rows(const Block& b, int r, int vector, int begin, int end, const Values& values) {
  const FmhaSchedule& s = *b.schedule;
  const int stride = s.granule / 16;
  accumulate<V, kRows, kVectors>(b.scores + static_cast<int64_t>(r) * s.granule, s.granule, b.nonzero + r * stride,
                                 stride, begin, end, values, b.rescale + r,
                                 b.chunk.o + static_cast<int64_t>(r) * s.dim_v_padded + vector * 16, s.dim_v_padded);
}

// Vectors [vector, vector_end) of O in groups of kVectors and one group each of the rest. values(first): V rows whose
// vector 0 is vector `first`.
template <class V, int kMaxRows, int kVectors, class Values>
inline void accumulate_vectors(const Block& b, int vector, int vector_end, int begin, int end, const Values& values) {
  for (; vector + kVectors <= vector_end; vector += kVectors) {
    const auto group = values(vector);
    for_row_groups<kMaxRows>(
        b.rows, [&]<int kRows>(int r) { accumulate_rows<V, kRows, kVectors>(b, r, vector, begin, end, group); });
  }
  if constexpr (kVectors > 1) {
    if (vector < vector_end) {
      accumulate_vectors<V, kMaxRows, kVectors / 2>(b, vector, vector_end, begin, end, values);
    }
  }
}

template <class V, class E>
inline void accumulate_values(const Block& b, bool direct, int begin, int end, const uint32_t* any) {
  using Registers = RegisterBlock<V>;
  const FmhaSchedule& s = *b.schedule;
  const int dim = b.params->head_dim_v;
  if (direct) {
    const int whole = dim / 16;
    // The K rows of the next granule are asked for during the first pass over the keys.
    Prefetch ahead{b.next_rows.k, b.next_count, b.params->head_dim_qk * static_cast<int>(sizeof(typename E::Type))};
    accumulate_vectors<V, Registers::kDirectValueRows, Registers::kValueVectors>(
        b, 0, whole, begin, end, [&](int first) {
          const DirectValues<V, E> values{b.rows_at.v, first * 16, ahead};
          ahead.count = 0;
          return values;
        });
    if (dim % 16 != 0) {
      const DirectTail<V, E> tail{b.rows_at.v, whole * 16, dim % 16};
      for_row_groups<Registers::kDirectValueRows>(
          b.rows, [&]<int kRows>(int r) { accumulate_rows<V, kRows, 1>(b, r, whole, begin, end, tail); });
    }
    return;
  }
  for (int k = begin; k < end; ++k) {
    pack_values<V, E>(b.rows_at.v + k * 16, any[k], k * 16, dim, s.granule, b.packed_v);
  }
  accumulate_vectors<V, Registers::kValueRows, Registers::kValueVectors>(
      b, 0, s.dim_v_padded / 16, begin, end, [&](int first) {
        return PackedValues<V>{b.packed_v + static_cast<int64_t>(first) * s.granule * 16, s.granule};
      });
}

// ---- the loops

// Keys `keys` of the granule that starts at granule_key.
template <class V, class E>
inline void run_granule(Block* b, const tessera_kv_segment& segment, int64_t granule_key, KeyRange keys) {
  const int begin = static_cast<int>((keys.begin - granule_key) / 16);
  const int end = static_cast<int>((keys.end - granule_key + 15) / 16);
  uint32_t any[kFmhaMaxGranule / 16];
  const bool all_visible = find_visible(b, segment, granule_key, begin, end, any);
  const bool direct = b->schedule->block_rows <= kFmhaDirectRows;
  enter_granule<E>(b, segment, granule_key, static_cast<int>(keys.begin - granule_key),
                   static_cast<int>(keys.end - granule_key), any, direct);
  for (int k = begin; k < end; ++k) {
    if (any[k] == 0) continue;
    direct ? compute_direct_scores<V, E>(*b, k, any[k]) : compute_packed_scores<V, E>(*b, all_visible, k, any[k]);
  }
  if (b->schedule->modifiers) {
    all_visible ? softmax_rows<V, false, true>(*b, granule_key, begin, end)
                : softmax_rows<V, true, true>(*b, granule_key, begin, end);
  } else {
    all_visible ? softmax_rows<V, false, false>(*b, granule_key, begin, end)
                : softmax_rows<V, true, false>(*b, granule_key, begin, end);
  }
  accumulate_values<V, E>(*b, direct, begin, end, any);
}

inline void set_empty(const Block& b, const FmhaState& state) {
  for (int r = 0; r < b.rows; ++r) {
    state.m[r] = negative_infinity();
    state.l[r] = 0.0f;
  }
}

template <class V>
inline void chain_block(const Block& b, const FmhaState& to, const FmhaState& from) {
  const int64_t stride = b.schedule->dim_v_padded;
  for (int r = 0; r < b.rows; ++r) {
    chain_row<V>(to.m + r, to.l + r, to.o + r * stride, from.m[r], from.l[r], from.o + r * stride,
                 b.schedule->dim_v_padded / 16);
  }
}

// A fresh state over the keys of one chunk (R8), in b->chunk.
template <class V, class E>
inline void run_chunk(Block* b, const tessera_kv_segment& segment, KeyRange keys) {
  const FmhaSchedule& s = *b->schedule;
  set_empty(*b, b->chunk);
  for (int i = 0; i < b->rows * 8; ++i) b->row_sums[i] = 0.0f;
  const int64_t values = static_cast<int64_t>(b->rows) * s.dim_v_padded;
  for (int64_t i = 0; i < values; i += 16) V::store(b->chunk.o + i, V::zero());
  for (int64_t g = keys.begin / s.granule * s.granule; g < keys.end; g += s.granule) {
    const KeyRange part{keys.begin > g ? keys.begin : g, keys.end < g + s.granule ? keys.end : g + s.granule};
    run_granule<V, E>(b, segment, g, part);
  }
  for (int r = 0; r < b->rows; ++r) b->chunk.l[r] = sum_classes(b->row_sums + r * 8);
}

// Chains chunks [chunk_begin, chunk_end) of a segment into `result`, chunk by chunk inside superchunks, superchunk by
// superchunk. `result` is empty on entry. chunk(c, state) yields chunk c
// in a state and returns it.
template <class V, class Chunk>
inline void chain_chunks(Block* b, int64_t chunk_begin, int64_t chunk_end, const FmhaState& result,
                         const Chunk& chunk) {
  const int64_t superchunk = b->schedule->superchunk_chunks;
  if (chunk_begin >= chunk_end) return;
  // The chain of a lone superchunk needs no state of its own: the empty state is the identity.
  const bool lone = chunk_begin / superchunk == (chunk_end - 1) / superchunk;
  for (int64_t c = chunk_begin; c < chunk_end;) {
    const int64_t next = (c / superchunk + 1) * superchunk;
    const int64_t end = next < chunk_end ? next : chunk_end;
    const FmhaState& state = lone ? result : b->superchunk;
    if (!lone) set_empty(*b, state);
    for (; c < end; ++c) chain_block<V>(*b, state, chunk(c));
    if (!lone) chain_block<V>(*b, result, state);
  }
}

// Chunks of a segment that a requested range and the visible keys have in common.
inline KeyRange chunks_in_range(const FmhaSchedule& s, KeyRange keys, int64_t chunk_begin, int64_t chunk_end) {
  if (keys.begin >= keys.end) return {0, 0};
  const int64_t first = keys.begin / s.chunk;
  const int64_t last = (keys.end - 1) / s.chunk + 1;
  return {first > chunk_begin ? first : chunk_begin, last < chunk_end ? last : chunk_end};
}

// All keys of a segment in chunks [chunk_begin, chunk_end), chained into `result`.
template <class V, class E>
inline void run_segment(Block* b, const tessera_kv_segment& segment, int64_t chunk_begin, int64_t chunk_end,
                        const FmhaState& result) {
  const FmhaSchedule& s = *b->schedule;
  const KeyRange keys = enter_segment(b, segment);
  const KeyRange chunks = chunks_in_range(s, keys, chunk_begin, chunk_end);
  chain_chunks<V>(b, chunks.begin, chunks.end, result, [&](int64_t c) -> const FmhaState& {
    const int64_t begin = c * s.chunk;
    const int64_t end = begin + s.chunk;
    run_chunk<V, E>(b, segment, {keys.begin > begin ? keys.begin : begin, keys.end < end ? keys.end : end});
    return b->chunk;
  });
}

// R9, or the state, of every row of the block.
template <class V>
inline void store_block(const Block& b, const FmhaState& state) {
  const FmhaSchedule& s = *b.schedule;
  const tessera_fmha_params& p = *b.params;
  const int64_t first_token = fmha_first_query_token(p, b.batch);
  const int64_t first_row = p.cu_seqlens_q != nullptr ? first_token : b.batch * p.seqlen_q;
  for (int r = 0; r < b.rows; ++r) {
    const FmhaRow& row = b.row[r];
    const float m = state.m[r];
    const float l = state.l[r];
    const float* o = state.o + static_cast<int64_t>(r) * s.dim_v_padded;
    const int64_t offset = query_offset(p, p.o, b.batch, row);
    const int64_t token = first_token + row.token;
    store_scalar(p.lse_natural_no_sink, b.batch, token, row.head, log_sum_exp(m, l));
    if (p.output_mode == TESSERA_OUTPUT_UNNORMALIZED) {
      store_state_row<V>(o, m == negative_infinity(), p.head_dim_v, static_cast<float*>(p.o.data) + offset);
      store_scalar(p.row_max_log2, b.batch, token, row.head, m);
      store_scalar(p.row_sum, b.batch, token, row.head, l);
    } else {
      finish_row<V>(m, l, o, p.sinks == nullptr ? nullptr : p.sinks + row.head,
                    output_rope_row(p.o_rope, first_row + row.token), p.head_dim_v, p.o_dtype, p.o.data, offset);
    }
  }
}

inline char* split_state(const FmhaSchedule& s, int64_t block, int64_t unit) {
  return s.workspace + s.states_offset + static_cast<size_t>(block * s.units + unit) * s.state_bytes;
}

// One unit of one segment of a split call: its state goes to the workspace.
template <class V, class E>
inline void attend_unit(Block* b, int64_t block, int64_t unit) {
  const FmhaSchedule& s = *b->schedule;
  int32_t i = 0;
  while (unit >= s.first_unit[i + 1]) ++i;
  const FmhaState state = state_at(s, split_state(s, block, unit));
  set_empty(*b, state);
  const int64_t begin = s.chunk_begin + (unit - s.first_unit[i]) * s.unit_chunks;
  const int64_t end = begin + s.unit_chunks < s.chunk_end ? begin + s.unit_chunks : s.chunk_end;
  run_segment<V, E>(b, s.params->segments[i], begin, end, state);
}

template <class V, class E>
inline void attend_item(const FmhaSchedule& s, int64_t item, char* scratch) {
  Block b;
  set_scratch(s, scratch, &b);
  const int64_t block = s.split ? item / s.units : item;
  if (!find_block(s, block, &b)) return;
  load_queries<V, E>(&b);
  if (s.split) {
    attend_unit<V, E>(&b, block, item % s.units);
    return;
  }
  set_empty(b, b.total);
  for (int32_t i = 0; i < s.params->num_segments; ++i) {
    const bool lone = s.params->num_segments == 1;
    const FmhaState& state = lone ? b.total : b.segment;
    if (!lone) set_empty(b, state);
    run_segment<V, E>(&b, s.params->segments[i], s.chunk_begin, s.chunk_end, state);
    if (!lone) chain_block<V>(b, b.total, state);
  }
  store_block<V>(b, b.total);
}

template <class V>
void attend(const FmhaSchedule& schedule, int64_t item, char* scratch) {
  switch (schedule.params->dtype) {
    case TESSERA_F32:
      return attend_item<V, F32Element<V>>(schedule, item, scratch);
    case TESSERA_F16:
      return attend_item<V, F16Element<V>>(schedule, item, scratch);
    case TESSERA_BF16:
      return attend_item<V, Bf16Element<V>>(schedule, item, scratch);
  }
}

// Chains the units of a block in the order in which an unsplit call would have met them.
template <class V>
void combine(const FmhaSchedule& s, int64_t block, char* scratch) {
  Block b;
  set_scratch(s, scratch, &b);
  if (!find_block(s, block, &b)) return;
  set_empty(b, b.total);
  for (int32_t i = 0; i < s.params->num_segments; ++i) {
    set_empty(b, b.segment);
    const int64_t units = s.first_unit[i + 1] - s.first_unit[i];
    const auto unit_state = [&](int64_t unit) { return state_at(s, split_state(s, block, s.first_unit[i] + unit)); };
    if (s.unit_chunks == 1) {
      chain_chunks<V>(&b, s.chunk_begin, s.chunk_begin + units, b.segment,
                      [&](int64_t c) { return unit_state(c - s.chunk_begin); });
    } else {
      for (int64_t unit = 0; unit < units; ++unit) chain_block<V>(b, b.segment, unit_state(unit));
    }
    chain_block<V>(b, b.total, b.segment);
  }
  store_block<V>(b, b.total);
}

// ---- tessera_fmha_merge

template <class V>
void merge(const tessera_merge_params& p, int64_t begin, int64_t end) {
  alignas(64) float merged[kFmhaMaxHeadDim];
  alignas(64) float next[kFmhaMaxHeadDim];
  const int vectors = (p.head_dim_v + 15) / 16;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t token = i / p.num_heads_q;
    const int64_t head = i % p.num_heads_q;
    float m = negative_infinity();
    float l = 0.0f;
    for (int64_t t = 0; t < p.num_states; ++t) {
      const tessera_row_scalars& max_states = p.row_max_log2_states;
      const tessera_row_scalars& sum_states = p.row_sum_states;
      const float m_t =
          max_states
              .data[t * max_states.stride_batch + token * max_states.stride_token + head * max_states.stride_head];
      if (m_t == negative_infinity()) continue;
      const float l_t =
          sum_states
              .data[t * sum_states.stride_batch + token * sum_states.stride_token + head * sum_states.stride_head];
      const float* o = static_cast<const float*>(p.o_states.data) + t * p.o_states.stride_batch +
                       token * p.o_states.stride_token + head * p.o_states.stride_head;
      for (int d = 0; d < p.head_dim_v; d += 16) {
        V::store(next + d, V::load_partial(o + d, p.head_dim_v - d < 16 ? p.head_dim_v - d : 16));
      }
      chain_row<V>(&m, &l, merged, m_t, l_t, next, vectors);
    }
    const int64_t offset = token * p.o.stride_token + head * p.o.stride_head;
    store_scalar(p.lse_natural_no_sink, 0, token, head, log_sum_exp(m, l));
    if (p.output_mode == TESSERA_OUTPUT_UNNORMALIZED) {
      store_state_row<V>(merged, m == negative_infinity(), p.head_dim_v, static_cast<float*>(p.o.data) + offset);
      store_scalar(p.row_max_log2, 0, token, head, m);
      store_scalar(p.row_sum, 0, token, head, l);
    } else {
      finish_row<V>(m, l, merged, p.sinks == nullptr ? nullptr : p.sinks + head, output_rope_row(p.o_rope, token),
                    p.head_dim_v, p.o_dtype, p.o.data, offset);
    }
  }
}

}  // namespace
}  // namespace tessera::cpu_fmha
