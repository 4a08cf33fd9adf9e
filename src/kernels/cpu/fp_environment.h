// The floating-point environment of the numeric contract: round to nearest even, subnormals kept, no traps.
//
// Applications switch flush-to-zero on for their own reasons, and bits must not depend on that. Every task of a CPU
// kernel runs inside one of these.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tessera {

class FpEnvironment {
 public:
#if defined(__SSE2__)
  FpEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & kControlBits) != kDefault) _mm_setcsr(kDefault);
  }
  ~FpEnvironment() {
    if ((saved_ & kControlBits) != kDefault) _mm_setcsr(saved_);
  }
#else
  FpEnvironment() = default;
  ~FpEnvironment() = default;
#endif
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

#if defined(__SSE2__)
 private:
  static constexpr unsigned kControlBits = 0xffc0;  // MXCSR without the sticky exception flags
  static constexpr unsigned kDefault = 0x1f80;      // all exceptions masked, nearest even, no FTZ, no DAZ
  unsigned saved_;
#endif
};

}  // namespace tessera
