// SHA-256 (FIPS 180-4), streaming. Used to identify model files, weights and chat templates; not on any hot path.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera {

class Sha256 {
 public:
  Sha256();

  // Appends `bytes` bytes. Any split of a message into updates gives the same digest.
  void update(const void* data, size_t bytes);

  // Digest of everything appended so far; more updates may follow.
  std::array<uint8_t, 32> digest() const;

 private:
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> tail_{};  // bytes of the unfinished block, total_ % 64 of them
  uint64_t total_ = 0;              // message bytes so far
};

// 64 lower-case hex digits.
std::string sha256_hex(std::span<const std::byte> bytes);
std::string to_hex(const std::array<uint8_t, 32>& digest);

}  // namespace tessera
