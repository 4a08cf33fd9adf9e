#include "records/utf8.h"

namespace tessera {

size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
  const unsigned b = byte(0);
  if (b < 0x80U) {
    return 1;
  }
  if (b >= 0xc2U && b <= 0xdfU) {
    return tail(1) ? 2 : 0;
  }
  if (b >= 0xe0U && b <= 0xefU) {
    const bool second = tail(1) && (b != 0xe0U || byte(1) >= 0xa0U) && (b != 0xedU || byte(1) <= 0x9fU);
    return second && tail(2) ? 3 : 0;
  }
  if (b >= 0xf0U && b <= 0xf4U) {
    const bool second = tail(1) && (b != 0xf0U || byte(1) >= 0x90U) && (b != 0xf4U || byte(1) <= 0x8fU);
    return second && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    if (n == 0) {
      return false;
    }
    text.remove_prefix(n);
  }
  return true;
}

}  // namespace tessera
