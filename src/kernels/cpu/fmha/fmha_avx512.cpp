// Attention in AVX-512.
#include "kernels/cpu/fmha/attend.h"
#include "kernels/cpu/simd/avx512.h"

namespace tessera {

const FmhaKernels kFmhaAvx512 = {cpu_fmha::attend<simd::Avx512>, cpu_fmha::combine<simd::Avx512>,
                                 cpu_fmha::merge<simd::Avx512>};

}  // namespace tessera
