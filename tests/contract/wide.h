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

// Sanitized builds run the same arithmetic ten times slower; they leave the long sweeps to the plain build.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESSERA_TEST_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TESSERA_TEST_SANITIZED 1
#endif
#if defined(TESSERA_TEST_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
