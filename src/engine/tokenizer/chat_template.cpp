#include "engine/tokenizer/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/sha256.h"
#include "engine/tokenizer/unicode.h"

namespace tessera {
namespace {

struct Name {
  std::string_view name;
  ChatTemplate chat_template;
};
constexpr Name kNames[] = {
    {"chatml", ChatTemplate::kChatMl}, {"smollm2", ChatTemplate::kSmolLm2}, {"qwen2.5", ChatTemplate::kQwen25},
    {"qwen3", ChatTemplate::kQwen3},   {"llama3", ChatTemplate::kLlama3},
};
constexpr std::string_view kNameList = "chatml, smollm2, qwen2.5, qwen3, llama3";

struct KnownSource {
  std::string_view sha256;
  ChatTemplate chat_template;
};
constexpr KnownSource kKnownSources[] = {
    // SmolLM2-Instruct, 135M to 1.7B
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", ChatTemplate::kSmolLm2},
    // Qwen2.5-Instruct and Qwen2.5-Coder-Instruct
    {"cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f", ChatTemplate::kQwen25},
    // Qwen3: the first release and its revision; they differ in how tools and non-text content are treated
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", ChatTemplate::kQwen3},
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", ChatTemplate::kQwen3},
    // Meta-Llama-3-Instruct (not 3.1 and later, which write the date and tools)
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", ChatTemplate::kLlama3},
};

constexpr std::string_view kSmolLm2System = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
constexpr std::string_view kQwen25System = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

// Collects segments, joining neighbours of one kind.
class Prompt {
 public:
  Prompt& markup(std::string_view text) { return add(text, true); }
  Prompt& content(std::string_view text) { return add(text, false); }
  std::vector<TextSegment> take() { return std::move(segments_); }

 private:
  Prompt& add(std::string_view text, bool is_special) {
    if (segments_.empty() || segments_.back().is_special != is_special) {
      if (text.empty()) {
        return *this;
      }
      segments_.push_back({std::string(), is_special});
    }
    segments_.back().text += text;
    return *this;
  }

  std::vector<TextSegment> segments_;
};

void add_chatml_turn(std::string_view role, std::string_view content, Prompt& prompt) {
  prompt.markup("<|im_start|>").markup(role).markup("\n").content(content).markup("<|im_end|>\n");
}

void render_chatml(std::span<const ChatMessage> messages, std::string_view default_system, ChatOptions options,
                   Prompt& prompt) {
  if (!default_system.empty() && messages[0].role != "system") {
    prompt.markup("<|im_start|>system\n").markup(default_system).markup("<|im_end|>\n");
  }
  for (const ChatMessage& message : messages) {
    add_chatml_turn(message.role, message.content, prompt);
  }
  if (options.add_generation_prompt) {
    prompt.markup("<|im_start|>assistant\n");
  }
}

std::string_view without_leading_newlines(std::string_view text) {
  const std::size_t first = text.find_first_not_of('\n');
  return first == text.npos ? std::string_view() : text.substr(first);
}

std::string_view without_trailing_newlines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);  // npos + 1 == 0
}

struct Thought {
  std::string_view reasoning;
  std::string_view answer;
};

// What stands between the last <think> and the first </think>, and what follows the last </think>.
Thought split_thought(std::string_view content) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const std::size_t close = content.find(kClose);
  if (close == content.npos) {
    return {{}, content};
  }
  std::string_view reasoning = without_trailing_newlines(content.substr(0, close));
  if (const std::size_t open = reasoning.rfind(kOpen); open != reasoning.npos) {
    reasoning.remove_prefix(open + kOpen.size());
  }
  const std::string_view answer = content.substr(content.rfind(kClose) + kClose.size());
  return {without_leading_newlines(reasoning), without_leading_newlines(answer)};
}

bool is_tool_response(std::string_view content) {
  return content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
}

void render_qwen3(std::span<const ChatMessage> messages, ChatOptions options, Prompt& prompt) {
  std::size_t last_query = messages.size() - 1;
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == "user" && !is_tool_response(messages[i].content)) {
      last_query = i;
      break;
    }
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "assistant") {
      add_chatml_turn(message.role, message.content, prompt);
      continue;
    }
    const Thought thought = split_thought(message.content);
    prompt.markup("<|im_start|>assistant\n");
    const bool is_last = i + 1 == messages.size();
    if (i > last_query && (is_last || !thought.reasoning.empty())) {
      prompt.markup("<think>\n").content(without_trailing_newlines(thought.reasoning)).markup("\n</think>\n\n");
      prompt.content(without_leading_newlines(thought.answer));
    } else {
      prompt.content(thought.answer);
    }
    prompt.markup("<|im_end|>\n");
  }
  if (options.add_generation_prompt) {
    prompt.markup("<|im_start|>assistant\n");
    if (!options.enable_thinking) {
      prompt.markup("<think>\n\n</think>\n\n");
    }
  }
}

// What Python's str.strip() removes: white space, and the four separators U+001C..U+001F.
bool is_stripped(const Utf8Char& c) {
  return c.state == Utf8State::kValid &&
         (char_class(c.code_point) == CharClass::kSpace || (c.code_point >= 0x1C && c.code_point <= 0x1F));
}

std::string_view trim(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text, 0);
    if (!is_stripped(c)) {
      break;
    }
    text.remove_prefix(c.length);
  }
  while (!text.empty()) {
    std::size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0u) == 0x80u && text.size() - start < 4) {
      --start;
    }
    const Utf8Char c = decode_utf8(text, start);
    if (!is_stripped(c) || start + c.length != text.size()) {
      break;
    }
    text.remove_suffix(c.length);
  }
  return text;
}

void render_llama3(std::span<const ChatMessage> messages, ChatOptions options, Prompt& prompt) {
  const auto header = [&](std::string_view role) {
    prompt.markup("<|start_header_id|>").markup(role).markup("<|end_header_id|>\n\n");
  };
  prompt.markup("<|begin_of_text|>");
  for (const ChatMessage& message : messages) {
    header(message.role);
    prompt.content(trim(message.content)).markup("<|eot_id|>");
  }
  if (options.add_generation_prompt) {
    header("assistant");
  }
}

}  // namespace

Result<ChatTemplate> chat_template_by_name(std::string_view name) {
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& n) { return n.name == name; });
  if (found != std::end(kNames)) {
    return found->chat_template;
  }
  return Status(Code::kInvalidArgument, fmt::format("chat template: got '{}'; allowed {}; choose one of them or pass a "
                                                    "prompt that is already rendered",
                                                    printable(name), kNameList));
}

Result<ChatTemplate> chat_template_by_source(std::string_view source) {
  if (source.empty()) {
    return Status(
        Code::kUnsupported,
        fmt::format("tokenizer.chat_template: the model file has none; allowed {}; choose one with --chat-template "
                    "NAME or pass a prompt that is already rendered",
                    kNameList));
  }
  const std::string sha256 = sha256_hex(std::as_bytes(std::span(source)));
  const auto* found = std::find_if(std::begin(kKnownSources), std::end(kKnownSources),
                                   [&](const KnownSource& known) { return known.sha256 == sha256; });
  if (found != std::end(kKnownSources)) {
    return found->chat_template;
  }
  return Status(
      Code::kUnsupported,
      fmt::format("tokenizer.chat_template: got an unknown template with SHA-256 {}; allowed {}; choose one with "
                  "--chat-template NAME or pass a prompt that is already rendered",
                  sha256, kNameList));
}

std::string_view chat_template_name(ChatTemplate chat_template) {
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames),
                                   [&](const Name& n) { return n.chat_template == chat_template; });
  return found->name;
}

Result<std::vector<TextSegment>> render_chat(ChatTemplate chat_template, std::span<const ChatMessage> messages,
                                             ChatOptions options) {
  if (messages.empty()) {
    return Status(Code::kInvalidArgument, "messages: got none; allowed one or more; pass the user's message");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return Status(Code::kInvalidArgument,
                    fmt::format("messages[{}].role: got '{}'; allowed system, user, assistant; tool "
                                "calls are not supported, render the prompt yourself",
                                i, printable(role)));
    }
  }
  Prompt prompt;
  switch (chat_template) {
    case ChatTemplate::kChatMl:
      render_chatml(messages, {}, options, prompt);
      break;
    case ChatTemplate::kSmolLm2:
      render_chatml(messages, kSmolLm2System, options, prompt);
      break;
    case ChatTemplate::kQwen25:
      render_chatml(messages, kQwen25System, options, prompt);
      break;
    case ChatTemplate::kQwen3:
      render_qwen3(messages, options, prompt);
      break;
    case ChatTemplate::kLlama3:
      render_llama3(messages, options, prompt);
      break;
  }
  return prompt.take();
}

}  // namespace tessera
