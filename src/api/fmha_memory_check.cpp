// The checks that read what the pointers of a problem point to.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "api/fmha_check.h"
#include "kernels/cpu/fmha/schedule.h"

namespace tessera {
namespace {

Status invalid(std::string text) {
  return {Code::kInvalidArgument, std::move(text)};
}

// Names "cu_seqlens_q" or "segments[i].cu_seqlens_k"; segment < 0: a field of the problem itself.
std::string field(int32_t segment, const char* name) {
  return segment < 0 ? std::string(name) : fmt::format("segments[{}].{}", segment, name);
}

// First tokens are >= 0 and ascending, lengths within [0, bound] and, where both are given, within their slot.
Status check_lengths(int32_t segment, int64_t batch, int64_t bound, const char* bound_name, const int32_t* first,
                     const char* first_name, const int32_t* used, const char* used_name) {
  for (int64_t b = 0; b < batch; ++b) {
    int64_t slot = bound;
    if (first != nullptr) {
      const int64_t length = static_cast<int64_t>(first[b + 1]) - first[b];
      if (first[b] < 0 || length < 0) {
        return invalid(
            fmt::format("{}[{}..{}]: got {}, {}; allowed ascending values >= 0; pass the running sum of the "
                        "lengths",
                        field(segment, first_name), b, b + 1, first[b], first[b + 1]));
      }
      if (used == nullptr && length > bound) {
        return invalid(fmt::format("{}[{}]: got a length of {}; allowed up to {} = {}; raise the bound",
                                   field(segment, first_name), b, length, field(segment, bound_name), bound));
      }
      slot = length < slot ? length : slot;
    }
    if (used != nullptr && (used[b] < 0 || used[b] > slot)) {
      return invalid(fmt::format("{}[{}]: got {}; allowed 0..{}; pass the used length of the sequence",
                                 field(segment, used_name), b, used[b], slot));
    }
  }
  return {};
}

// Pages with a key that some query token of the sequence may see. The interval of R2 moves up with the position, so
// the first and the last token bound it.
Status check_pages(const tessera_fmha_params& p, int32_t i) {
  const tessera_kv_segment& s = p.segments[i];
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t tokens = fmha_query_length(p, b);
    if (tokens == 0) continue;
    const int64_t length = fmha_key_length(s, b);
    const int64_t position = fmha_first_position(p, s, b);
    int64_t begin = 0;
    int64_t end = 0;
    int64_t unused = 0;
    fmha_visible_interval(s, length, position, &begin, &unused);
    fmha_visible_interval(s, length, position + tokens - 1, &unused, &end);
    if (begin >= end) continue;
    const int32_t* pages = s.page_table + b * s.page_table_stride;
    for (int64_t index = begin / s.page_size; index <= (end - 1) / s.page_size; ++index) {
      if (pages[index] < 0 || pages[index] >= s.num_pages) {
        return invalid(
            fmt::format("segments[{}].page_table[{}][{}]: got {}; allowed 0..{}; the page holds keys that "
                        "sequence {} sees",
                        i, b, index, pages[index], s.num_pages - 1, b));
      }
    }
  }
  return {};
}

Status check_sinks(const float* sinks, int32_t num_heads) {
  if (sinks == nullptr) return {};
  for (int32_t h = 0; h < num_heads; ++h) {
    if (std::isnan(sinks[h])) {
      return invalid(fmt::format("sinks[{}]: got NaN; allowed numbers, -inf (no sink) and +inf; check the weights", h));
    }
  }
  return {};
}

}  // namespace

Status check_fmha_memory(const tessera_fmha_params& p) {
  TESSERA_RETURN_IF_ERROR(
      check_lengths(-1, p.batch, p.seqlen_q, "seqlen_q", p.cu_seqlens_q, "cu_seqlens_q", p.seqlens_q, "seqlens_q"));
  for (int32_t i = 0; i < p.num_segments; ++i) {
    const tessera_kv_segment& s = p.segments[i];
    TESSERA_RETURN_IF_ERROR(
        check_lengths(i, p.batch, s.seqlen_k, "seqlen_k", s.cu_seqlens_k, "cu_seqlens_k", s.seqlens_k, "seqlens_k"));
    if (s.page_table != nullptr) TESSERA_RETURN_IF_ERROR(check_pages(p, i));
  }
  TESSERA_RETURN_IF_ERROR(check_sinks(p.sinks, p.num_heads_q));
  for (int32_t h = 0; p.alibi_slopes != nullptr && h < p.num_heads_q; ++h) {
    if (!std::isfinite(p.alibi_slopes[h])) {
      return invalid(fmt::format("alibi_slopes[{}]: got {}; allowed finite; check the slopes", h, p.alibi_slopes[h]));
    }
  }
  return {};
}

Status check_merge_memory(const tessera_merge_params& p) {
  return check_sinks(p.sinks, p.num_heads_q);
}

}  // namespace tessera
