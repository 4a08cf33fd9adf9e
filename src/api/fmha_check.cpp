#include "api/fmha_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "api/fp8_check.h"
#include "api/tensor_check.h"
#include "contract/plan.h"

namespace tessera {
namespace {

constexpr int64_t kMaxLength = (int64_t{1} << 31) - 1;  // tokens and keys of a sequence; sequences of a batch
constexpr int32_t kMaxHeads = 1 << 20;

Status invalid(std::string text) {
  return {Code::kInvalidArgument, std::move(text)};
}

template <class T>
Status check_range(const char* name, T got, T low, T high, const char* advice) {
  if (got >= low && got <= high) return {};
  return invalid(fmt::format("{}: got {}; allowed {}..{}; {}", name, got, low, high, advice));
}

int64_t element_bytes(tessera_dtype dtype) {
  return dtype == TESSERA_F32 ? 4 : 2;
}

// The integer that a caller stored in an enum field. C callers may store any; loading such a value as the enum would be
// undefined.
template <class Enum>
int32_t stored_integer(const Enum& field) {
  static_assert(sizeof(Enum) == sizeof(int32_t));
  int32_t integer = 0;
  std::memcpy(&integer, &field, sizeof(integer));
  return integer;
}

// struct_size, and the device where the caller's struct has one. `name` is that of the struct.
template <class Params>
Status check_struct(const Params& p, const char* name) {
  constexpr size_t kWithoutDevice = offsetof(Params, device);  // as in version 0.1.0
  constexpr size_t kWithoutRope = offsetof(Params, o_rope);
  if (p.struct_size == kWithoutDevice) return {};
  if (p.struct_size != kWithoutRope && p.struct_size != sizeof(Params)) {
    return invalid(
        fmt::format("struct_size: got {}; allowed {}, {} without o_rope, or {} without the device; set it "
                    "to sizeof({})",
                    p.struct_size, sizeof(Params), kWithoutRope, kWithoutDevice, name));
  }
  const int32_t device = stored_integer(p.device);
  if (device != TESSERA_DEVICE_CPU && device != TESSERA_DEVICE_CUDA) {
    return invalid(
        fmt::format("device: got {}; allowed TESSERA_DEVICE_CPU, TESSERA_DEVICE_CUDA; say where the "
                    "pointers point",
                    device));
  }
  return {};
}

// Fields that tessera_fmha_params and tessera_merge_params share.
Status check_types(const tessera_dtype& dtype_field, const tessera_dtype& o_dtype_field,
                   const tessera_output_mode& mode_field, int32_t head_dim_qk, int32_t head_dim_v,
                   int32_t num_heads_q) {
  const int32_t dtype = stored_integer(dtype_field);
  const int32_t o_dtype = stored_integer(o_dtype_field);
  const int32_t mode = stored_integer(mode_field);
  if (dtype != TESSERA_F32 && dtype != TESSERA_F16 && dtype != TESSERA_BF16) {
    return invalid(
        fmt::format("dtype: got {}; allowed TESSERA_F32, TESSERA_F16, TESSERA_BF16; convert the tensors", dtype));
  }
  if (o_dtype != dtype && o_dtype != TESSERA_F32) {
    return invalid(fmt::format("o_dtype: got {}; allowed the dtype of Q ({}) or f32; choose one of them", o_dtype,
                               dtype_name(dtype_field)));
  }
  if (mode != TESSERA_OUTPUT_NORMALIZED && mode != TESSERA_OUTPUT_UNNORMALIZED) {
    return invalid(
        fmt::format("output_mode: got {}; allowed TESSERA_OUTPUT_NORMALIZED, TESSERA_OUTPUT_UNNORMALIZED; "
                    "choose one of them",
                    mode));
  }
  if (mode == TESSERA_OUTPUT_UNNORMALIZED && o_dtype != TESSERA_F32) {
    return invalid(
        fmt::format("o_dtype: got {}; allowed f32 in un-normalised mode; states are fp32", dtype_name(o_dtype_field)));
  }
  TESSERA_RETURN_IF_ERROR(check_range("head_dim_qk", head_dim_qk, 1, kMaxHeadDim, "pass the width of Q and K rows"));
  TESSERA_RETURN_IF_ERROR(check_range("head_dim_v", head_dim_v, 1, kMaxHeadDim, "pass the width of V rows"));
  return check_range("num_heads_q", num_heads_q, 1, kMaxHeads, "pass the number of query heads");
}

// The scalars that go with an output mode.
Status check_outputs(tessera_output_mode mode, const float* sinks, const tessera_row_scalars& row_max_log2,
                     const tessera_row_scalars& row_sum) {
  for (const auto& [name, scalars] : {std::pair{"row_max_log2", &row_max_log2}, std::pair{"row_sum", &row_sum}}) {
    if (mode == TESSERA_OUTPUT_UNNORMALIZED && scalars->data == nullptr) {
      return invalid(fmt::format("{}.data: got NULL; allowed a pointer in un-normalised mode; a state needs it", name));
    }
    if (mode == TESSERA_OUTPUT_NORMALIZED && scalars->data != nullptr) {
      return invalid(
          fmt::format("{}.data: got a pointer; allowed NULL in normalised mode; ask for un-normalised output "
                      "or for lse_natural_no_sink",
                      name));
    }
  }
  if (mode == TESSERA_OUTPUT_UNNORMALIZED && sinks != nullptr) {
    return invalid("sinks: got a pointer; allowed NULL in un-normalised mode; pass the sinks to tessera_fmha_merge");
  }
  return {};
}

// `rows`: whether there is any query token.
Status check_output_rope(const tessera_output_rope& rope, tessera_output_mode mode, int32_t head_dim_v, bool rows) {
  if (rope.cos_table == nullptr) {
    if (rope.sin_table == nullptr && rope.positions == nullptr) return {};
    return invalid(
        "o_rope.cos_table: got NULL beside a table of sines or positions; allowed all three or none; pass "
        "the table of cosines");
  }
  if (mode == TESSERA_OUTPUT_UNNORMALIZED) {
    return invalid(
        "o_rope.cos_table: got a pointer; allowed NULL in un-normalised mode; pass the tables to tessera_fmha_merge");
  }
  if (rope.sin_table == nullptr) {
    return invalid("o_rope.sin_table: got NULL; allowed a table like cos_table; pass the sines of the same angles");
  }
  if (rope.positions == nullptr && rows) {
    return invalid("o_rope.positions: got NULL; allowed a position per query token; pass them");
  }
  if (rope.rotary_dim < 2 || rope.rotary_dim > head_dim_v || rope.rotary_dim % 2 != 0 || head_dim_v % 2 != 0) {
    return invalid(
        fmt::format("o_rope.rotary_dim: got {} of {}; allowed even numbers from 2 to head_dim_v, which is "
                    "even, too; pass how many of the last dims turn",
                    rope.rotary_dim, head_dim_v));
  }
  return check_range<int64_t>("o_rope.num_positions", rope.num_positions, 1, kMaxLength, "pass the rows of the tables");
}

Status check_packed_stride(const ArgumentName& name, int64_t stride_batch, const char* lengths) {
  if (stride_batch == 0) return {};
  return invalid(fmt::format("{}.stride_batch: got {}; allowed 0 with {}; packed sequences start at their first token",
                             to_text(name), stride_batch, lengths));
}

Status check_queries(const tessera_fmha_params& p) {
  TESSERA_RETURN_IF_ERROR(check_range("num_heads_kv", p.num_heads_kv, 1, kMaxHeads, "pass the number of K/V heads"));
  if (p.num_heads_q % p.num_heads_kv != 0) {
    return invalid(
        fmt::format("num_heads_kv: got {}; allowed divisors of num_heads_q = {}; every K/V head serves the "
                    "same number of query heads",
                    p.num_heads_kv, p.num_heads_q));
  }
  TESSERA_RETURN_IF_ERROR(check_range<int64_t>("batch", p.batch, 0, kMaxLength, "pass the number of sequences"));
  TESSERA_RETURN_IF_ERROR(
      check_range<int64_t>("seqlen_q", p.seqlen_q, 0, kMaxLength, "pass the query tokens of the longest sequence"));
  if (p.cu_seqlens_q != nullptr) {
    TESSERA_RETURN_IF_ERROR(check_packed_stride({nullptr, 0, "q"}, p.q.stride_batch, "cu_seqlens_q"));
    TESSERA_RETURN_IF_ERROR(check_packed_stride({nullptr, 0, "o"}, p.o.stride_batch, "cu_seqlens_q"));
    for (const auto& [name, scalars] : {std::pair{"lse_natural_no_sink", &p.lse_natural_no_sink},
                                        std::pair{"row_max_log2", &p.row_max_log2}, std::pair{"row_sum", &p.row_sum}}) {
      if (scalars->data == nullptr) continue;
      TESSERA_RETURN_IF_ERROR(check_packed_stride({nullptr, 0, name}, scalars->stride_batch, "cu_seqlens_q"));
    }
  }
  // Packed: the tokens of all sequences lie behind each other, and the values of cu_seqlens_q are not known here.
  const bool packed = p.cu_seqlens_q != nullptr;
  const int64_t batch = packed ? std::min<int64_t>(p.batch, 1) : p.batch;
  const int64_t tokens = packed && p.seqlen_q > 0 ? kMaxLength : p.seqlen_q;
  const Extents q_extents{batch, tokens, p.num_heads_q, p.head_dim_qk};
  const Extents o_extents{batch, tokens, p.num_heads_q, p.head_dim_v};
  TESSERA_RETURN_IF_ERROR(check_tensor({nullptr, 0, "q"}, p.q, q_extents, element_bytes(p.dtype), Access::kRead));
  // The longest packed output is unknown, so only the tokens of one sequence can be checked for overlap.
  const Extents o_unique{batch, p.seqlen_q, p.num_heads_q, p.head_dim_v};
  TESSERA_RETURN_IF_ERROR(check_tensor({nullptr, 0, "o"}, p.o, o_extents, element_bytes(p.o_dtype), Access::kRead));
  TESSERA_RETURN_IF_ERROR(check_tensor({nullptr, 0, "o"}, p.o, o_unique, element_bytes(p.o_dtype), Access::kWrite));
  for (const auto& [name, scalars] : {std::pair{"lse_natural_no_sink", &p.lse_natural_no_sink},
                                      std::pair{"row_max_log2", &p.row_max_log2}, std::pair{"row_sum", &p.row_sum}}) {
    TESSERA_RETURN_IF_ERROR(check_row_scalars(name, *scalars, batch, tokens, p.num_heads_q, Access::kRead));
    TESSERA_RETURN_IF_ERROR(check_row_scalars(name, *scalars, batch, p.seqlen_q, p.num_heads_q, Access::kWrite));
  }
  return {};
}

Status check_layout(const tessera_fmha_params& p, int32_t i) {
  const tessera_kv_segment& s = p.segments[i];
  int64_t batch = p.batch;
  int64_t tokens = s.seqlen_k;
  if (s.page_table != nullptr) {
    if (s.page_size < 1) {
      return invalid(
          fmt::format("segments[{}].page_size: got {}; allowed >= 1; pass the keys of a page", i, s.page_size));
    }
    if (s.num_pages < 0 || s.num_pages > kMaxLength) {
      return invalid(fmt::format("segments[{}].num_pages: got {}; allowed 0..{}; pass the pages of the pool", i,
                                 s.num_pages, kMaxLength));
    }
    const int64_t row_pages = (s.seqlen_k + s.page_size - 1) / s.page_size;
    if (s.page_table_stride < 0 || (p.batch > 1 && s.page_table_stride < row_pages) ||
        s.page_table_stride > (int64_t{1} << 40)) {
      return invalid(
          fmt::format("segments[{}].page_table_stride: got {}; allowed {}..2^40; a row holds the pages of "
                      "seqlen_k = {} keys",
                      i, s.page_table_stride, row_pages, s.seqlen_k));
    }
    batch = s.seqlen_k > 0 ? s.num_pages : 0;
    tokens = s.page_size;
  } else if (s.cu_seqlens_k != nullptr) {
    TESSERA_RETURN_IF_ERROR(check_packed_stride({"segments", i, "k"}, s.k.stride_batch, "cu_seqlens_k"));
    TESSERA_RETURN_IF_ERROR(check_packed_stride({"segments", i, "v"}, s.v.stride_batch, "cu_seqlens_k"));
    batch = std::min<int64_t>(p.batch, 1);
    tokens = s.seqlen_k > 0 ? kMaxLength : 0;
  }
  if (s.format != TESSERA_KV_DENSE) return check_fp8_segment(p, i, batch, tokens);
  const int64_t bytes = element_bytes(p.dtype);
  TESSERA_RETURN_IF_ERROR(
      check_tensor({"segments", i, "k"}, s.k, {batch, tokens, p.num_heads_kv, p.head_dim_qk}, bytes, Access::kRead));
  return check_tensor({"segments", i, "v"}, s.v, {batch, tokens, p.num_heads_kv, p.head_dim_v}, bytes, Access::kRead);
}

Status check_visibility(const tessera_fmha_params& p, int32_t i) {
  const tessera_kv_segment& s = p.segments[i];
  for (const auto& [name, window] :
       {std::pair{"window_left", s.window_left}, std::pair{"window_right", s.window_right}}) {
    if (window < -1) {
      return invalid(fmt::format("segments[{}].{}: got {}; allowed >= -1; -1 is unlimited", i, name, window));
    }
  }
  if (s.compress_ratio < 0) {
    return invalid(fmt::format("segments[{}].compress_ratio: got {}; allowed >= 0; 0 is off", i, s.compress_ratio));
  }
  if (s.mask.data != nullptr) {
    for (const auto& [name, stride] :
         {std::pair{"stride_batch", s.mask.stride_batch}, std::pair{"stride_head", s.mask.stride_head},
          std::pair{"stride_row", s.mask.stride_row}}) {
      if (stride < 0 || stride > (int64_t{1} << 28)) {
        // 2^28 bytes hold a bit for each of 2^31 keys; the largest offset then stays below 2^60
        return invalid(
            fmt::format("segments[{}].mask.{}: got {}; allowed 0..2^28 bytes; 0 broadcasts", i, name, stride));
      }
    }
  }
  if (s.indices != nullptr) {
    if (s.topk < 0) {
      return invalid(fmt::format("segments[{}].topk: got {}; allowed >= 0; pass the indices per token", i, s.topk));
    }
    if (s.indices_stride < s.topk) {
      return invalid(fmt::format("segments[{}].indices_stride: got {}; allowed >= topk = {}; a row holds topk indices",
                                 i, s.indices_stride, s.topk));
    }
  }
  return {};
}

Status check_segment(const tessera_fmha_params& p, int32_t i) {
  const tessera_kv_segment& s = p.segments[i];
  const int32_t format = stored_integer(s.format);
  if (format != TESSERA_KV_DENSE && format != TESSERA_KV_FP8_V32_656 && format != TESSERA_KV_FP8_V4_584) {
    return invalid(
        fmt::format("segments[{}].format: got {}; allowed TESSERA_KV_DENSE, TESSERA_KV_FP8_V32_656, "
                    "TESSERA_KV_FP8_V4_584; choose one of them",
                    i, format));
  }
  if (s.seqlen_k < 0 || s.seqlen_k > kMaxLength) {
    return invalid(fmt::format("segments[{}].seqlen_k: got {}; allowed 0..{}; pass the keys of the longest sequence", i,
                               s.seqlen_k, kMaxLength));
  }
  TESSERA_RETURN_IF_ERROR(check_layout(p, i));
  return check_visibility(p, i);
}

Status check_scores(const tessera_fmha_params& p) {
  const float c = score_scale(p.softmax_scale, false);
  if (!(p.softmax_scale > 0.0f) || !std::isfinite(c) || c == 0.0f) {
    return invalid(
        fmt::format("softmax_scale: got {}; allowed finite and > 0; usually 1 / sqrt(head_dim_qk)", p.softmax_scale));
  }
  if (!(p.softcap >= 0.0f) || !std::isfinite(p.softcap)) {
    return invalid(fmt::format("softcap: got {}; allowed finite and >= 0; 0 is off", p.softcap));
  }
  return {};
}

Status check_chunk_range(const tessera_fmha_params& p) {
  if (p.chunk_begin == 0 && p.chunk_end == 0) return {};
  if (p.output_mode != TESSERA_OUTPUT_UNNORMALIZED) {
    return invalid(
        "chunk_end: got a range of chunks in normalised mode; allowed in un-normalised mode only; merge the "
        "states with tessera_fmha_merge");
  }
  if (p.num_segments != 1) {
    return invalid(fmt::format(
        "chunk_end: got a range of chunks over {} segments; allowed 1; run each segment by itself", p.num_segments));
  }
  if (p.chunk_begin < 0) {
    return invalid(fmt::format("chunk_begin: got {}; allowed >= 0; pass the first chunk", p.chunk_begin));
  }
  if (p.chunk_end <= p.chunk_begin) {
    return invalid(fmt::format("chunk_end: got {}; allowed > chunk_begin = {}; pass the chunk after the last",
                               p.chunk_end, p.chunk_begin));
  }
  const int64_t keys = p.segments[0].seqlen_k;
  const int64_t all = keys / kChunkKeys + (keys % kChunkKeys != 0 ? 1 : 0);
  const bool one = p.chunk_end - p.chunk_begin == 1;
  const bool in_superchunk = p.chunk_begin % kSuperchunkChunks == 0 && p.chunk_end - p.chunk_begin <= kSuperchunkChunks;
  const bool superchunks = p.chunk_begin == 0 && (p.chunk_end % kSuperchunkChunks == 0 || p.chunk_end >= all);
  if (!one && !in_superchunk && !superchunks) {
    return invalid(
        fmt::format("chunk_end: got chunks [{}, {}); allowed one chunk, the first chunks of a superchunk of "
                    "{}, or whole superchunks from chunk 0; cut the range there (R8)",
                    p.chunk_begin, p.chunk_end, kSuperchunkChunks));
  }
  return {};
}

}  // namespace

Status check_fmha_shapes(const tessera_fmha_params* params) {
  if (params == nullptr) return invalid("params: got NULL; allowed a tessera_fmha_params; pass one");
  TESSERA_RETURN_IF_ERROR(check_struct(*params, "tessera_fmha_params"));
  const tessera_fmha_params p = complete(*params);
  TESSERA_RETURN_IF_ERROR(check_types(p.dtype, p.o_dtype, p.output_mode, p.head_dim_qk, p.head_dim_v, p.num_heads_q));
  TESSERA_RETURN_IF_ERROR(check_queries(p));
  TESSERA_RETURN_IF_ERROR(check_range<int32_t>("num_segments", p.num_segments, 1, TESSERA_MAX_SEGMENTS,
                                               "describe the keys as at most four segments"));
  for (int32_t i = 0; i < p.num_segments; ++i) TESSERA_RETURN_IF_ERROR(check_segment(p, i));
  TESSERA_RETURN_IF_ERROR(check_scores(p));
  TESSERA_RETURN_IF_ERROR(check_outputs(p.output_mode, p.sinks, p.row_max_log2, p.row_sum));
  TESSERA_RETURN_IF_ERROR(check_output_rope(p.o_rope, p.output_mode, p.head_dim_v, p.batch > 0 && p.seqlen_q > 0));
  return check_chunk_range(p);
}

Status check_merge_shapes(const tessera_merge_params* params) {
  if (params == nullptr) return invalid("params: got NULL; allowed a tessera_merge_params; pass one");
  TESSERA_RETURN_IF_ERROR(check_struct(*params, "tessera_merge_params"));
  const tessera_merge_params p = complete(*params);
  TESSERA_RETURN_IF_ERROR(check_types(p.dtype, p.o_dtype, p.output_mode, p.head_dim_qk, p.head_dim_v, p.num_heads_q));
  TESSERA_RETURN_IF_ERROR(check_range<int64_t>("num_rows", p.num_rows, 0, kMaxLength, "pass the number of tokens"));
  TESSERA_RETURN_IF_ERROR(check_range<int64_t>("num_states", p.num_states, 1, kMaxLength, "pass at least one state"));
  TESSERA_RETURN_IF_ERROR(check_outputs(p.output_mode, p.sinks, p.row_max_log2, p.row_sum));
  TESSERA_RETURN_IF_ERROR(check_output_rope(p.o_rope, p.output_mode, p.head_dim_v, p.num_rows > 0));
  const Extents states{p.num_states, p.num_rows, p.num_heads_q, p.head_dim_v};
  TESSERA_RETURN_IF_ERROR(check_tensor({nullptr, 0, "o_states"}, p.o_states, states, 4, Access::kRead));
  for (const auto& [name, scalars] :
       {std::pair{"row_max_log2_states", &p.row_max_log2_states}, std::pair{"row_sum_states", &p.row_sum_states}}) {
    if (scalars->data == nullptr && p.num_rows > 0) {
      return invalid(fmt::format("{}.data: got NULL; allowed a pointer; every state has one", name));
    }
    TESSERA_RETURN_IF_ERROR(check_row_scalars(name, *scalars, p.num_states, p.num_rows, p.num_heads_q, Access::kRead));
  }
  const Extents rows{1, p.num_rows, p.num_heads_q, p.head_dim_v};
  TESSERA_RETURN_IF_ERROR(check_tensor({nullptr, 0, "o"}, p.o, rows, element_bytes(p.o_dtype), Access::kWrite));
  for (const auto& [name, scalars] : {std::pair{"lse_natural_no_sink", &p.lse_natural_no_sink},
                                      std::pair{"row_max_log2", &p.row_max_log2}, std::pair{"row_sum", &p.row_sum}}) {
    TESSERA_RETURN_IF_ERROR(check_row_scalars(name, *scalars, 1, p.num_rows, p.num_heads_q, Access::kWrite));
  }
  return {};
}

Status check_threads(int32_t num_threads) {
  return check_range("num_threads", num_threads, 1, kMaxThreads, "pass the threads of the executor");
}

Status check_executor(const tessera_executor* executor) {
  if (executor == nullptr) return {};
  TESSERA_RETURN_IF_ERROR(check_threads(executor->num_threads));
  if (executor->parallel_for == nullptr) {
    return invalid("executor.parallel_for: got NULL; allowed a function; pass a NULL executor for the calling thread");
  }
  return {};
}

}  // namespace tessera
