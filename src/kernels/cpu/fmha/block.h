// One block of rows at work: its rows, the keys of the granule at hand and their visibility (R2).
#pragma once

#include <stdint.h>

#include "contract/fp8_rows.h"
#include "kernels/cpu/fmha/elements.h"
#include "kernels/cpu/fmha/schedule.h"

namespace tessera::cpu_fmha {
namespace {

// Addresses of K and V rows by distance from the first key of a granule.
struct RowPointers {
  const void** k;
  const void** v;
};

// Scratch memory of the thread, typed, and where the block lies. Row r of the block is query token
// (first_row + r) / group, head (first_row + r) % group of K/V head `kv_head`.
struct Block {
  const FmhaSchedule* schedule;
  const tessera_fmha_params* params;
  int64_t batch;
  int64_t kv_head;
  int64_t first_row;
  int rows;

  float* q;
  float* scores;
  float* packed_k;
  float* packed_v;
  float* products;
  RowPointers rows_at;    // of the keys of the granule at hand
  RowPointers next_rows;  // direct rows: of the next granule, while `next_count` > 0
  int next_count;
  uint16_t* visible;
  uint16_t* nonzero;
  FmhaRow* row;
  int32_t* ranked;
  uint16_t* decoded;
  float* row_sums;
  float* rescale;
  FmhaState chunk, superchunk, segment, total;

  int64_t keys_end;  // of the segment at hand: one past the last key that some row may see

  // Keys of the segment at hand that every row sees, custom bits aside.
  int64_t common_begin;
  int64_t common_end;
};

inline FmhaState state_at(const FmhaSchedule& s, char* base) {
  FmhaState state;
  state.m = reinterpret_cast<float*>(base);
  state.l = state.m + s.block_rows;
  state.o = state.l + s.block_rows;
  return state;
}

inline void set_scratch(const FmhaSchedule& s, char* scratch, Block* b) {
  const FmhaScratch& at = s.scratch;
  b->schedule = &s;
  b->params = s.params;
  b->q = reinterpret_cast<float*>(scratch + at.q);
  b->scores = reinterpret_cast<float*>(scratch + at.scores);
  b->packed_k = reinterpret_cast<float*>(scratch + at.packed_k);
  b->packed_v = reinterpret_cast<float*>(scratch + at.packed_v);
  b->products = reinterpret_cast<float*>(scratch + at.products);
  b->rows_at.k = reinterpret_cast<const void**>(scratch + at.row_pointers);
  b->rows_at.v = b->rows_at.k + s.granule;
  b->next_rows.k = b->rows_at.v + s.granule;
  b->next_rows.v = b->next_rows.k + s.granule;
  b->visible = reinterpret_cast<uint16_t*>(scratch + at.visible);
  b->nonzero = reinterpret_cast<uint16_t*>(scratch + at.nonzero);
  b->row = reinterpret_cast<FmhaRow*>(scratch + at.row_info);
  b->ranked = reinterpret_cast<int32_t*>(scratch + at.ranked);
  b->decoded = reinterpret_cast<uint16_t*>(scratch + at.decoded);
  b->row_sums = reinterpret_cast<float*>(scratch + at.row_sums);
  b->rescale = reinterpret_cast<float*>(scratch + at.rescale);
  b->chunk = state_at(s, scratch + at.states[0]);
  b->superchunk = state_at(s, scratch + at.states[1]);
  b->segment = state_at(s, scratch + at.states[2]);
  b->total = state_at(s, scratch + at.states[3]);
}

// Finds the block of index `index` (0 <= index < schedule.blocks). The last blocks of all sequences come first: under a
// causal mask they have the most keys, and long items are best started early. False if it has no rows.
inline bool find_block(const FmhaSchedule& s, int64_t index, Block* b) {
  const tessera_fmha_params& p = *s.params;
  const int64_t pairs = p.batch * p.num_heads_kv;
  const int64_t row_block = s.row_blocks - 1 - index / pairs;
  b->batch = index % pairs / p.num_heads_kv;
  b->kv_head = index % p.num_heads_kv;
  int64_t rows = fmha_query_length(p, b->batch) * s.group;
  if (s.token_blocks == 0) {
    b->first_row = row_block * s.block_rows;
  } else {  // rows of one token only
    const int64_t token = row_block / s.token_blocks;
    b->first_row = token * s.group + row_block % s.token_blocks * s.block_rows;
    rows = rows > token * s.group ? (token + 1) * s.group : 0;
  }
  rows -= b->first_row;
  if (rows <= 0) return false;
  b->rows = static_cast<int>(rows < s.block_rows ? rows : s.block_rows);
  for (int r = 0; r < b->rows; ++r) {
    b->row[r].token = (b->first_row + r) / s.group;
    b->row[r].head = b->kv_head * s.group + (b->first_row + r) % s.group;
  }
  return true;
}

// Elements from tensor.data to dim 0 of a row of Q or O.
inline int64_t query_offset(const tessera_fmha_params& p, const tessera_tensor& t, int64_t batch, const FmhaRow& row) {
  return batch * t.stride_batch + (fmha_first_query_token(p, batch) + row.token) * t.stride_token +
         row.head * t.stride_head;
}

// Q widened to fp32: (rows, dim_qk_padded), the padding +0.
template <class V, class E>
inline void load_queries(Block* b) {
  const FmhaSchedule& s = *b->schedule;
  const tessera_fmha_params& p = *b->params;
  for (int r = 0; r < b->rows; ++r) {
    const auto* source = element_at<E>(p.q, query_offset(p, p.q, b->batch, b->row[r]));
    float* q = b->q + static_cast<int64_t>(r) * s.dim_qk_padded;
    for (int d = 0; d < p.head_dim_qk; d += 16) {
      const int left = p.head_dim_qk - d;
      V::store(q + d, left >= 16 ? E::load(source + d) : E::load_partial(source + d, left));
    }
  }
}

struct KeyRange {
  int64_t begin;
  int64_t end;
};

// R10: the listed keys of the block's token that R2 lets it see go to `ranked`, in ascending order; their ranks are the
// keys that all rows see.
inline KeyRange enter_gathered(Block* b, const tessera_kv_segment& segment) {
  const int64_t token = b->row[0].token;
  const int64_t position = fmha_first_position(*b->params, segment, b->batch) + token;
  int64_t begin = 0;
  int64_t end = 0;
  fmha_visible_interval(segment, fmha_key_length(segment, b->batch), position, &begin, &end);
  const int64_t list = fmha_list_of(*b->params, b->batch, token);
  const int32_t* indices = segment.indices + list * segment.indices_stride;
  int64_t count = 0;
  for (int64_t t = 0; t < fmha_listed(segment, list); ++t) {
    const int32_t j = indices[t];
    b->ranked[count] = j;
    count += static_cast<int64_t>(j >= begin && j < end);
  }
  fmha_sort_keys(b->ranked, count);
  for (int r = 0; r < b->rows; ++r) {
    b->row[r].position = position;
    b->row[r].begin = 0;
    b->row[r].end = count;
  }
  b->common_begin = 0;
  b->common_end = b->keys_end = count;
  return {0, count};
}

// Positions and visible intervals of all rows in a segment; returns the keys that some row may see.
inline KeyRange enter_segment(Block* b, const tessera_kv_segment& segment) {
  b->next_count = 0;
  if (segment.indices != nullptr) return enter_gathered(b, segment);
  const int64_t length = fmha_key_length(segment, b->batch);
  const int64_t first_position = fmha_first_position(*b->params, segment, b->batch);
  KeyRange range{INT64_MAX, 0};
  b->common_begin = 0;
  b->common_end = INT64_MAX;
  for (int r = 0; r < b->rows; ++r) {
    FmhaRow& row = b->row[r];
    row.position = first_position + row.token;
    fmha_visible_interval(segment, length, row.position, &row.begin, &row.end);
    b->common_begin = row.begin > b->common_begin ? row.begin : b->common_begin;
    b->common_end = row.end < b->common_end ? row.end : b->common_end;
    if (row.begin >= row.end) continue;
    range.begin = row.begin < range.begin ? row.begin : range.begin;
    range.end = row.end > range.end ? row.end : range.end;
  }
  if (range.begin >= range.end) return {0, 0};
  b->keys_end = range.end;
  return range;
}

// Bits t of keys `first + t`, t < 16, that lie in [begin, end).
inline uint32_t interval_bits(int64_t first, int64_t begin, int64_t end) {
  const int64_t lo = begin > first ? begin - first : 0;
  const int64_t hi = end - first < 16 ? end - first : 16;
  if (lo >= hi) return 0;
  return (0xffffu >> (16 - hi)) & (0xffffu << lo) & 0xffffu;
}

// Custom bits of keys `first + t`; keys before the covered ones are visible. Reads no byte beyond bit num_keys - 1.
inline uint32_t custom_bits(const uint8_t* bits, int64_t num_keys, int64_t covered_begin, int64_t first) {
  uint32_t word = 0;
  for (int t = 0; t < 16; ++t) {
    const int64_t j = first + t - covered_begin;
    const bool set = j < 0 || (j < num_keys && (bits[j >> 3] >> (j & 7) & 1) != 0);
    word |= static_cast<uint32_t>(set) << t;
  }
  return word;
}

// Fills `visible` for 16-key blocks [block_begin, block_end) of the granule at `granule_key`; any[b] is the union over
// the rows. Returns whether every row sees every key of those blocks; `visible` may then be left as it was.
inline bool find_visible(Block* b, const tessera_kv_segment& segment, int64_t granule_key, int block_begin,
                         int block_end, uint32_t* any) {
  const int stride = b->schedule->granule / 16;
  const tessera_bit_mask& mask = segment.mask;
  if (mask.data == nullptr && b->common_begin <= granule_key + block_begin * 16 &&
      b->common_end >= granule_key + block_end * 16) {
    for (int k = block_begin; k < block_end; ++k) any[k] = 0xffffu;
    return true;
  }
  const int64_t length = fmha_key_length(segment, b->batch);
  const int64_t num_keys = mask.num_keys < 0 ? length : mask.num_keys;
  const int64_t covered_begin = num_keys < length ? length - num_keys : 0;
  for (int k = block_begin; k < block_end; ++k) any[k] = 0;
  uint32_t all = 0xffffu;
  for (int r = 0; r < b->rows; ++r) {
    const FmhaRow& row = b->row[r];
    const uint8_t* bits = mask.data == nullptr ? nullptr
                                               : mask.data + b->batch * mask.stride_batch +
                                                     row.head * mask.stride_head + row.token * mask.stride_row;
    for (int k = block_begin; k < block_end; ++k) {
      const int64_t first = granule_key + k * 16;
      uint32_t word = interval_bits(first, row.begin, row.end);
      if (bits != nullptr && word != 0) word &= custom_bits(bits, num_keys, covered_begin, first);
      b->visible[r * stride + k] = static_cast<uint16_t>(word);
      any[k] |= word;
      all &= word;
    }
  }
  return all == 0xffffu;
}

// Where the row of key j is: batch or page, and token or slot in it.
struct KeyPlace {
  int64_t outer;
  int64_t token;
};

inline KeyPlace place_of(const Block& b, const tessera_kv_segment& segment, int64_t j) {
  if (segment.page_table == nullptr) {
    return {b.batch, j + (segment.cu_seqlens_k != nullptr ? segment.cu_seqlens_k[b.batch] : 0)};
  }
  return {segment.page_table[b.batch * segment.page_table_stride + j / segment.page_size], j % segment.page_size};
}

// R11: bf16 values of the rows of keys [begin, end), counted from granule_key, that are in `present`, as K and V rows.
inline void decode_rows(const Block& b, const tessera_kv_segment& segment, int64_t granule_key, int begin, int end,
                        const uint32_t* present) {
  const Fp8Format format = fp8_format(segment.format);
  const auto* const data = static_cast<const uint8_t*>(segment.k.data);
  for (int t = begin; t < end; ++t) {
    uint16_t* const row = b.decoded + static_cast<int64_t>(t) * kFp8MaxHeadDim;
    b.rows_at.k[t] = b.rows_at.v[t] = row;
    if ((present[t / 16] >> (t % 16) & 1u) == 0) continue;
    const int64_t j = segment.indices != nullptr ? b.ranked[granule_key + t] : granule_key + t;
    const KeyPlace place = place_of(b, segment, j);
    const uint8_t* const page = data + place.outer * segment.k.stride_batch;
    const uint8_t* const codes = page + place.token * segment.k.stride_token;
    const uint8_t* scales = codes + format.coded_dims;
    const uint8_t* values = scales + format.head_dim_v / format.tile_dims * 4;
    if (format.footer_bytes > 0) {
      values = scales;
      scales = page + segment.page_size * format.row_bytes + place.token * format.footer_bytes;
    }
    for (int tile = 0; tile * format.tile_dims < format.coded_dims; ++tile) {
      float scale = 0.0f;
      if (format.footer_bytes > 0) {
        scale = ue8m0_to_f32(scales[tile]);
      } else {
        __builtin_memcpy(&scale, scales + tile * 4, 4);
      }
      const int first = tile * format.tile_dims;
      for (int d = first; d < first + format.tile_dims; ++d) row[d] = fp8_to_bf16(codes[d], scale);
    }
    __builtin_memcpy(row + format.coded_dims, values,
                     static_cast<size_t>(format.head_dim_qk - format.coded_dims) * sizeof(uint16_t));
  }
}

// Addresses of the rows of keys [begin, end), counted from granule_key.
template <class E>
inline void find_rows(const Block& b, const tessera_kv_segment& segment, int64_t granule_key, int begin, int end,
                      const RowPointers& rows) {
  const tessera_tensor& k = segment.k;
  const tessera_tensor& v = segment.v;
  int64_t k_base = b.kv_head * k.stride_head;
  int64_t v_base = b.kv_head * v.stride_head;
  if (segment.indices != nullptr) {
    for (int t = begin; t < end; ++t) {
      const KeyPlace place = place_of(b, segment, b.ranked[granule_key + t]);
      rows.k[t] = element_at<E>(k, k_base + place.outer * k.stride_batch + place.token * k.stride_token);
      rows.v[t] = element_at<E>(v, v_base + place.outer * v.stride_batch + place.token * v.stride_token);
    }
    return;
  }
  if (segment.page_table == nullptr) {
    const int64_t first = segment.cu_seqlens_k != nullptr ? segment.cu_seqlens_k[b.batch] : 0;
    k_base += b.batch * k.stride_batch + first * k.stride_token;
    v_base += b.batch * v.stride_batch + first * v.stride_token;
    for (int t = begin; t < end; ++t) {
      rows.k[t] = element_at<E>(k, k_base + (granule_key + t) * k.stride_token);
      rows.v[t] = element_at<E>(v, v_base + (granule_key + t) * v.stride_token);
    }
    return;
  }
  const int32_t* pages = segment.page_table + b.batch * segment.page_table_stride;
  int64_t index = (granule_key + begin) / segment.page_size;
  int64_t slot = (granule_key + begin) % segment.page_size;
  for (int t = begin; t < end; ++index, slot = 0) {
    const int64_t page = pages[index];
    for (; slot < segment.page_size && t < end; ++slot, ++t) {
      rows.k[t] = element_at<E>(k, k_base + page * k.stride_batch + slot * k.stride_token);
      rows.v[t] = element_at<E>(v, v_base + page * v.stride_batch + slot * v.stride_token);
    }
  }
}

// Rows of this granule's keys and, for prefetching, of the next granule's. Granules of a segment follow each other.
// `present` has the keys that some row sees.
template <class E>
inline void enter_granule(Block* b, const tessera_kv_segment& segment, int64_t granule_key, int begin, int end,
                          const uint32_t* present, bool prefetch) {
  if (segment.format != TESSERA_KV_DENSE) return decode_rows(*b, segment, granule_key, begin, end, present);
  if (b->next_count > 0) {
    const RowPointers old = b->rows_at;
    b->rows_at = b->next_rows;
    b->next_rows = old;
  } else {
    find_rows<E>(*b, segment, granule_key, begin, end, b->rows_at);
  }
  const int64_t next = granule_key + b->schedule->granule;
  const int64_t left = b->keys_end - next;
  b->next_count = static_cast<int>(left < b->schedule->granule ? left : b->schedule->granule);
  if (!prefetch || left <= 0) b->next_count = 0;
  if (b->next_count > 0) find_rows<E>(*b, segment, next, 0, b->next_count, b->next_rows);
}

}  // namespace
}  // namespace tessera::cpu_fmha
