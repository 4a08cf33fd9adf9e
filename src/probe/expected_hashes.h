// Sums of the hashes in tests/vectors/ex2/ex2.json, so that the probe needs no file. A test keeps them equal; the CPU
// tests hold the models against the same hashes.
#pragma once

#include <cstdint>

namespace tessera {

struct ExpectedHash {
  const char* name;
  uint64_t sum;  // modulo 2^64
};

inline constexpr ExpectedHash kExpectedHashes[] = {
    {"ex2", 0x2a57ff826f110821ULL},          {"soft_exp2", 0xbb2e22133c20c6d5ULL},
    {"soft_log2", 0x884425297fe67765ULL},    {"soft_tanh", 0xe8ed4ae4e200e6aeULL},
    {"f32_to_f16", 0xfb5b12962f1008eeULL},   {"f32_to_bf16", 0x5ed8dd3363bef288ULL},
    {"ceil_product", 0xf6ceea937a0ac885ULL},
};

}  // namespace tessera
