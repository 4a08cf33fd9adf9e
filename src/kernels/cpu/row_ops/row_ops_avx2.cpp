#include "kernels/cpu/simd/avx2.h"

#include "kernels/cpu/row_ops/isa.h"
#include "kernels/cpu/row_ops/micro.h"

namespace tessera::row_ops {
namespace {

struct Avx2Pairs {
  using F = simd::Avx2::F;

  static F swap_pairs(F v) { return {_mm256_permute_ps(v.lo, 0xb1), _mm256_permute_ps(v.hi, 0xb1)}; }

  static __m256 duplicate4(const float* p) {
    const __m128 four = _mm_loadu_ps(p);
    return _mm256_set_m128(_mm_unpackhi_ps(four, four), _mm_unpacklo_ps(four, four));
  }

  static F duplicate8(const float* p) { return {duplicate4(p), duplicate4(p + 4)}; }
};

using Micro = RowMicro<simd::Avx2, Avx2Pairs>;

}  // namespace

const RowOps kAvx2RowOps = {"avx2", &avx2_available, &Micro::rms_norm, &Micro::swiglu, &Micro::rope};

}  // namespace tessera::row_ops
