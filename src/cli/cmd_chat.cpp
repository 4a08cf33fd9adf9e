// tessera chat: a conversation on the terminal. Every turn renders the whole conversation and keeps the cached tokens
// that are still its prefix; under the contract that gives the bits of starting afresh.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/model_options.h"
#include "cli/option_checks.h"

namespace tessera::cli {
namespace {

struct ChatCommandOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system;
  std::string chat_template;
  int64_t max_new_tokens = 512;
};

class Conversation {
 public:
  Conversation(Engine& engine, ChatTemplate format, const ChatCommandOptions& options)
      : engine_(engine), format_(format), options_(options), sequence_(engine.new_sequence()) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!options_.system.empty()) {
      messages_.push_back({"system", options_.system});
    }
  }

  Status turn(const std::string& user, GenerateResult* result) {
    messages_.push_back({"user", user});
    Result<std::vector<TextSegment>> segments = render_chat(format_, messages_);
    TESSERA_RETURN_IF_ERROR(segments.status());
    Result<std::vector<TokenId>> tokens = engine_.tokenizer().encode(segments.value(), false);
    TESSERA_RETURN_IF_ERROR(tokens.status());
    const std::vector<TokenId>& prompt = tokens.value();

    // At least the last token is evaluated again, for its logits.
    const size_t most = std::min(cached_.size(), prompt.size() - 1);
    const auto mismatch =
        std::mismatch(cached_.begin(), cached_.begin() + static_cast<std::ptrdiff_t>(most), prompt.begin());
    const auto keep = mismatch.first - cached_.begin();
    engine_.truncate(sequence_, keep);

    GenerateOptions generate_options;
    generate_options.max_new_tokens = options_.max_new_tokens;
    generate_options.chunk = options_.model.chunk;
    generate_options.sampler = options_.sampling.sampler;
    generate_options.seed = options_.sampling.seed;
    GenerateCallbacks callbacks;
    if (!options_.model.json) {
      callbacks.on_text = [](const std::string& piece) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        return std::fflush(stdout) == 0;
      };
    }
    Status status = generate(engine_, sequence_, std::span(prompt).subspan(static_cast<size_t>(keep)), generate_options,
                             callbacks, result);
    cached_ = prompt;
    cached_.insert(cached_.end(), result->tokens.begin(), result->tokens.end());
    cached_.resize(static_cast<size_t>(engine_.length(sequence_)));  // what the cache really holds
    if (status.ok()) {
      messages_.push_back({"assistant", result->text});
    } else {
      messages_.pop_back();
    }
    return status;
  }

 private:
  Engine& engine_;
  ChatTemplate format_;
  const ChatCommandOptions& options_;
  SequenceId sequence_;
  std::vector<ChatMessage> messages_;
  std::vector<TokenId> cached_;  // tokens whose K/V rows are in the cache
};

int chat(const ChatCommandOptions& o) {
  if (const Status s = check_sampler_params(o.sampling.sampler); !s.ok()) {
    return fail(s);
  }
  double load_seconds = 0;
  Result<std::unique_ptr<Engine>> engine = load_engine(o.model, 0, &load_seconds);
  if (!engine.ok()) {
    return fail(engine.status());
  }
  Result<ChatTemplate> format = select_chat_template(engine.value()->tokenizer(), o.chat_template);
  if (!format.ok()) {
    return fail(format.status());
  }
  const bool terminal = isatty(STDIN_FILENO) != 0 && !o.model.json;
  if (terminal) {
    fmt::print(stderr, "{} | {} format | /reset forgets the conversation, /exit or Ctrl-D ends\n",
               engine.value()->config().name, chat_template_name(format.value()));
  }
  Conversation conversation(*engine.value(), format.value(), o);
  std::string line;
  while (true) {
    if (terminal) {
      fmt::print(stderr, "\n> ");
    }
    if (!std::getline(std::cin, line) || line == "/exit") {
      return kGood;
    }
    if (line == "/reset") {
      conversation.reset();
      continue;
    }
    if (line.empty()) {
      continue;
    }
    GenerateResult result;
    if (const Status s = conversation.turn(line, &result); !s.ok()) {
      return fail(s);
    }
    if (result.stop == StopReason::kCancelled) {
      return kGood;  // nobody reads the answers; main says why
    }
    if (o.model.json) {
      const nlohmann::ordered_json j = {{"user", line},
                                        {"assistant", result.text},
                                        {"tokens", result.tokens},
                                        {"stop", stop_reason_name(result.stop)},
                                        {"prompt_tokens_evaluated", result.prompt_tokens}};
      fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      fmt::print("\n");
    }
    std::fflush(stdout);
  }
}

}  // namespace

void add_chat(CLI::App& app, int* exit_code) {
  auto o = std::make_shared<ChatCommandOptions>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a model; one line of stdin is one message");
  o->model.add_to(*command);
  o->model.add_schedule_to(*command);
  o->sampling.add_to(*command);
  command->add_option("--system", o->system, "system message");
  command->add_option("--chat-template", o->chat_template,
                      "chat format instead of the model's own: chatml, smollm2, qwen2.5, qwen3, llama3");
  command->add_option("-n,--max-new-tokens", o->max_new_tokens, "tokens per answer at most")
      ->capture_default_str()
      ->check(whole_number<int64_t>(1));
  command->callback([o, exit_code] { *exit_code = chat(*o); });
}

}  // namespace tessera::cli
