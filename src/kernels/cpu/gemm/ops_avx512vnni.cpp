// The matrix product with AVX-512 VNNI.
#include "kernels/cpu/gemm/dot_avx512.h"

namespace tessera::gemm {

const Ops kAvx512VnniOps = {&Avx512Micro::act_bytes, &Avx512Micro::scratch_bytes, &Avx512Micro::quantize,
                            &Avx512Micro::multiply, 128};

}  // namespace tessera::gemm
