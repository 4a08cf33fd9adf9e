// What the prefill kernel of a problem would launch, in words.
#pragma once

#include <string>

#include "tessera/tessera.h"

namespace tessera::sm90 {

// Lines of "key: value"; empty if there is no kernel of this head dim, dtype and mask. Needs no device.
std::string explain_prefill(const tessera_fmha_params& params);
std::string explain_ragged_prefill(const tessera_fmha_params& params);

}  // namespace tessera::sm90
