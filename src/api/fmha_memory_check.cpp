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

struct KeyInterval {
  int64_t begin;
  int64_t end;
};

// Keys that some query token of the sequence may see, custom bits aside. The interval of R2 moves up with the position,
// so the first and the last token bound it.
KeyInterval keys_in_reach(const tessera_fmha_params& p, const tessera_kv_segment& s, int64_t b) {
  const int64_t tokens = fmha_query_length(p, b);
  if (tokens == 0) return {0, 0};
  const int64_t length = fmha_key_length(s, b);
  const int64_t position = fmha_first_position(p, s, b);
  KeyInterval reach{};
  int64_t unused = 0;
  fmha_visible_interval(s, length, position, &reach.begin, &unused);
  fmha_visible_interval(s, length, position + tokens - 1, &unused, &reach.end);
  return reach;
}

Status check_page(const tessera_kv_segment& s, int32_t i, int64_t b, int64_t index) {
  const int32_t page = s.page_table[b * s.page_table_stride + index];
  if (page >= 0 && page < s.num_pages) return {};
  return invalid(
      fmt::format("segments[{}].page_table[{}][{}]: got {}; allowed 0..{}; the page holds keys that sequence {} sees",
                  i, b, index, page, s.num_pages - 1, b));
}

// Pages with a key that some query token of the sequence may see.
Status check_pages(const tessera_fmha_params& p, int32_t i) {
  const tessera_kv_segment& s = p.segments[i];
  for (int64_t b = 0; b < p.batch; ++b) {
    const KeyInterval reach = keys_in_reach(p, s, b);
    if (reach.begin >= reach.end) continue;
    for (int64_t index = reach.begin / s.page_size; index <= (reach.end - 1) / s.page_size; ++index) {
      TESSERA_RETURN_IF_ERROR(check_page(s, i, b, index));
    }
  }
  return {};
}

// Lists of gathered keys, and the pages of those in reach.
Status check_indices(const tessera_fmha_params& p, int32_t i) {
  const tessera_kv_segment& s = p.segments[i];
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t length = fmha_key_length(s, b);
    const KeyInterval reach = keys_in_reach(p, s, b);
    for (int64_t token = 0; token < fmha_query_length(p, b); ++token) {
      const int64_t list = fmha_list_of(p, b, token);
      const int64_t count = fmha_listed(s, list);
      if (count < 0 || count > s.topk) {
        return invalid(
            fmt::format("segments[{}].topk_lens[{}]: got {}; allowed 0..{} (topk); pass the indices that the "
                        "token's list holds",
                        i, list, count, s.topk));
      }
      for (int64_t t = 0; t < count; ++t) {
        const int32_t j = s.indices[list * s.indices_stride + t];
        if (j < -1 || j >= length) {
          return invalid(
              fmt::format("segments[{}].indices[{}][{}]: got {}; allowed -1 (no key) to {}; sequence {} has no "
                          "other keys",
                          i, list, t, j, length - 1, b));
        }
        if (s.page_table != nullptr && j >= reach.begin && j < reach.end) {
          TESSERA_RETURN_IF_ERROR(check_page(s, i, b, j / s.page_size));
        }
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

Status check_output_positions(const tessera_output_rope& rope, int64_t first, int64_t end) {
  for (int64_t n = first; rope.cos_table != nullptr && n < end; ++n) {
    if (rope.positions[n] < 0 || rope.positions[n] >= rope.num_positions) {
      return invalid(fmt::format("o_rope.positions[{}]: got {}; allowed 0..{} (num_positions - 1); pass larger tables",
                                 n, rope.positions[n], rope.num_positions - 1));
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
    if (s.indices != nullptr) {
      TESSERA_RETURN_IF_ERROR(check_indices(p, i));
    } else if (s.page_table != nullptr) {
      TESSERA_RETURN_IF_ERROR(check_pages(p, i));
    }
  }
  TESSERA_RETURN_IF_ERROR(check_sinks(p.sinks, p.num_heads_q));
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t first = p.cu_seqlens_q != nullptr ? p.cu_seqlens_q[b] : b * p.seqlen_q;
    TESSERA_RETURN_IF_ERROR(check_output_positions(p.o_rope, first, first + fmha_query_length(p, b)));
  }
  for (int32_t h = 0; p.alibi_slopes != nullptr && h < p.num_heads_q; ++h) {
    if (!std::isfinite(p.alibi_slopes[h])) {
      return invalid(fmt::format("alibi_slopes[{}]: got {}; allowed finite; check the slopes", h, p.alibi_slopes[h]));
    }
  }
  return {};
}

Status check_merge_memory(const tessera_merge_params& p) {
  TESSERA_RETURN_IF_ERROR(check_output_positions(p.o_rope, 0, p.num_rows));
  return check_sinks(p.sinks, p.num_heads_q);
}

}  // namespace tessera
