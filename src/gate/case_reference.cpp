#include "gate/case_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numeric_types.h"

namespace tessera {
namespace {

double round_output(tessera_dtype dtype, double value) {
  const auto f = static_cast<float>(value);
  return dtype == TESSERA_F32 ? f : dtype == TESSERA_F16 ? f16_to_f32(f32_to_f16(f)) : bf16_to_f32(f32_to_bf16(f));
}

// The keys and values of one (sequence, K/V head), widened once: (seqlen_k, head_dim).
template <class Real>
struct HeadRows {
  std::vector<Real> k, v;
};

template <class Real>
HeadRows<Real> head_rows(const KernelCase& c, int64_t sequence, int64_t head) {
  HeadRows<Real> rows;
  for (int64_t j = 0; j < c.seqlen_k; ++j) {
    const CaseRow k(c, 'k', sequence, j, head);
    const CaseRow v(c, 'v', sequence, j, head);
    for (int64_t d = 0; d < c.head_dim; ++d) {
      rows.k.push_back(k[d]);
      rows.v.push_back(v[d]);
    }
  }
  return rows;
}

template <class Real>
void compute_row(const KernelCase& c, const HeadRows<Real>& rows, int64_t sequence, int64_t token, int64_t head,
                 bool descending, size_t row, CaseRows* out) {
  const int64_t dim = c.head_dim;
  const int64_t position = c.seqlen_k - c.seqlen_q + token;
  const int64_t begin = c.window_left >= 0 ? std::max<int64_t>(0, position - c.window_left) : 0;
  const int64_t end = c.causal ? std::min(c.seqlen_k, position + 1) : c.seqlen_k;
  const auto in_order = [&](int64_t i, int64_t n) { return descending ? n - 1 - i : i; };
  const Real scale = Real{1} / std::sqrt(static_cast<Real>(static_cast<float>(dim)));
  std::vector<Real> query(static_cast<size_t>(dim));
  const CaseRow q(c, 'q', sequence, token, head);
  for (int64_t d = 0; d < dim; ++d) {
    query[static_cast<size_t>(d)] = q[d];
  }
  std::vector<Real> weight(static_cast<size_t>(end - begin));
  Real largest = -std::numeric_limits<Real>::infinity();
  for (int64_t j = begin; j < end; ++j) {
    Real dot = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const int64_t d = in_order(i, dim);
      dot += query[static_cast<size_t>(d)] * rows.k[static_cast<size_t>(j * dim + d)];
    }
    dot *= scale;
    if (c.softcap > 0) {
      dot = static_cast<Real>(c.softcap) * std::tanh(dot / static_cast<Real>(c.softcap));
    }
    weight[static_cast<size_t>(j - begin)] = dot;
    largest = std::max(largest, dot);
  }
  std::vector<Real> sum_v(static_cast<size_t>(dim));
  std::vector<Real> sum_abs(static_cast<size_t>(dim));
  Real sum = 0;
  for (int64_t i = 0; i < end - begin; ++i) {
    const int64_t j = in_order(i, end - begin);
    const Real w = std::exp(weight[static_cast<size_t>(j)] - largest);
    sum += w;
    for (int64_t d = 0; d < dim; ++d) {
      const Real v = rows.v[static_cast<size_t>((begin + j) * dim + d)];
      sum_v[static_cast<size_t>(d)] += w * v;
      sum_abs[static_cast<size_t>(d)] += w * std::fabs(v);
    }
  }
  const Real denominator = c.sinks ? sum + std::exp(static_cast<Real>(case_sink(c, head)) - largest) : sum;
  out->lse[row] = end > begin ? static_cast<double>(largest + std::log(sum)) : -HUGE_VAL;
  double size = 0;
  for (int64_t d = 0; d < dim && end > begin; ++d) {
    out->o[row * static_cast<size_t>(dim) + static_cast<size_t>(d)] =
        static_cast<double>(sum_v[static_cast<size_t>(d)] / denominator);
    size = std::max(size, static_cast<double>(sum_abs[static_cast<size_t>(d)] / denominator));
  }
  out->scale[row] = size > 0 ? size : 1;
}

template <class Real>
void compute(const KernelCase& c, bool descending, CaseRows* out) {
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t kv = 0; kv < c.heads_kv; ++kv) {
      const HeadRows<Real> rows = head_rows<Real>(c, b, kv);
      const int64_t group = c.heads_q / c.heads_kv;
      for (int64_t token = 0; token < c.seqlen_q; ++token) {
        for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
          const auto row = static_cast<size_t>((b * c.seqlen_q + token) * c.heads_q + head);
          compute_row(c, rows, b, token, head, descending, row, out);
        }
      }
    }
  }
}

}  // namespace

CaseRows reference_rows(const KernelCase& c, SumOrder order) {
  CaseRows out;
  const auto rows = static_cast<size_t>(c.rows());
  out.o.resize(rows * static_cast<size_t>(c.head_dim));
  out.lse.resize(rows);
  out.scale.resize(rows);
  if (order == SumOrder::kExact) {
    compute<double>(c, false, &out);
    return out;
  }
  compute<float>(c, order == SumOrder::kDescending, &out);
  for (double& o : out.o) {
    o = round_output(c.o_dtype(), o);
  }
  return out;
}

}  // namespace tessera
