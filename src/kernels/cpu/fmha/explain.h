// How the CPU kernels cut a problem, in words.
#pragma once

#include <string>

#include "tessera/tessera.h"

namespace tessera {

// Lines of "key: value".
std::string explain_cpu_fmha(const tessera_fmha_params& params);

}  // namespace tessera
