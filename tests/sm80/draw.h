// Attention problems drawn from a seed: mixes of every feature that the sm_80 kernels have.
#pragma once

#include <cstdint>

#include "fmha/problem.h"

namespace tessera::test {

FmhaSpec draw_device_spec(uint64_t seed);

}  // namespace tessera::test
