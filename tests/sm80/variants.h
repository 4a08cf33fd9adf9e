// Schedules that the library does not use; their bytes must be its bytes.
#pragma once

#include <span>

#include "kernels/sm80/fmha/entry.h"

namespace tessera::test {

struct Variant {
  const char* name;
  sm80::Entry entry;
};

std::span<const Variant> variants();

}  // namespace tessera::test
