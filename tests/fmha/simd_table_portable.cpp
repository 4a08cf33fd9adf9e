#include "fmha/simd_table_of.h"
#include "kernels/cpu/simd/portable.h"

namespace tessera::test {

const SimdTable kPortableTable = TableOf<simd::Portable>::table();

}  // namespace tessera::test
