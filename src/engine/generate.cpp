#include "engine/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/sha256.h"
#include "engine/tokenizer/stream_decoder.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Status prefill(Engine& engine, SequenceId sequence, std::span<const int32_t> prompt, const GenerateOptions& options,
               const GenerateCallbacks& callbacks, std::vector<float>* logits) {
  const auto chunk = static_cast<size_t>(options.chunk);
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    const size_t n = std::min(chunk, prompt.size() - begin);
    const bool last = begin + n == prompt.size();
    const BatchItem item{sequence, prompt.subspan(begin, n), last ? 1 : 0};
    TESSERA_RETURN_IF_ERROR(engine.evaluate({&item, 1}, logits));
    if (callbacks.on_prefill) {
      callbacks.on_prefill(static_cast<int64_t>(begin + n), static_cast<int64_t>(prompt.size()));
    }
  }
  return {};
}

}  // namespace

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kLength:
      return "length";
    case StopReason::kEndToken:
      return "end";
    case StopReason::kContext:
      return "context";
    case StopReason::kCancelled:
      return "cancelled";
  }
  return "";
}

Status generate(Engine& engine, SequenceId sequence, std::span<const int32_t> prompt, const GenerateOptions& options,
                const GenerateCallbacks& callbacks, GenerateResult* result) {
  if (prompt.empty()) {
    return Status(Code::kInvalidArgument, "prompt: got no token; allowed at least one; give a text that is not empty");
  }
  if (options.chunk < 1) {
    return Status(Code::kInvalidArgument, fmt::format("chunk: got {}; allowed at least 1", options.chunk));
  }
  TESSERA_RETURN_IF_ERROR(check_sampler_params(options.sampler));
  // Before any work: a prompt that cannot fit must not cost a prefill first.
  const int64_t held = engine.length(sequence);
  const int64_t room = engine.context() - held;
  if (static_cast<int64_t>(prompt.size()) > room) {
    return Status(Code::kUnsupported, fmt::format("prompt: got {} tokens after {} that the context holds; allowed {}; "
                                                  "use a larger --context or a shorter prompt",
                                                  prompt.size(), held, room));
  }
  *result = GenerateResult();
  result->prompt_tokens = static_cast<int64_t>(prompt.size());

  std::vector<float> logits;
  const Clock::time_point start = Clock::now();
  TESSERA_RETURN_IF_ERROR(prefill(engine, sequence, prompt, options, callbacks, &logits));
  result->prefill_seconds = seconds_since(start);

  Sha256 hash;
  SamplerWorkspace workspace;
  StreamDecoder decoder(engine.tokenizer());
  const auto emit = [&](const std::string& piece) {
    result->text += piece;
    return piece.empty() || !callbacks.on_text || callbacks.on_text(piece);
  };
  while (static_cast<int64_t>(result->tokens.size()) < options.max_new_tokens) {
    if (options.hash_logits) {
      hash.update(logits.data(), logits.size() * sizeof(float));
    }
    const Clock::time_point step = Clock::now();
    const int64_t position = engine.length(sequence);
    Result<int32_t> token = sample(logits, options.sampler, options.seed, options.rng_sequence,
                                   static_cast<uint64_t>(position), &workspace);
    TESSERA_RETURN_IF_ERROR(token.status());
    result->tokens.push_back(token.value());
    if (options.stop_at_end && engine.tokenizer().is_eog(token.value())) {
      result->stop = StopReason::kEndToken;
      break;
    }
    Result<std::string> piece = decoder.push(token.value());
    TESSERA_RETURN_IF_ERROR(piece.status());
    if (!emit(piece.value())) {
      result->stop = StopReason::kCancelled;
      break;
    }
    if (position >= engine.context()) {
      result->stop = StopReason::kContext;
      break;
    }
    if (static_cast<int64_t>(result->tokens.size()) < options.max_new_tokens) {
      const BatchItem item{sequence, {&result->tokens.back(), 1}, 1};
      TESSERA_RETURN_IF_ERROR(engine.evaluate({&item, 1}, &logits));
      ++result->decode_steps;
    }
    result->decode_seconds += seconds_since(step);
  }
  emit(decoder.finish());
  result->logits_sha256 = options.hash_logits ? to_hex(hash.digest()) : std::string();
  return {};
}

}  // namespace tessera
