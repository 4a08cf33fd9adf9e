// How one attention call is cut into work items and where their memory lies. Apart from
// R0's constants and R2's key intervals, only free choices of the contract are made here (contract.md, "Free under the
// contract"): they move no bit of the result.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera {

inline constexpr int32_t kFmhaDirectRows = 8;  // up to here K and V are read in place instead of repacked
inline constexpr int32_t kFmhaMaxGranule = 128;
inline constexpr int64_t kFmhaFarKeys = int64_t{1} << 40;  // windows at least this wide are unlimited

// A state of R8 for a block of rows: m (-Inf: none), l, O (row stride `dim_v_padded` floats).
struct FmhaState {
  float* m;
  float* l;
  float* o;
};

// Byte offsets of a thread's scratch memory; each part starts on a cache line.
struct FmhaScratch {
  size_t q;             // (rows, dim_qk_padded) fp32
  size_t scores;        // (rows, granule) fp32: S, then P
  size_t packed_k;      // (granule / 16, head_dim_qk, 16) fp32, keys in lanes
  size_t packed_v;      // (dim_v_padded / 16, granule, 16) fp32
  size_t products;      // (rows, 16, 16) fp32: sums of R1 before their tree (direct rows)
  size_t row_pointers;  // (2, 2, granule) pointers: this granule and the next, K and V
  size_t visible;       // (rows, granule / 16) words: bit t of word b is key 16 b + t
  size_t nonzero;       // likewise: P != 0
  size_t row_info;      // (rows) FmhaRow
  size_t ranked;        // (topk) int32: gathered keys of a query token in ascending order (R10)
  size_t decoded;       // (granule, kFp8MaxHeadDim) bf16: FP8 rows of the granule at hand (R11)
  size_t row_sums;      // (rows, 8) fp32: l_j of R7
  size_t rescale;       // (rows) fp32: a of R3
  size_t states[4];     // chunk, superchunk, segment, total (see FmhaSchedule::state_bytes)
  size_t bytes;         // all of it
};

// One row of a block.
struct FmhaRow {
  int64_t token;     // query token of the sequence
  int64_t head;      // query head
  int64_t position;  // p of R2 in the segment at hand
  int64_t begin;     // keys [begin, end) of the segment are visible, custom bits aside; none if begin >= end
  int64_t end;
};

struct FmhaSchedule {
  const tessera_fmha_params* params;

  // numeric: R0. The bias b is 0 for cpu-fma32, so it appears nowhere.
  int32_t granule;
  int32_t chunk;
  int32_t superchunk_chunks;
  float lazy_threshold;
  float c;         // multiplies s in R3 and R4
  bool modifiers;  // softcap or ALiBi

  // free
  int32_t group;          // query heads of a K/V head
  int32_t dim_qk_padded;  // to whole vectors of 16
  int32_t dim_v_padded;
  int32_t block_rows;
  int32_t token_blocks;  // blocks of a query token where keys are gathered (a list is one token's), else 0
  int64_t row_blocks;    // blocks of a K/V head of a sequence
  int64_t blocks;        // batch * num_heads_kv * row_blocks
  FmhaScratch scratch;
  size_t state_bytes;  // of one FmhaState of block_rows rows

  // Split calls: an item is one unit (chunk or superchunk) of one segment, `units` of them to a block.
  bool split;
  int64_t unit_chunks;                           // chunks in a unit: 1 or 16
  int64_t units;                                 // over all segments
  int64_t first_unit[TESSERA_MAX_SEGMENTS + 1];  // units before segment s
  int64_t chunk_begin;                           // the requested range of chunks, clipped per segment
  int64_t chunk_end;

  char* workspace;
  size_t states_offset;  // of the split states: (blocks, units) states
};

// `workspace` may be NULL when only sizes are wanted.
FmhaSchedule make_fmha_schedule(const tessera_fmha_params& params, int32_t num_threads, void* workspace);

// The whole workspace, or SIZE_MAX.
size_t fmha_schedule_bytes(const FmhaSchedule& schedule, int32_t num_threads);

// Into ascending order. Not a template of the standard library in the kernels, because those are compiled for several
// instruction sets (simd/portable.h on the one-definition rule).
void fmha_sort_keys(int32_t* keys, int64_t count);

// ---- reading the problem (also used by the validation of src/api). In an unnamed namespace because translation units
// of several instruction sets include this file (simd/portable.h on the one-definition rule).
namespace {

inline int64_t fmha_query_length(const tessera_fmha_params& p, int64_t b) {
  if (p.seqlens_q != nullptr) return p.seqlens_q[b];
  if (p.cu_seqlens_q != nullptr) return static_cast<int64_t>(p.cu_seqlens_q[b + 1]) - p.cu_seqlens_q[b];
  return p.seqlen_q;
}

inline int64_t fmha_first_query_token(const tessera_fmha_params& p, int64_t b) {
  return p.cu_seqlens_q != nullptr ? p.cu_seqlens_q[b] : 0;
}

inline int64_t fmha_key_length(const tessera_kv_segment& s, int64_t b) {
  if (s.seqlens_k != nullptr) return s.seqlens_k[b];
  if (s.cu_seqlens_k != nullptr) return static_cast<int64_t>(s.cu_seqlens_k[b + 1]) - s.cu_seqlens_k[b];
  return s.seqlen_k;
}

// p of R2 for query token 0.
inline int64_t fmha_first_position(const tessera_fmha_params& p, const tessera_kv_segment& s, int64_t b) {
  return s.q_positions != nullptr ? s.q_positions[b] : fmha_key_length(s, b) - fmha_query_length(p, b);
}

// Row of `indices` and `topk_lens` for query token `token` of sequence b.
inline int64_t fmha_list_of(const tessera_fmha_params& p, int64_t b, int64_t token) {
  return (p.cu_seqlens_q != nullptr ? p.cu_seqlens_q[b] : b * p.seqlen_q) + token;
}

inline int64_t fmha_listed(const tessera_kv_segment& s, int64_t list) {
  return s.topk_lens != nullptr ? s.topk_lens[list] : s.topk;
}

// Keys [begin, end) that a query at key position p may see, custom bits aside (R2); none if begin >= end. Both ends
// move up with p; begin >= 0 and end <= length.
inline void fmha_visible_interval(const tessera_kv_segment& s, int64_t length, int64_t p, int64_t* begin,
                                  int64_t* end) {
  *begin = 0;
  *end = length;
  if (s.compress_ratio > 0) {
    const int64_t reach = p + 1 < 0 ? 0 : (p + 1) / s.compress_ratio;
    *end = reach < length ? reach : length;
    return;
  }
  if (s.causal != 0 && p + 1 < *end) *end = p + 1;
  if (s.window_right >= 0 && s.window_right < kFmhaFarKeys && p + s.window_right + 1 < *end) {
    *end = p + s.window_right + 1;
  }
  if (s.window_left >= 0 && s.window_left < kFmhaFarKeys && p - s.window_left > 0) *begin = p - s.window_left;
}

}  // namespace
}  // namespace tessera
