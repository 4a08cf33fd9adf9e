#include "contract/ex2_sm90.h"

#include <cstddef>

// data/ex2_sm90.bin, linked in as it is. TESSERA_EX2_TABLE is its path, from the build.
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    ".globl tessera_ex2_sm90_begin\n"
    ".hidden tessera_ex2_sm90_begin\n"
    "tessera_ex2_sm90_begin:\n"
    ".incbin \"" TESSERA_EX2_TABLE
    "\"\n"
    ".globl tessera_ex2_sm90_end\n"
    ".hidden tessera_ex2_sm90_end\n"
    "tessera_ex2_sm90_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" {
extern const unsigned char tessera_ex2_sm90_begin[];
extern const unsigned char tessera_ex2_sm90_end[];
}

namespace tessera {
namespace {

constexpr uint32_t kEntries = 1U << 23;
constexpr unsigned char kLongStep = 254;
constexpr unsigned char kEnd = 255;
constexpr uint32_t kLongStepEntries = 127;

// Little-endian integer at `at`, which moves past it.
template <class T>
T take(const unsigned char*& at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<uint64_t>(at[i]) << (8 * i);
  }
  at += sizeof(T);
  return static_cast<T>(value);
}

}  // namespace

Ex2Sm90::Ex2Sm90() : corrections_(kEntries / 4, 0) {
  const unsigned char* at = tessera_ex2_sm90_begin;
  for (Segment& segment : segments_) {
    segment.base = take<uint32_t>(at);
    segment.c0 = take<int64_t>(at);
    segment.c1 = take<int64_t>(at);
    segment.c2 = take<int64_t>(at);
  }
  uint32_t f = 0;
  for (; at < tessera_ex2_sm90_end && *at != kEnd && f < kEntries; ++at) {
    if (*at == kLongStep) {
      f += kLongStepEntries;
      continue;
    }
    f += *at >> 1U;
    if (f < kEntries) {
      const uint32_t code = (*at & 1U) != 0 ? 1U : 3U;
      corrections_[f >> 2] = static_cast<uint8_t>(corrections_[f >> 2] | code << (2 * (f & 3)));
    }
    ++f;
  }
}

const Ex2Sm90& ex2_sm90() {
  static const Ex2Sm90 model;
  return model;
}

}  // namespace tessera
