// Attention for every machine: the readable reference of the other two.
#include "kernels/cpu/fmha/attend.h"
#include "kernels/cpu/simd/portable.h"

namespace tessera {

const FmhaKernels kFmhaPortable = {cpu_fmha::attend<simd::Portable>, cpu_fmha::combine<simd::Portable>,
                                   cpu_fmha::merge<simd::Portable>};

}  // namespace tessera
