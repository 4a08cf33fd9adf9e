// Reading tessera_fmha_params: lengths, addresses and the checks that make every later access safe. Shared by the
// oracle and the float64 reference; nothing here rounds, and nothing here decides which key a row may see.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Everything that can be wrong with a problem, values of lengths, pages and indices included; kInvalidArgument, naming
// the field. After kOk no function below reads out of the described tensors.
Status check_problem(const tessera_fmha_params& params);

// The same for a merge.
Status check_merge(const tessera_merge_params& params);

// Query tokens of sequence b, and the first one's index in the token dimension of Q, O and the row scalars.
int64_t query_length(const tessera_fmha_params& params, int64_t b);
int64_t query_token(const tessera_fmha_params& params, int64_t b, int64_t i);

// Index of query token i of sequence b over all sequences: the row of `indices` and `topk_lens`.
int64_t packed_query_token(const tessera_fmha_params& params, int64_t b, int64_t i);

int64_t key_length(const tessera_kv_segment& segment, int64_t b);

// Key position p of query token i (R2).
int64_t query_position(const tessera_fmha_params& params, const tessera_kv_segment& segment, int64_t b, int64_t i);

// Keys [begin, end) of sequence b that lie between the first and the last that any of its query tokens may reach by
// length, causal, windows and compression (not by custom bits). Only their rows and pages are looked at.
struct KeyRange {
  int64_t begin, end;
};
KeyRange keys_in_reach(const tessera_fmha_params& params, const tessera_kv_segment& segment, int64_t b);

// Bit of the custom mask for key j of sequence b (R2); true for keys that the mask does not cover.
bool mask_allows(const tessera_kv_segment& segment, int64_t b, int64_t head, int64_t i, int64_t j);

// Elements from tensor.data to dim 0 of key j of sequence b, in the page pool if the segment is paged.
int64_t key_offset(const tessera_kv_segment& segment, const tessera_tensor& tensor, int64_t b, int64_t j,
                   int64_t kv_head);

// R11: the bf16 bits of element `dim` of key j in a segment with FP8 rows; K and V are the same row.
uint16_t fp8_row_bits(const tessera_kv_segment& segment, int64_t b, int64_t j, int64_t dim);

int64_t row_offset(const tessera_tensor& tensor, int64_t b, int64_t token, int64_t head);
int64_t scalar_offset(const tessera_row_scalars& scalars, int64_t b, int64_t token, int64_t head);

// Element `offset` of a buffer of that dtype, widened exactly; and the store, rounded to nearest even (R9).
float load_element(tessera_dtype dtype, const void* data, int64_t offset);
void store_element(tessera_dtype dtype, void* data, int64_t offset, float value);

// Raw bits of an fp16 or bf16 element.
inline uint16_t load_bits(const void* data, int64_t offset) {
  return static_cast<const uint16_t*>(data)[offset];
}

// Whether softcap or ALiBi makes the scores natural (R1).
inline bool has_modifiers(const tessera_fmha_params& params) {
  return params.softcap != 0.0F || params.alibi_slopes != nullptr;
}

}  // namespace tessera
