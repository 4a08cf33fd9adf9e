// Division by numbers that the host knows.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace tessera::sm90 {

// Division of numbers below 2^31 by a number that the host knows: (n * multiplier) >> shift, exact because the
// multiplier is 2^shift / divisor rounded up and shift is 31 + ceil(log2 divisor).
struct Divisor {
  uint32_t value = 1;
  uint32_t multiplier = 1U << 31;
  uint32_t shift = 31;

  static constexpr Divisor of(uint32_t value) {
    uint32_t bits = 0;
    while (uint64_t{1} << bits < value) {
      ++bits;
    }
    return {value, static_cast<uint32_t>(((uint64_t{1} << (31 + bits)) + value - 1) / value), 31 + bits};
  }
};

TESSERA_HD int divide(int number, const Divisor& divisor) {
  return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(number)) * divisor.multiplier >> divisor.shift);
}

}  // namespace tessera::sm90
