// Turning a conversation into a prompt.
//
// A model file carries its prompt format as a Jinja program. Running a program out of a downloaded file is a risk that
// a prompt format does not justify, so the programs of known models are written here as functions, and a file selects
// one by the SHA-256 of its program: exactly that text or none. Another file needs --chat-template NAME, or a prompt
// that the user renders himself. Every renderer is tested against Jinja's own output
// (tests/tokenizer/make_chat_golden.py).
//
// Not supported: tools, images, documents, roles other than system, user and assistant.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace tessera {

enum class ChatTemplate {
  kChatMl,   // "chatml": <|im_start|>role\ncontent<|im_end|>\n, no default system prompt; selected by name only
  kSmolLm2,  // "smollm2": chatml; a conversation that does not start with a system message gets SmolLM2's own
  kQwen25,   // "qwen2.5": chatml; likewise with Qwen2.5's own
  kQwen3,    // "qwen3": chatml; <think> sections are kept after the last user message and removed before it
  kLlama3,   // "llama3": <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>, content trimmed, BOS in front
};

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;  // end with the header of the assistant's turn
  bool enable_thinking = true;        // qwen3 only: false appends an empty <think> section to that header
};

// The renderer called `name`. Error: kInvalidArgument listing the names.
Result<ChatTemplate> chat_template_by_name(std::string_view name);

// The renderer for the text of tokenizer.chat_template. Error: kUnsupported, with the SHA-256, for an empty or unknown
// text.
Result<ChatTemplate> chat_template_by_source(std::string_view source);

std::string_view chat_template_name(ChatTemplate chat_template);

// The prompt as segments: markup of the template (is_special) and what the messages say (not special), so that
// Tokenizer::encode(segments, add_special = false) never takes "<|im_end|>" in a message for the token. The
// concatenated text equals the Jinja output, BOS included where the template writes it. Error: kInvalidArgument for no
// messages or an unknown role.
Result<std::vector<TextSegment>> render_chat(ChatTemplate chat_template, std::span<const ChatMessage> messages,
                                             ChatOptions options = {});

}  // namespace tessera
