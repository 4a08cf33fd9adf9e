#include "fmha/simd_table_of.h"
#include "kernels/cpu/simd/avx512.h"

namespace tessera::test {

const SimdTable kAvx512Table = TableOf<simd::Avx512>::table();

}  // namespace tessera::test
