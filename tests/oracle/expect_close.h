// The contract's bits against float64 (src/oracle/exact.cpp), with the stated tolerances.
//
// O: relative to the row's weighted mean of |v|: 2e-6 for cpu-fma32 (16-bit inputs are exact values to both sides);
// under hopper-k16-f25 the rounding of the weights adds half a unit of the dtype, 2^-11 (fp16) or 2^-8 (bf16), of which
// a row may see the whole. Scores carry their own fp32 rounding into the weights: 2^-20 of the log-sum-exp's size. LSE:
// 1e-5 absolute plus 1e-6 relative.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "attention_fixture.h"
#include "oracle/exact.h"

namespace tessera {

inline double output_tolerance(Numerics n) {
  if (n.arithmetic == Arithmetic::kCpuFma32) {
    return 2e-6;
  }
  return n.dtype == TESSERA_F16 ? 0x1p-11 : 0x1p-8;
}

// Runs the problem (normalised output) and compares every row.
inline void expect_close(Attention& a) {
  a.run(2);
  const Result<ExactRows> exact = exact_fmha(a.params);
  ASSERT_TRUE(exact.ok()) << exact.status().text();
  const ExactRows& rows = exact.value();
  size_t row = 0;
  for (int64_t b = 0; b < a.params.batch; ++b) {
    const int64_t first = a.params.cu_seqlens_q != nullptr ? a.params.cu_seqlens_q[b] : 0;
    const int64_t count = a.params.cu_seqlens_q != nullptr ? a.params.cu_seqlens_q[b + 1] - first : a.shape.sq;
    const int64_t outer = a.params.cu_seqlens_q != nullptr ? 0 : b;
    for (int64_t i = first; i < first + count; ++i) {
      for (int64_t h = 0; h < a.shape.hq; ++h, ++row) {
        const double lse = rows.lse[row];
        const double score_error = std::isinf(lse) ? 0.0 : std::fabs(lse) * 0x1p-20;
        const double tolerance = (output_tolerance(a.numerics) + score_error) * rows.mean_abs_v[row];
        for (int64_t d = 0; d < a.shape.dv; ++d) {
          const double expected = rows.o[row * static_cast<size_t>(a.shape.dv) + static_cast<size_t>(d)];
          ASSERT_NEAR(a.o.at(outer, i, h, d), expected, tolerance)
              << "sequence " << b << " token " << i << " head " << h << " dim " << d;
        }
        if (std::isinf(lse)) {
          ASSERT_EQ(a.lse_at(outer, i, h), -kInf);
        } else {
          ASSERT_NEAR(a.lse_at(outer, i, h), lse, 1e-5 + 1e-6 * std::fabs(lse));
        }
      }
    }
  }
}

}  // namespace tessera
