#include "kernels/cpu/row_ops/isa.h"
#include "kernels/cpu/row_ops/micro.h"
#include "kernels/cpu/simd/portable.h"

namespace tessera::row_ops {
namespace {

struct PortablePairs {
  using F = simd::Portable::F;

  static F swap_pairs(F v) {
    F r;
    for (int t = 0; t < 16; ++t) r.x[t] = v.x[t ^ 1];
    return r;
  }

  static F duplicate8(const float* p) {
    F r;
    for (int t = 0; t < 16; ++t) r.x[t] = p[t / 2];
    return r;
  }
};

using Micro = RowMicro<simd::Portable, PortablePairs>;

}  // namespace

const RowOps kPortableRowOps = {"portable", &portable_available, &Micro::rms_norm, &Micro::swiglu, &Micro::rope};

}  // namespace tessera::row_ops
