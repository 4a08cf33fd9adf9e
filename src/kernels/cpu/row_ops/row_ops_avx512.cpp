#include "kernels/cpu/simd/avx512.h"

#include "kernels/cpu/row_ops/isa.h"
#include "kernels/cpu/row_ops/micro.h"

namespace tessera::row_ops {
namespace {

struct Avx512Pairs {
  using F = simd::Avx512::F;

  static F swap_pairs(F v) { return _mm512_permute_ps(v, 0xb1); }

  static F duplicate8(const float* p) {
    const __m512i order = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }
};

using Micro = RowMicro<simd::Avx512, Avx512Pairs>;

}  // namespace

const RowOps kAvx512RowOps = {"avx512", &avx512_available, &Micro::rms_norm, &Micro::swiglu, &Micro::rope};

}  // namespace tessera::row_ops
