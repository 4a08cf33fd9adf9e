// What run_fmha_sm80 would launch, in words.
#pragma once

#include <string>

#include "tessera/tessera.h"

namespace tessera {

// Lines of "key: value"; empty if the kernel does not take the problem. Needs no device.
std::string explain_fmha_sm80(const tessera_fmha_params& params);

}  // namespace tessera
