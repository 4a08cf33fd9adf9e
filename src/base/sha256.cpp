#include "base/sha256.h"

#include <algorithm>

#include "base/sha256_blocks.h"

namespace tessera {
namespace {

void store_be32(uint8_t* p, uint32_t v) {
  p[0] = static_cast<uint8_t>(v >> 24);
  p[1] = static_cast<uint8_t>(v >> 16);
  p[2] = static_cast<uint8_t>(v >> 8);
  p[3] = static_cast<uint8_t>(v);
}

Sha256Blocks best_blocks() {
  const Sha256Blocks accelerated = sha256_blocks_shani();
  return accelerated != nullptr ? accelerated : sha256_blocks_portable;
}

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::update(const void* data, size_t bytes) {
  static const Sha256Blocks blocks = best_blocks();
  const auto* p = static_cast<const uint8_t*>(data);
  size_t held = static_cast<size_t>(total_ % 64);
  total_ += bytes;
  if (held > 0) {
    const size_t n = std::min(bytes, 64 - held);
    std::copy_n(p, n, tail_.begin() + static_cast<std::ptrdiff_t>(held));
    p += n;
    bytes -= n;
    if (held + n < 64) return;
    blocks(state_.data(), tail_.data(), 1);
  }
  blocks(state_.data(), p, bytes / 64);
  std::copy_n(p + bytes / 64 * 64, bytes % 64, tail_.begin());
}

std::array<uint8_t, 32> Sha256::digest() const {
  Sha256 last = *this;
  const uint64_t bits = total_ * 8;
  const std::array<uint8_t, 64> pad = {0x80};
  // The padding ends 8 bytes before a block boundary, where the message length in bits follows.
  last.update(pad.data(), 1 + (119 - total_ % 64) % 64);
  std::array<uint8_t, 8> length;
  store_be32(length.data(), static_cast<uint32_t>(bits >> 32));
  store_be32(length.data() + 4, static_cast<uint32_t>(bits));
  last.update(length.data(), length.size());
  std::array<uint8_t, 32> out;
  for (size_t i = 0; i < 8; ++i) store_be32(out.data() + 4 * i, last.state_[i]);
  return out;
}

std::string to_hex(const std::array<uint8_t, 32>& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(64);
  for (const uint8_t b : digest) {
    out += kDigits[b >> 4];
    out += kDigits[b & 15];
  }
  return out;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 sha;
  sha.update(bytes.data(), bytes.size());
  return to_hex(sha.digest());
}

}  // namespace tessera
