// Gathered keys (R10) as pages: what a query token sees of its list, sorted, is a page table with pages of one key.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::sm90 {

inline constexpr int kMaxGathered = 8192;  // entries of a list: they are sorted in shared memory

// The lists of one segment, one for each of batch * seqlen_q tokens, and where the rows that they name lie.
struct GatheredKeys {
  const int32_t* indices;  // topk of them, or topk_lens[token] if that is not null, from token * indices_stride on
  int64_t indices_stride;
  const int32_t* topk_lens;
  int topk;
  int64_t batch, seqlen_q;
  // R2, as in DecodeProblem; windows up to 2^40.
  int64_t seqlen_k;
  const int32_t* seqlens_k;
  bool causal;
  int64_t window_left, window_right;
  int32_t compress_ratio;
  const int32_t* q_positions;
  // Key j of sequence b is row b * rows + j, or of pages page_table[b * page_table_stride + j / page_size] * rows +
  // j % page_size. Keys of pages that the pool does not have are none.
  const int32_t* page_table;
  int64_t page_table_stride, num_pages;
  int page_size;
  int64_t rows;
  // Written: the rows of a token's visible keys by ascending key, from token * topk on, and how many there are.
  int32_t* sorted;
  int32_t* counts;
};

cudaError_t launch_sort_gathered(const GatheredKeys& keys, cudaStream_t stream);

}  // namespace tessera::sm90
