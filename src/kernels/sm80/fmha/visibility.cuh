// Lengths and rule R2 on the device: which tokens and keys there are, and which keys a row may see. Device arrays may
// hold anything: a length outside its bound is clamped, so that nothing is read out of the described tensors.
#pragma once

#include <cstdint>

#include "contract/plan.h"
#include "kernels/sm80/fmha/config.h"
#include "tessera/tessera.h"

namespace tessera::sm80 {

__device__ __forceinline__ int64_t clamp_to(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// Tokens of a sequence: the first one's index in its tensor and how many there are.
struct TokenRange {
  int32_t first;
  int32_t count;
};

__device__ __forceinline__ TokenRange token_range(const int32_t* cumulative, const int32_t* used, int64_t bound,
                                                  int64_t b) {
  int32_t first = 0;
  int64_t count = bound;
  if (cumulative != nullptr) {
    first = cumulative[b];
    count = first < 0 ? 0 : clamp_to(int64_t{cumulative[b + 1]} - first, 0, bound);
  }
  if (used != nullptr) {
    count = clamp_to(used[b], 0, count);
  }
  return {first, static_cast<int32_t>(count)};
}

__device__ __forceinline__ TokenRange query_range(const tessera_fmha_params& p, int64_t b) {
  return token_range(p.cu_seqlens_q, p.seqlens_q, p.seqlen_q, b);
}

__device__ __forceinline__ TokenRange key_range(const tessera_kv_segment& s, int64_t b) {
  return token_range(s.cu_seqlens_k, s.seqlens_k, s.seqlen_k, b);
}

// Keys [begin, end).
struct KeyInterval {
  int32_t begin;
  int32_t end;
};

// R2 without custom bits, for a query token at key position p, inside the chunk range. Both ends rise with p, and
// neighbouring positions leave no gap: every key between the first row's begin and the last row's end is seen by some
// row.
__device__ __forceinline__ KeyInterval visible_interval(const Arguments& args, const tessera_kv_segment& s,
                                                        int32_t length, int64_t p) {
  constexpr int64_t kFar = int64_t{1} << 40;  // beyond every |j - p|
  int64_t begin = 0;
  int64_t end = length;
  if (s.compress_ratio > 0) {
    // A position is the sum of two 32-bit numbers >= 0 here.
    end = p < 0 ? 0 : min(end, int64_t{static_cast<uint32_t>(p + 1) / static_cast<uint32_t>(s.compress_ratio)});
  } else {
    if (s.causal != 0) {
      end = min(end, p + 1);
    }
    if (s.window_right >= 0) {
      end = min(end, p + min(static_cast<int64_t>(s.window_right), kFar) + 1);
    }
    if (s.window_left >= 0) {
      begin = p - min(static_cast<int64_t>(s.window_left), kFar);
    }
  }
  begin = clamp_to(max(begin, args.chunk_begin * kChunkKeys), 0, length);
  end = clamp_to(min(end, args.chunk_end * kChunkKeys), begin, length);
  return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

// Key position of query token 0 (R2).
__device__ __forceinline__ int64_t first_position(const tessera_kv_segment& s, int64_t b, int32_t keys,
                                                  int32_t tokens) {
  return s.q_positions != nullptr ? int64_t{s.q_positions[b]} : int64_t{keys} - tokens;
}

// Bit 0 of one row's custom bits. Not read for a mask without data.
__device__ __forceinline__ const uint8_t* row_bits(const tessera_bit_mask& mask, int64_t b, int64_t head, int64_t i) {
  return mask.data + b * mask.stride_batch + head * mask.stride_head + i * mask.stride_row;
}

// Key of bit 0; keys before it are not affected.
__device__ __forceinline__ int first_covered_key(const tessera_bit_mask& mask, int keys) {
  return mask.num_keys < 0 || mask.num_keys > keys ? 0 : keys - static_cast<int>(mask.num_keys);
}

}  // namespace tessera::sm80
