#include "cli/model_options.h"

#include <fmt/format.h>

#include <chrono>

#include "cli/console.h"
#include "cli/demo_model.h"
#include "cli/option_checks.h"

namespace tessera::cli {

void ModelOptions::add_to(CLI::App& command) {
  command.add_option("-m,--model", model, "GGUF file, or 'demo' for SmolLM2-135M-Instruct (fetched once)")->required();
  command.add_option("--backend", backend, "auto or cpu; cuda is refused: this build's engine computes on the CPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command.add_option("-t,--threads", threads, "CPU threads; 0: all. Moves no bit")
      ->check(whole_number<int32_t>(0, 1024));
  command.add_option("--context", context, "longest sequence in tokens; 0: the model's own, at most 8192")
      ->check(whole_number<int64_t>(0));
  command.add_option("--kv-type", kv_type, "f32; f16 and bf16 halve the KV cache and round what attention reads")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  command.add_flag("--json", json, "one JSON object on stdout instead of text");
}

void ModelOptions::add_schedule_to(CLI::App& command) {
  command.add_option("--page-size", page_size, "tokens per KV page. Moves no bit")
      ->capture_default_str()
      ->check(whole_number<int64_t>(1));
  command.add_option("--chunk", chunk, "prompt tokens per step. Moves no bit")
      ->capture_default_str()
      ->check(whole_number<int64_t>(1));
}

void SamplingOptions::add_to(CLI::App& command) {
  command.add_option("--temp", sampler.temperature, "temperature; 0: greedy (default)")
      ->capture_default_str()
      ->check(real_number());
  command.add_option("--top-k", sampler.top_k, "keep the k best tokens; 0: all")
      ->capture_default_str()
      ->check(whole_number<int32_t>(0));
  command.add_option("--top-p", sampler.top_p, "keep the best tokens that hold this share")
      ->capture_default_str()
      ->check(real_number());
  command.add_option("--min-p", sampler.min_p, "keep tokens at least this share as probable as the best")
      ->capture_default_str()
      ->check(real_number());
  command.add_option("--seed", seed, "seed of the random numbers")
      ->capture_default_str()
      ->check(whole_number<uint64_t>(0));
}

Result<ChatTemplate> select_chat_template(const Tokenizer& tokenizer, const std::string& name) {
  return name.empty() ? chat_template_by_source(tokenizer.chat_template()) : chat_template_by_name(name);
}

Result<std::unique_ptr<Engine>> load_engine(const ModelOptions& options, int64_t cache_tokens, double* seconds) {
  if (options.backend == "cuda") {
    return Status(
        Code::kUnsupported,
        "backend: got cuda; allowed auto or cpu: the engine of this build computes on the CPU; use --backend cpu");
  }
  if (options.model.empty()) {
    return Status(Code::kInvalidArgument, "model: got an empty path; allowed a GGUF file or demo; name one with -m");
  }
  std::string path = options.model;
  if (path == "demo") {
    Result<std::string> demo = demo_model_path();
    TESSERA_RETURN_IF_ERROR(demo.status());
    path = demo.value();
  }
  const auto start = std::chrono::steady_clock::now();
  ProgressLine line("load", !options.json);
  EngineOptions engine_options;
  engine_options.threads = options.threads;
  engine_options.context = options.context;
  engine_options.cache_tokens = cache_tokens;
  engine_options.page_size = options.page_size;
  engine_options.kv_dtype = options.kv_type == "f32"   ? TESSERA_F32
                            : options.kv_type == "f16" ? TESSERA_F16
                                                       : TESSERA_BF16;
  engine_options.progress = [&line](uint64_t done, uint64_t total) {
    line.update(static_cast<double>(done) / static_cast<double>(total),
                fmt::format("{} of {}", megabytes(done), megabytes(total)));
  };
  Result<std::unique_ptr<Engine>> engine = Engine::load(path, engine_options);
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return engine;
}

}  // namespace tessera::cli
