#include "oracle/exact.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numeric_types.h"
#include "oracle/problem.h"

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Visibility, written from the public header and not from the oracle: see tessera_kv_segment.
bool visible(const tessera_kv_segment& s, int64_t b, int64_t head, int64_t i, int64_t p, int64_t j) {
  bool ok = mask_allows(s, b, head, i, j);
  if (s.compress_ratio > 0) {
    return ok && j < static_cast<int64_t>(std::floor(static_cast<double>(p + 1) / s.compress_ratio));
  }
  ok = ok && (s.causal == 0 || j <= p);
  ok = ok && (s.window_left < 0 || j >= p - s.window_left);
  return ok && (s.window_right < 0 || j <= p + s.window_right);
}

struct Term {
  double score;
  const tessera_kv_segment* segment;
  int64_t j;
};

class RowSolver {
 public:
  RowSolver(const tessera_fmha_params& params, int64_t b, int64_t i, int64_t head)
      : params_(params), b_(b), i_(i), head_(head), kv_head_(head / (params.num_heads_q / params.num_heads_kv)) {}

  void append_to(ExactRows& rows) {
    for (int s = 0; s < params_.num_segments; ++s) {
      collect(params_.segments[s]);
    }
    double largest = -kInfinity;
    for (const Term& term : terms_) {
      largest = std::max(largest, term.score);
    }
    double sum = 0.0;
    std::vector<double> o(static_cast<size_t>(params_.head_dim_v), 0.0);
    std::vector<double> magnitude(o.size(), 0.0);
    for (const Term& term : terms_) {
      const double weight = std::exp(term.score - largest);
      const tessera_tensor& v = term.segment->v;
      const int64_t row = key_offset(*term.segment, v, b_, term.j, kv_head_);
      sum += weight;
      for (size_t d = 0; d < o.size(); ++d) {
        const double x = element(*term.segment, v, row, term.j, static_cast<int64_t>(d));
        o[d] += weight * x;
        magnitude[d] += weight * std::fabs(x);
      }
    }
    const bool empty = terms_.empty();
    const double sink = params_.sinks != nullptr && !empty ? std::exp(params_.sinks[head_] - largest) : 0.0;
    for (size_t d = 0; d < o.size(); ++d) {
      rows.o.push_back(empty ? 0.0 : o[d] / (sum + sink));
    }
    rows.lse.push_back(empty ? -kInfinity : largest + std::log(sum));
    rows.mean_abs_v.push_back(empty ? 0.0 : *std::max_element(magnitude.begin(), magnitude.end()) / (sum + sink));
  }

 private:
  // Of K or V. FP8 rows have the values of R11: what is measured is attention, not the format.
  double element(const tessera_kv_segment& segment, const tessera_tensor& tensor, int64_t row, int64_t j,
                 int64_t d) const {
    if (segment.format != TESSERA_KV_DENSE) {
      return bf16_to_f32(fp8_row_bits(segment, b_, j, d));
    }
    return load_element(params_.dtype, tensor.data, row + d * tensor.stride_dim);
  }

  void collect(const tessera_kv_segment& segment) {
    const int64_t p = query_position(params_, segment, b_, i_);
    if (segment.indices != nullptr) {
      const int64_t token = packed_query_token(params_, b_, i_);
      const int64_t count = segment.topk_lens != nullptr ? segment.topk_lens[token] : segment.topk;
      for (int64_t t = 0; t < count; ++t) {
        const int64_t j = segment.indices[token * segment.indices_stride + t];
        if (j >= 0 && visible(segment, b_, head_, i_, p, j)) {
          terms_.push_back({score(segment, p, j), &segment, j});
        }
      }
      return;
    }
    for (int64_t j = 0; j < key_length(segment, b_); ++j) {
      if (visible(segment, b_, head_, i_, p, j)) {
        terms_.push_back({score(segment, p, j), &segment, j});
      }
    }
  }

  double score(const tessera_kv_segment& segment, int64_t p, int64_t j) const {
    const int64_t q_row = row_offset(params_.q, b_, query_token(params_, b_, i_), head_);
    const int64_t k_row = key_offset(segment, segment.k, b_, j, kv_head_);
    double dot = 0.0;
    for (int64_t d = 0; d < params_.head_dim_qk; ++d) {
      dot += static_cast<double>(load_element(params_.dtype, params_.q.data, q_row + d * params_.q.stride_dim)) *
             element(segment, segment.k, k_row, j, d);
    }
    double x = dot * params_.softmax_scale;
    if (params_.softcap != 0.0F) {
      x = params_.softcap * std::tanh(x / params_.softcap);
    }
    if (params_.alibi_slopes != nullptr) {
      x += params_.alibi_slopes[head_] * static_cast<double>(j - p);
    }
    return x;
  }

  const tessera_fmha_params& params_;
  const int64_t b_, i_, head_, kv_head_;
  std::vector<Term> terms_;
};

}  // namespace

Result<ExactRows> exact_fmha(const tessera_fmha_params& params) {
  TESSERA_RETURN_IF_ERROR(check_problem(params));
  ExactRows rows;
  for (int64_t b = 0; b < params.batch; ++b) {
    for (int64_t i = 0; i < query_length(params, b); ++i) {
      for (int64_t head = 0; head < params.num_heads_q; ++head) {
        RowSolver(params, b, i, head).append_to(rows);
      }
    }
  }
  return rows;
}

}  // namespace tessera
