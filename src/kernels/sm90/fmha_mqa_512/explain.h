// What the kernel would launch, for people.
#pragma once

#include <string>

#include "tessera/tessera.h"

namespace tessera::sm90 {

std::string explain_mqa_512(const tessera_fmha_params& params);

}  // namespace tessera::sm90
