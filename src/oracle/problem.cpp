#include "oracle/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/numeric_types.h"
#include "contract/fp8_rows.h"
#include "contract/plan.h"

namespace tessera {
namespace {

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}

constexpr int64_t kLargestWindow = int64_t{1} << 62;  // keeps position minus window inside 64 bits

int64_t round_up_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

// Cumulative lengths start at or above 0 and never fall; used lengths stay inside [0, bound]. The fields are
// <prefix>seqlen_<side>, <prefix>seqlens_<side> and <prefix>cu_seqlens_<side>.
Status check_lengths(const std::string& prefix, char side, int64_t batch, int64_t bound, const int32_t* cu,
                     const int32_t* used) {
  if (bound < 0) {
    return invalid("{}seqlen_{}: got {}; allowed >= 0", prefix, side, bound);
  }
  for (int64_t b = 0; b < batch; ++b) {
    if (cu != nullptr && (cu[b] < 0 || cu[b + 1] < cu[b])) {
      return invalid("{}cu_seqlens_{}[{}]: got {} then {}; allowed ascending values >= 0", prefix, side, b, cu[b],
                     cu[b + 1]);
    }
    const int64_t limit = cu != nullptr ? int64_t{cu[b + 1]} - cu[b] : bound;
    if (used != nullptr && (used[b] < 0 || used[b] > limit)) {
      return invalid("{}seqlens_{}[{}]: got {}; allowed 0 to {}", prefix, side, b, used[b], limit);
    }
  }
  return {};
}

Status check_page(const tessera_kv_segment& segment, int s, int64_t b, int64_t page) {
  const int32_t entry = segment.page_table[b * segment.page_table_stride + page];
  if (entry < 0 || entry >= segment.num_pages) {
    return invalid("segments[{}].page_table of sequence {}, page {}: got {}; allowed 0 to {}", s, b, page, entry,
                   segment.num_pages - 1);
  }
  return {};
}

Status check_pages(const tessera_fmha_params& params, const tessera_kv_segment& segment, int s) {
  for (int64_t b = 0; b < params.batch; ++b) {
    const KeyRange reach = keys_in_reach(params, segment, b);
    const int64_t end_page = reach.begin < reach.end ? round_up_div(reach.end, segment.page_size) : 0;
    for (int64_t page = reach.begin / segment.page_size; page < end_page; ++page) {
      TESSERA_RETURN_IF_ERROR(check_page(segment, s, b, page));
    }
  }
  return {};
}

Status check_indices(const tessera_fmha_params& params, const tessera_kv_segment& segment, int s) {
  if (segment.topk < 0) {
    return invalid("segments[{}].topk: got {}; allowed >= 0", s, segment.topk);
  }
  for (int64_t b = 0; b < params.batch; ++b) {
    const int64_t length = key_length(segment, b);
    const KeyRange reach = keys_in_reach(params, segment, b);
    for (int64_t i = 0; i < query_length(params, b); ++i) {
      const int64_t token = packed_query_token(params, b, i);
      const int64_t count = segment.topk_lens != nullptr ? segment.topk_lens[token] : segment.topk;
      if (count < 0 || count > segment.topk) {
        return invalid("segments[{}].topk_lens[{}]: got {}; allowed 0 to topk = {}", s, token, count, segment.topk);
      }
      for (int64_t t = 0; t < count; ++t) {
        const int32_t j = segment.indices[token * segment.indices_stride + t];
        if (j < -1 || j >= length) {
          return invalid("segments[{}].indices of token {}, entry {}: got {}; allowed -1 to {}", s, token, t, j,
                         length - 1);
        }
        if (segment.page_table != nullptr && j >= reach.begin && j < reach.end) {
          TESSERA_RETURN_IF_ERROR(check_page(segment, s, b, j / segment.page_size));
        }
      }
    }
  }
  return {};
}

// R11: what a segment with FP8 rows has to be.
Status check_format(const tessera_fmha_params& params, const tessera_kv_segment& segment, int s) {
  if (segment.format == TESSERA_KV_DENSE) {
    return {};
  }
  if (segment.format != TESSERA_KV_FP8_V32_656 && segment.format != TESSERA_KV_FP8_V4_584) {
    return invalid("segments[{}].format: got {}; allowed the formats of tessera_kv_format", s,
                   static_cast<int>(segment.format));
  }
  const bool v4 = segment.format == TESSERA_KV_FP8_V4_584;
  const int32_t dims = v4 ? 512 : 576;
  if (params.dtype != TESSERA_BF16 || params.head_dim_qk != dims || params.head_dim_v != 512 ||
      params.num_heads_kv != 1) {
    return invalid(
        "segments[{}].format: got FP8 rows with dtype {}, head dims {}, {} and {} K/V heads; allowed bf16, "
        "{}, 512 and one",
        s, dtype_name(params.dtype), params.head_dim_qk, params.head_dim_v, params.num_heads_kv, dims);
  }
  if (v4 && segment.page_table == nullptr && segment.seqlen_k > 0) {
    return invalid("segments[{}].page_table: got NULL; allowed a table, since the scales lie behind a page's rows", s);
  }
  return {};
}

Status check_segment(const tessera_fmha_params& params, int s) {
  const tessera_kv_segment& segment = params.segments[s];
  TESSERA_RETURN_IF_ERROR(check_format(params, segment, s));
  if (segment.window_left < -1 || segment.window_right < -1 || segment.window_left > kLargestWindow ||
      segment.window_right > kLargestWindow || segment.compress_ratio < 0) {
    return invalid("segments[{}]: got window_left {}, window_right {}, compress_ratio {}; allowed -1 to 2^62 and >= 0",
                   s, segment.window_left, segment.window_right, segment.compress_ratio);
  }
  TESSERA_RETURN_IF_ERROR(check_lengths(fmt::format("segments[{}].", s), 'k', params.batch, segment.seqlen_k,
                                        segment.cu_seqlens_k, segment.seqlens_k));
  bool any_key = false;
  bool any_query = false;
  for (int64_t b = 0; b < params.batch; ++b) {
    any_key = any_key || key_length(segment, b) > 0;
    any_query = any_query || query_length(params, b) > 0;
  }
  const bool no_values = segment.v.data == nullptr && segment.format == TESSERA_KV_DENSE;
  if (any_key && any_query && (segment.k.data == nullptr || no_values)) {
    return invalid("segments[{}].k.data or v.data: got NULL; allowed a tensor, since there are keys", s);
  }
  if (segment.page_table != nullptr) {
    if (segment.page_size < 1 || segment.num_pages < 0) {
      return invalid("segments[{}]: got page_size {}, num_pages {}; allowed >= 1, >= 0", s, segment.page_size,
                     segment.num_pages);
    }
    if (segment.indices == nullptr) {
      TESSERA_RETURN_IF_ERROR(check_pages(params, segment, s));
    }
  }
  return segment.indices != nullptr ? check_indices(params, segment, s) : Status{};
}

// Split-KV ranges are what the chain of R8 itself would merge.
Status check_chunk_range(const tessera_fmha_params& params) {
  const int64_t begin = params.chunk_begin;
  const int64_t end = params.chunk_end;
  if (begin == 0 && end == 0) {
    return {};
  }
  if (params.output_mode != TESSERA_OUTPUT_UNNORMALIZED || params.num_segments != 1) {
    return invalid("chunk_begin, chunk_end: got [{}, {}); allowed only un-normalised with one segment", begin, end);
  }
  const int64_t superchunk = begin / kSuperchunkChunks;
  const bool one_chunk = end == begin + 1;
  const bool superchunk_prefix = begin % kSuperchunkChunks == 0 && end <= (superchunk + 1) * kSuperchunkChunks;
  const int64_t all = (params.segments[0].seqlen_k + kChunkKeys - 1) / kChunkKeys;
  const bool superchunks = begin == 0 && (end % kSuperchunkChunks == 0 || end >= all);
  if (begin < 0 || end <= begin || !(one_chunk || superchunk_prefix || superchunks)) {
    return invalid(
        "chunk_begin, chunk_end: got [{}, {}); allowed one chunk, a prefix of a superchunk of {} chunks, or a prefix "
        "of "
        "all superchunks",
        begin, end, kSuperchunkChunks);
  }
  return {};
}

Status check_outputs(tessera_dtype dtype, tessera_dtype o_dtype, tessera_output_mode mode, const float* sinks,
                     int32_t num_heads_q) {
  if (mode != TESSERA_OUTPUT_NORMALIZED && mode != TESSERA_OUTPUT_UNNORMALIZED) {
    return invalid("output_mode: got {}; allowed TESSERA_OUTPUT_NORMALIZED, TESSERA_OUTPUT_UNNORMALIZED",
                   static_cast<int>(mode));
  }
  if (o_dtype != TESSERA_F32 && (o_dtype != dtype || mode == TESSERA_OUTPUT_UNNORMALIZED)) {
    return invalid("o_dtype: got {}; allowed f32{}", dtype_name(o_dtype),
                   mode == TESSERA_OUTPUT_UNNORMALIZED ? " for a state" : " or the dtype of Q, K, V");
  }
  if (sinks != nullptr && mode == TESSERA_OUTPUT_UNNORMALIZED) {
    return invalid("sinks: got an array in un-normalised mode; allowed NULL; pass them to the merge");
  }
  for (int32_t h = 0; sinks != nullptr && h < num_heads_q; ++h) {
    if (std::isnan(sinks[h])) {
      return invalid("sinks[{}]: got NaN; allowed any number or infinity", h);
    }
  }
  return {};
}

Status check_scalars(const tessera_fmha_params& params) {
  if (!(params.softmax_scale > 0.0F) || !std::isfinite(params.softmax_scale)) {
    return invalid("softmax_scale: got {}; allowed finite values > 0", params.softmax_scale);
  }
  if (!(params.softcap >= 0.0F) || !std::isfinite(params.softcap)) {
    return invalid("softcap: got {}; allowed 0 (off) or finite values > 0", params.softcap);
  }
  for (int32_t h = 0; params.alibi_slopes != nullptr && h < params.num_heads_q; ++h) {
    if (!std::isfinite(params.alibi_slopes[h])) {
      return invalid("alibi_slopes[{}]: got {}; allowed finite values", h, params.alibi_slopes[h]);
    }
  }
  return {};
}

}  // namespace

Status check_problem(const tessera_fmha_params& params) {
  if (params.struct_size != sizeof(tessera_fmha_params)) {
    return invalid("struct_size: got {}; allowed {}", params.struct_size, sizeof(tessera_fmha_params));
  }
  const Result<NumericPlan> plan = plan_for(Arithmetic::kCpuFma32, params.dtype, params.head_dim_qk, params.head_dim_v);
  if (!plan.ok()) {
    return plan.status();
  }
  if (params.num_heads_q < 1 || params.num_heads_kv < 1 || params.num_heads_q % params.num_heads_kv != 0) {
    return invalid("num_heads_q, num_heads_kv: got {}, {}; allowed >= 1, the second dividing the first",
                   params.num_heads_q, params.num_heads_kv);
  }
  if (params.batch < 0) {
    return invalid("batch: got {}; allowed >= 0", params.batch);
  }
  if (params.num_segments < 1 || params.num_segments > TESSERA_MAX_SEGMENTS) {
    return invalid("num_segments: got {}; allowed 1 to {}", params.num_segments,
                   static_cast<int>(TESSERA_MAX_SEGMENTS));
  }
  TESSERA_RETURN_IF_ERROR(check_scalars(params));
  TESSERA_RETURN_IF_ERROR(
      check_outputs(params.dtype, params.o_dtype, params.output_mode, params.sinks, params.num_heads_q));
  TESSERA_RETURN_IF_ERROR(check_chunk_range(params));
  TESSERA_RETURN_IF_ERROR(check_lengths("", 'q', params.batch, params.seqlen_q, params.cu_seqlens_q, params.seqlens_q));
  bool any_query = false;
  for (int64_t b = 0; b < params.batch; ++b) {
    any_query = any_query || query_length(params, b) > 0;
  }
  if (any_query && (params.q.data == nullptr || params.o.data == nullptr)) {
    return invalid("q.data or o.data: got NULL; allowed a tensor, since there are query tokens");
  }
  for (int s = 0; s < params.num_segments; ++s) {
    TESSERA_RETURN_IF_ERROR(check_segment(params, s));
  }
  return {};
}

Status check_merge(const tessera_merge_params& params) {
  if (params.struct_size != sizeof(tessera_merge_params)) {
    return invalid("struct_size: got {}; allowed {}", params.struct_size, sizeof(tessera_merge_params));
  }
  if (params.num_heads_q < 1 || params.num_rows < 0 || params.num_states < 0) {
    return invalid("num_heads_q, num_rows, num_states: got {}, {}, {}; allowed >= 1, >= 0, >= 0", params.num_heads_q,
                   params.num_rows, params.num_states);
  }
  TESSERA_RETURN_IF_ERROR(
      check_outputs(params.dtype, params.o_dtype, params.output_mode, params.sinks, params.num_heads_q));
  const bool states = params.o_states.data != nullptr && params.row_max_log2_states.data != nullptr &&
                      params.row_sum_states.data != nullptr;
  if (params.num_rows > 0 && (params.o.data == nullptr || (params.num_states > 0 && !states))) {
    return invalid("o, o_states, row_max_log2_states, row_sum_states: got NULL; allowed tensors, since there are rows");
  }
  return {};
}

int64_t query_length(const tessera_fmha_params& params, int64_t b) {
  if (params.seqlens_q != nullptr) {
    return params.seqlens_q[b];
  }
  return params.cu_seqlens_q != nullptr ? int64_t{params.cu_seqlens_q[b + 1]} - params.cu_seqlens_q[b]
                                        : params.seqlen_q;
}

int64_t query_token(const tessera_fmha_params& params, int64_t b, int64_t i) {
  return (params.cu_seqlens_q != nullptr ? params.cu_seqlens_q[b] : 0) + i;
}

int64_t packed_query_token(const tessera_fmha_params& params, int64_t b, int64_t i) {
  return (params.cu_seqlens_q != nullptr ? params.cu_seqlens_q[b] : b * params.seqlen_q) + i;
}

int64_t key_length(const tessera_kv_segment& segment, int64_t b) {
  if (segment.seqlens_k != nullptr) {
    return segment.seqlens_k[b];
  }
  return segment.cu_seqlens_k != nullptr ? int64_t{segment.cu_seqlens_k[b + 1]} - segment.cu_seqlens_k[b]
                                         : segment.seqlen_k;
}

int64_t query_position(const tessera_fmha_params& params, const tessera_kv_segment& segment, int64_t b, int64_t i) {
  const int64_t first =
      segment.q_positions != nullptr ? segment.q_positions[b] : key_length(segment, b) - query_length(params, b);
  return first + i;
}

KeyRange keys_in_reach(const tessera_fmha_params& params, const tessera_kv_segment& segment, int64_t b) {
  const int64_t length = key_length(segment, b);
  const int64_t tokens = query_length(params, b);
  if (tokens == 0) {
    return {0, 0};
  }
  const int64_t first = query_position(params, segment, b, 0);
  const int64_t last = first + tokens - 1;
  int64_t begin = 0;
  int64_t end = length;
  if (segment.compress_ratio > 0) {
    end = last < 0 ? 0 : std::min(end, (last + 1) / segment.compress_ratio);
  } else {
    begin = segment.window_left >= 0 ? std::clamp<int64_t>(first - segment.window_left, 0, length) : 0;
    end = segment.window_right >= 0 && segment.window_right < length - last ? last + segment.window_right + 1 : end;
    end = segment.causal != 0 ? std::min(end, last + 1) : end;
  }
  return {begin, std::clamp<int64_t>(end, begin, length)};
}

bool mask_allows(const tessera_kv_segment& segment, int64_t b, int64_t head, int64_t i, int64_t j) {
  const tessera_bit_mask& mask = segment.mask;
  if (mask.data == nullptr) {
    return true;
  }
  const int64_t length = key_length(segment, b);
  const int64_t first = mask.num_keys < 0 ? 0 : std::max<int64_t>(0, length - mask.num_keys);
  if (j < first) {
    return true;
  }
  const int64_t bit = j - first;
  const uint8_t byte = mask.data[b * mask.stride_batch + head * mask.stride_head + i * mask.stride_row + (bit >> 3)];
  return ((byte >> (bit & 7)) & 1) != 0;
}

int64_t key_offset(const tessera_kv_segment& segment, const tessera_tensor& tensor, int64_t b, int64_t j,
                   int64_t kv_head) {
  int64_t outer = b;
  int64_t token = j + (segment.cu_seqlens_k != nullptr ? segment.cu_seqlens_k[b] : 0);
  if (segment.page_table != nullptr) {
    outer = segment.page_table[b * segment.page_table_stride + j / segment.page_size];
    token = j % segment.page_size;
  }
  return outer * tensor.stride_batch + token * tensor.stride_token + kv_head * tensor.stride_head;
}

uint16_t fp8_row_bits(const tessera_kv_segment& segment, int64_t b, int64_t j, int64_t dim) {
  const auto* row = static_cast<const uint8_t*>(segment.k.data) + key_offset(segment, segment.k, b, j, 0);
  if (segment.format == TESSERA_KV_FP8_V32_656) {  // 512 codes, 4 fp32 scales, 64 bf16
    if (dim >= 512) {
      uint16_t bits;
      std::memcpy(&bits, row + 528 + 2 * (dim - 512), sizeof bits);
      return bits;
    }
    float scale;
    std::memcpy(&scale, row + 512 + 4 * (dim / 128), sizeof scale);
    return fp8_to_bf16(row[dim], scale);
  }
  if (dim >= 448) {  // 448 codes, 64 bf16
    uint16_t bits;
    std::memcpy(&bits, row + 448 + 2 * (dim - 448), sizeof bits);
    return bits;
  }
  const int64_t slot = j % segment.page_size;  // behind the rows of the page: 8 bytes for each of them
  const uint8_t* scales = row + (segment.page_size - slot) * 576 + slot * 8;
  return fp8_to_bf16(row[dim], ue8m0_to_f32(scales[dim / 64]));
}

int64_t row_offset(const tessera_tensor& tensor, int64_t b, int64_t token, int64_t head) {
  return b * tensor.stride_batch + token * tensor.stride_token + head * tensor.stride_head;
}

int64_t scalar_offset(const tessera_row_scalars& scalars, int64_t b, int64_t token, int64_t head) {
  return b * scalars.stride_batch + token * scalars.stride_token + head * scalars.stride_head;
}

float load_element(tessera_dtype dtype, const void* data, int64_t offset) {
  if (dtype == TESSERA_F32) {
    return static_cast<const float*>(data)[offset];
  }
  const uint16_t bits = load_bits(data, offset);
  return dtype == TESSERA_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void store_element(tessera_dtype dtype, void* data, int64_t offset, float value) {
  if (dtype == TESSERA_F32) {
    static_cast<float*>(data)[offset] = value == 0.0F ? 0.0F : value;
    return;
  }
  const uint16_t bits = dtype == TESSERA_F16 ? f32_to_f16(value) : f32_to_bf16(value);
  static_cast<uint16_t*>(data)[offset] = bits == 0x8000U ? uint16_t{0} : bits;
}

}  // namespace tessera
