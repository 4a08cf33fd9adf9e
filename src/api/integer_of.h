// Reading enum fields that C callers filled.
#pragma once

#include <cstdint>
#include <cstring>

namespace tessera {

// The integer that a caller stored in an enum. C callers may store any; loading a value outside the enum's range as the
// enum would be undefined.
template <class Enum>
int32_t integer_of(const Enum& field) {
  static_assert(sizeof(Enum) == sizeof(int32_t));
  int32_t integer;
  std::memcpy(&integer, &field, sizeof(integer));
  return integer;
}

}  // namespace tessera
