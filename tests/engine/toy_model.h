// Tiny random models with every architecture and weight type, written as GGUF files for the engine's tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/gguf/types.h"
#include "gguf/gguf_writer.h"

namespace tessera::testing {

struct ToySpec {
  std::string arch = "llama";                         // llama, qwen2, qwen3
  std::vector<TensorType> types = {TensorType::F32};  // of the matrices, in turn
  bool tied = true;                                   // no output.weight
  bool rope_factors = false;                          // rope_freqs.weight
  uint64_t seed = 1;
};

inline constexpr int64_t kToyHidden = 256;  // a multiple of every block size
inline constexpr int64_t kToyFfn = 512;
inline constexpr int64_t kToyHeads = 4;
inline constexpr int64_t kToyHeadsKv = 2;
inline constexpr int64_t kToyHeadDim = 64;
inline constexpr int64_t kToyLayers = 2;
inline constexpr int64_t kToyVocab = 262;  // 256 bytes, 4 merged tokens, <|end|>, one unused
inline constexpr int64_t kToyContext = 512;

// The whole model; tests may damage single keys or tensors before build().
GgufWriter toy_model(const ToySpec& spec);

// Writes the bytes to a file of this name under the test's temporary folder and returns its path.
std::string write_file(const std::string& name, const std::string& bytes);

}  // namespace tessera::testing
