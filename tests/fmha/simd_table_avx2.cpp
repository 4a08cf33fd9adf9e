#include "fmha/simd_table_of.h"
#include "kernels/cpu/simd/avx2.h"

namespace tessera::test {

const SimdTable kAvx2Table = TableOf<simd::Avx2>::table();

}  // namespace tessera::test
