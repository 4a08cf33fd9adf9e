// Attention in AVX2, FMA and F16C.
#include "kernels/cpu/fmha/attend.h"
#include "kernels/cpu/simd/avx2.h"

namespace tessera {

const FmhaKernels kFmhaAvx2 = {cpu_fmha::attend<simd::Avx2>, cpu_fmha::combine<simd::Avx2>,
                               cpu_fmha::merge<simd::Avx2>};

}  // namespace tessera
