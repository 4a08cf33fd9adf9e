// tessera run: text generation from one prompt.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/model_options.h"
#include "cli/option_checks.h"
#include "engine/tokenizer/chat_template.h"
#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  std::string chat_template;
  int64_t max_new_tokens = 128;
  bool chat = false;
  bool ignore_end = false;
};

double rate(double count, double seconds) {
  return seconds > 0 ? count / seconds : 0;
}

Result<std::string> read_prompt(const RunOptions& o) {
  if (o.prompt_file.empty()) {
    return o.prompt;
  }
  return read_text_file(o.prompt_file);
}

// Tokens of the prompt: as it stands, or as one user message of the model's chat format.
Result<std::vector<TokenId>> prompt_tokens(const RunOptions& o, const Tokenizer& tokenizer, const std::string& text) {
  if (!o.chat) {
    return tokenizer.encode(text, {.add_special = true, .parse_special = false});
  }
  Result<ChatTemplate> format = select_chat_template(tokenizer, o.chat_template);
  TESSERA_RETURN_IF_ERROR(format.status());
  std::vector<ChatMessage> messages;
  if (!o.system.empty()) {
    messages.push_back({"system", o.system});
  }
  messages.push_back({"user", text});
  Result<std::vector<TextSegment>> segments = render_chat(format.value(), messages);
  TESSERA_RETURN_IF_ERROR(segments.status());
  return tokenizer.encode(segments.value(), false);
}

nlohmann::ordered_json report(const Engine& engine, const std::string& contract, const RunOptions& o,
                              const GenerateResult& r, double load_seconds) {
  nlohmann::ordered_json j;
  j["tessera"] = tessera_version();
  j["contract_id"] = contract;
  j["model"] = engine.config().name;
  j["backend"] = "cpu";
  j["threads"] = engine.threads();
  j["chunk"] = o.model.chunk;
  j["kv_type"] = o.model.kv_type;
  j["prompt_tokens"] = r.prompt_tokens;
  j["tokens"] = r.tokens;
  j["text"] = r.text;
  j["stop"] = stop_reason_name(r.stop);
  j["logits_sha256"] = r.logits_sha256;
  j["load_seconds"] = load_seconds;
  j["prefill_seconds"] = r.prefill_seconds;
  j["prefill_tok_s"] = rate(static_cast<double>(r.prompt_tokens), r.prefill_seconds);
  j["decode_seconds"] = r.decode_seconds;
  j["decode_tok_s"] = rate(static_cast<double>(r.decode_steps), r.decode_seconds);
  return j;
}

int run(const RunOptions& o) {
  if (const Status s = check_sampler_params(o.sampling.sampler); !s.ok()) {
    return fail(s);
  }
  Result<std::string> text = read_prompt(o);
  if (!text.ok()) {
    return fail(text.status());
  }
  double load_seconds = 0;
  Result<std::unique_ptr<Engine>> loaded = load_engine(o.model, 0, &load_seconds);
  if (!loaded.ok()) {
    return fail(loaded.status());
  }
  Engine& engine = *loaded.value();
  Result<std::vector<TokenId>> prompt = prompt_tokens(o, engine.tokenizer(), text.value());
  if (!prompt.ok()) {
    return fail(prompt.status());
  }
  Result<std::string> contract = engine.contract_id();
  if (!contract.ok()) {
    return fail(contract.status());
  }

  GenerateOptions options;
  options.max_new_tokens = o.max_new_tokens;
  options.chunk = o.model.chunk;
  options.sampler = o.sampling.sampler;
  options.seed = o.sampling.seed;
  options.stop_at_end = !o.ignore_end;
  options.hash_logits = o.model.json;
  ProgressLine line("prefill", !o.model.json);
  GenerateCallbacks callbacks;
  callbacks.on_prefill = [&line](int64_t done, int64_t total) {
    line.update(static_cast<double>(done) / static_cast<double>(total), fmt::format("{} of {} tokens", done, total));
    if (done == total) {
      line.clear();
    }
  };
  if (!o.model.json) {
    callbacks.on_text = [](const std::string& piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      return std::fflush(stdout) == 0;  // a closed pipe ends the generation
    };
  }
  GenerateResult result;
  const Status status = generate(engine, engine.new_sequence(), prompt.value(), options, callbacks, &result);
  line.clear();
  if (!status.ok()) {
    return fail(status);
  }
  if (o.model.json) {
    fmt::print("{}\n", report(engine, contract.value(), o, result, load_seconds)
                           .dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return kGood;
  }
  if (result.stop == StopReason::kCancelled) {
    return kGood;  // main says why
  }
  fmt::print("\n");
  std::fflush(stdout);
  fmt::print(stderr, "\n[{} | load {:.2f} s | prefill {} tokens, {:.1f} tok/s | decode {} tokens, {:.1f} tok/s | {}]\n",
             engine.config().name, load_seconds, result.prompt_tokens,
             rate(static_cast<double>(result.prompt_tokens), result.prefill_seconds), result.tokens.size(),
             rate(static_cast<double>(result.decode_steps), result.decode_seconds), contract.value());
  return kGood;
}

}  // namespace

void add_run(CLI::App& app, int* exit_code) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Generate text from a prompt");
  o->model.add_to(*command);
  o->model.add_schedule_to(*command);
  o->sampling.add_to(*command);
  auto* prompt = command->add_option("-p,--prompt", o->prompt, "the prompt's text");
  auto* file = command->add_option("-f,--prompt-file", o->prompt_file, "file with the prompt's text")->excludes(prompt);
  command->add_option("-n,--max-new-tokens", o->max_new_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->check(whole_number<int64_t>(0));
  auto* chat = command->add_flag("--chat", o->chat, "put the prompt as a user message in the model's chat format");
  command->add_option("--system", o->system, "system message for --chat")->needs(chat);
  command
      ->add_option("--chat-template", o->chat_template,
                   "chat format instead of the model's own: chatml, smollm2, qwen2.5, qwen3, llama3")
      ->needs(chat);
  command->add_flag("--ignore-end", o->ignore_end, "go on after an end-of-generation token");
  command->callback([o, prompt, file, exit_code] {
    if (prompt->count() + file->count() == 0) {
      print_error("prompt: got none; allowed -p TEXT or -f FILE");
      *exit_code = kBadInput;
      return;
    }
    *exit_code = run(*o);
  });
}

}  // namespace tessera::cli
