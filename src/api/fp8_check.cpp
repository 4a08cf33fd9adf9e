#include "api/fp8_check.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "api/tensor_check.h"
#include "contract/fp8_rows.h"
#include "contract/plan.h"

namespace tessera {
namespace {

Status invalid(std::string text) {
  return {Code::kInvalidArgument, std::move(text)};
}

const char* format_name(tessera_kv_format format) {
  return format == TESSERA_KV_FP8_V4_584 ? "TESSERA_KV_FP8_V4_584" : "TESSERA_KV_FP8_V32_656";
}

// What the format fixes of the whole problem.
Status check_problem_of(const tessera_fmha_params& p, int32_t i) {
  const tessera_kv_format format = p.segments[i].format;
  const Fp8Format rows = fp8_format(format);
  if (p.dtype != TESSERA_BF16) {
    return invalid(fmt::format("dtype: got {}; allowed bf16 with segments[{}].format {}; its elements become bf16",
                               dtype_name(p.dtype), i, format_name(format)));
  }
  for (const auto& [name, got, allowed] :
       {std::tuple{"head_dim_qk", p.head_dim_qk, rows.head_dim_qk},
        std::tuple{"head_dim_v", p.head_dim_v, rows.head_dim_v}, std::tuple{"num_heads_kv", p.num_heads_kv, 1}}) {
    if (got == allowed) continue;
    return invalid(fmt::format("{}: got {}; allowed {} with segments[{}].format {}; a row of the format has no other",
                               name, got, allowed, i, format_name(format)));
  }
  return {};
}

Status check_strides(const tessera_fmha_params& p, int32_t i) {
  const tessera_kv_segment& s = p.segments[i];
  const Fp8Format rows = fp8_format(s.format);
  if (s.k.stride_dim != 1) {
    return invalid(fmt::format("segments[{}].k.stride_dim: got {}; allowed 1; rows are contiguous", i, s.k.stride_dim));
  }
  if (s.format == TESSERA_KV_FP8_V4_584) {
    if (s.k.stride_token != rows.row_bytes) {
      return invalid(
          fmt::format("segments[{}].k.stride_token: got {}; allowed {} bytes; the scales are behind the rows "
                      "of a page",
                      i, s.k.stride_token, rows.row_bytes));
    }
    const int64_t page = s.page_size * (rows.row_bytes + rows.footer_bytes);
    if (s.num_pages > 1 && (s.k.stride_batch < page || s.k.stride_batch % kFp8PageBytes != 0)) {
      return invalid(
          fmt::format("segments[{}].k.stride_batch: got {}; allowed multiples of {} bytes from {} on; pass "
                      "the bytes of a page of {} keys, rounded up",
                      i, s.k.stride_batch, kFp8PageBytes, page, s.page_size));
    }
    return {};
  }
  for (const auto& [name, stride] :
       {std::pair{"stride_batch", s.k.stride_batch}, std::pair{"stride_token", s.k.stride_token}}) {
    if (stride % kFp8Alignment != 0) {
      return invalid(fmt::format("segments[{}].k.{}: got {}; allowed multiples of {} bytes; rows are aligned to that",
                                 i, name, stride, kFp8Alignment));
    }
  }
  return {};
}

bool same(const tessera_tensor& a, const tessera_tensor& b) {
  return a.data == b.data && a.stride_batch == b.stride_batch && a.stride_token == b.stride_token &&
         a.stride_head == b.stride_head && a.stride_dim == b.stride_dim;
}

}  // namespace

Status check_fp8_segment(const tessera_fmha_params& p, int32_t i, int64_t batch, int64_t tokens) {
  const tessera_kv_segment& s = p.segments[i];
  TESSERA_RETURN_IF_ERROR(check_problem_of(p, i));
  if (batch == 0 || tokens == 0) return {};
  const bool paged_format = s.format == TESSERA_KV_FP8_V4_584;
  if (paged_format && s.page_table == nullptr) {
    return invalid(
        fmt::format("segments[{}].page_table: got NULL; allowed a table with format {}; describe contiguous "
                    "rows as one page",
                    i, format_name(s.format)));
  }
  TESSERA_RETURN_IF_ERROR(check_strides(p, i));
  if (!same(s.k, s.v)) {
    return invalid(
        fmt::format("segments[{}].v: got another tensor than k; allowed a copy of k with format {}; V is the "
                    "first {} dims of the same rows",
                    i, format_name(s.format), p.head_dim_v));
  }
  const Fp8Format rows = fp8_format(s.format);
  const Extents extents = paged_format ? Extents{batch, 1, 1, tokens * (rows.row_bytes + rows.footer_bytes)}
                                       : Extents{batch, tokens, 1, rows.row_bytes};
  return check_tensor({"segments", i, "k"}, s.k, extents, kFp8Alignment, Access::kRead);
}

}  // namespace tessera
