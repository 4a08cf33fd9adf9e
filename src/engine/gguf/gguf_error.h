// The one sentence form of the GGUF reader's errors.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace tessera {

// "<file> at byte <offset>: <what>: got <got>; allowed <allowed>; <todo>"
inline Status gguf_error(Code code, std::string_view file, uint64_t offset, std::string_view what, std::string_view got,
                         std::string_view allowed, std::string_view todo) {
  return {code, fmt::format("{} at byte {}: {}: got {}; allowed {}; {}", file, offset, what, got, allowed, todo)};
}

}  // namespace tessera
