// Options that every command with a model shares, and loading it with a progress line.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/tokenizer/chat_template.h"

namespace tessera::cli {

struct ModelOptions {
  std::string model;  // path, or "demo"
  std::string backend = "auto";
  int32_t threads = 0;
  int64_t context = 0;
  std::string kv_type = "f32";
  int64_t page_size = 16;
  int64_t chunk = 512;
  bool json = false;

  void add_to(CLI::App& command);
  // Ways to run that move no bit, for commands that do not choose them themselves.
  void add_schedule_to(CLI::App& command);
};

struct SamplingOptions {
  SamplerParams sampler;
  uint64_t seed = 0;

  void add_to(CLI::App& command);
};

// The chat format called `name`, or, when it is empty, the one that the model's own template selects.
Result<ChatTemplate> select_chat_template(const Tokenizer& tokenizer, const std::string& name);

// Loads the model; *seconds is how long it took. kUnsupported for --backend cuda when this build has no CUDA engine.
Result<std::unique_ptr<Engine>> load_engine(const ModelOptions& options, int64_t cache_tokens, double* seconds);

}  // namespace tessera::cli
