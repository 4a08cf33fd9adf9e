// Philox4x32-10: a counter-based random number generator.
//
// Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3: ten rounds of a
// Feistel-like bijection of a 128-bit counter under a 64-bit key. There is no state to carry along: the numbers of a
// (key, counter) pair are the same in every batch, thread and process. Known answers are in
// tests/sampler/philox_test.cpp.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

// Four independent uniform 32-bit words.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // key schedule: golden ratio, sqrt(3) - 1
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

// A number in [0, 1) with 53 random bits, a function of its three arguments alone.
constexpr double philox_uniform(std::uint64_t seed, std::uint64_t sequence, std::uint64_t position) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  const std::array<std::uint32_t, 4> words =
      philox4x32({low(position), high(position), low(sequence), high(sequence)}, {low(seed), high(seed)});
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32) | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace tessera
