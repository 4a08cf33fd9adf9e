#include "kernels/cpu/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif

namespace tessera {
namespace {

#if defined(__x86_64__)

bool bit(uint32_t word, int index) {
  return (word >> index & 1u) != 0;
}

// Register state that the operating system saves (XCR0). Needs OSXSAVE.
uint64_t saved_state() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Bit positions: Intel SDM volume 2, CPUID leaves 1 and 7.
CpuFeatures detect() {
  CpuFeatures found;
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !bit(c, 27)) return found;  // no OSXSAVE
  const bool fma = bit(c, 12);
  const bool f16c = bit(c, 29);
  const uint64_t state = saved_state();
  const bool ymm = (state & 0x6u) == 0x6u;
  const bool zmm = (state & 0xe6u) == 0xe6u;
  const bool tiles = (state & 0x60000u) == 0x60000u;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  const uint32_t subleaves = a;
  found.avx2 = ymm && fma && f16c && bit(b, 5);
  found.avx512 = found.avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  found.avx512_vnni = found.avx512 && bit(c, 11);
  found.amx = tiles && bit(d, 22) && bit(d, 24) && bit(d, 25);
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) found.avx_vnni = found.avx2 && bit(a, 4);
  return found;
}

#else

CpuFeatures detect() {
  return {};
}

#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace tessera
