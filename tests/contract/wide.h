// Sweeps over millions of inputs are compiled twice, for the baseline and for AVX2 with FMA (where the fused operations
// of the contract are single instructions instead of calls), and picked at run time. The results are the same bits.
#pragma once

#if defined(__x86_64__)
#define TESSERA_TEST_WIDE __attribute__((target("avx2,fma,bmi,bmi2,lzcnt")))
inline bool has_wide() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define TESSERA_TEST_WIDE
inline bool has_wide() {
  return false;
}
#endif
