// Prefill in chunks, then one token after the other: text generation on top of Engine::evaluate.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/sampler/sampler.h"

namespace tessera {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  int64_t chunk = 512;  // prompt tokens per evaluate call, >= 1; moves no bit
  SamplerParams sampler;
  uint64_t seed = 0;
  uint64_t rng_sequence = 0;  // second key of the RNG; position is the third
  bool stop_at_end = true;    // at an end-of-generation token
  bool hash_logits = false;   // fill logits_sha256; takes about a millisecond per token, outside the measured times
};

// Both may be empty. on_prefill: prompt tokens done and in all. on_text: the next valid UTF-8 piece; false stops.
struct GenerateCallbacks {
  std::function<void(int64_t, int64_t)> on_prefill;
  std::function<bool(const std::string&)> on_text;
};

enum class StopReason { kLength, kEndToken, kContext, kCancelled };
const char* stop_reason_name(StopReason reason);

struct GenerateResult {
  int64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;  // generated, the end token included
  std::string text;
  StopReason stop = StopReason::kLength;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of the evaluate calls after the prompt and of sampling
  int64_t decode_steps = 0;   // evaluate calls of one token
  std::string logits_sha256;  // over the fp32 logits, little-endian, of every sampled position in order; or empty
};

// Continues `sequence`, which may already hold a prefix, with `prompt` (not empty) and generates. The last generated
// token is not evaluated.
Status generate(Engine& engine, SequenceId sequence, std::span<const int32_t> prompt, const GenerateOptions& options,
                const GenerateCallbacks& callbacks, GenerateResult* result);

}  // namespace tessera
