// What the prefill kernel of head dim 512 would launch, in words.
#pragma once

#include <string>

#include "tessera/tessera.h"

namespace tessera::sm90 {

// Lines of "key: value". Needs no device.
std::string explain_prefill_512(const tessera_fmha_params& params);

}  // namespace tessera::sm90
