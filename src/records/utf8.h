// UTF-8 as RFC 3629 has it.
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

// Bytes of the character that `text` begins with; 0 if it begins with no UTF-8 (RFC 3629: no overlong forms, no
// surrogates, nothing beyond U+10FFFF).
size_t utf8_length(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace tessera
