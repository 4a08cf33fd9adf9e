// libFuzzer target of the tokenizer: vocabularies and texts made from the input.
//
// The first byte chooses between a sound byte-level vocabulary (all 256 bytes and merges that fit together), for which
// every text must come back, and arbitrary vocabulary data, which create() must refuse or survive.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"

namespace {

using namespace tessera;  // NOLINT(google-build-using-namespace)

void require(bool holds, const char* property) {
  if (!holds) {
    std::fprintf(stderr, "violated: %s\n", property);
    std::abort();
  }
}

constexpr std::size_t kMaxMerged = 64;  // bytes; keeps doubling merges from exhausting memory

class VocabMaker {
 public:
  explicit VocabMaker(FuzzedDataProvider& input) : input_(input) {}

  VocabData sound() {
    VocabData data;
    data.model = "gpt2";
    data.pre = input_.PickValueInArray({"smollm", "llama-bpe", "qwen2"});
    data.add_bos = false;
    for (int byte = 0; byte < 256; ++byte) {
      std::string text;
      append_utf8(byte_to_alphabet(static_cast<std::uint8_t>(byte)), text);
      add(data, std::move(text), TokenType::kNormal);
    }
    for (int count = input_.ConsumeIntegralInRange(0, 40); count > 0; --count) {
      const std::string_view left = data.tokens[input_.ConsumeIntegralInRange<std::size_t>(0, data.tokens.size() - 1)];
      const std::string_view right = data.tokens[input_.ConsumeIntegralInRange<std::size_t>(0, data.tokens.size() - 1)];
      if (left.size() + right.size() <= kMaxMerged) {
        data.merges.push_back(own(std::string(left) + " " + std::string(right)));
        add(data, std::string(left) + std::string(right), TokenType::kNormal);
      }
    }
    for (int count = input_.ConsumeIntegralInRange(0, 6); count > 0; --count) {
      std::string text = input_.ConsumeRandomLengthString(12);
      if (!text.empty()) {
        add(data, std::move(text), input_.ConsumeBool() ? TokenType::kControl : TokenType::kUserDefined);
      }
    }
    return data;
  }

  VocabData arbitrary() {
    VocabData data;
    data.model = input_.PickValueInArray({"gpt2", "llama", "bert"});
    data.pre = input_.PickValueInArray({"smollm", "llama-bpe", "qwen2", "gpt-4o"});
    for (int count = input_.ConsumeIntegralInRange(0, 60); count > 0; --count) {
      add(data, token_text(data), static_cast<TokenType>(input_.ConsumeIntegralInRange(0, 7)));
      data.scores.push_back(input_.ConsumeFloatingPoint<float>());
    }
    for (int count = input_.ConsumeIntegralInRange(0, 30); count > 0; --count) {
      data.merges.push_back(own(input_.ConsumeRandomLengthString(8)));
    }
    if (input_.ConsumeIntegralInRange(0, 9) == 0) {
      data.token_types.resize(input_.ConsumeIntegralInRange<std::size_t>(0, 80));
    }
    if (input_.ConsumeIntegralInRange(0, 9) == 0) {
      data.scores.resize(input_.ConsumeIntegralInRange<std::size_t>(0, 80));
    }
    for (auto* id : {&data.bos_id, &data.eos_id, &data.eot_id, &data.unk_id, &data.pad_id}) {
      if (input_.ConsumeBool()) {
        *id = input_.ConsumeIntegralInRange<std::uint32_t>(0, 64);
      }
    }
    for (auto* flag : {&data.add_bos, &data.add_eos, &data.add_space_prefix}) {
      if (input_.ConsumeBool()) {
        *flag = input_.ConsumeBool();
      }
    }
    return data;
  }

 private:
  std::string token_text(const VocabData& data) {
    switch (input_.ConsumeIntegralInRange(0, 3)) {
      case 0: {  // a merge of two earlier tokens, so that deeper vocabularies come up
        if (data.tokens.empty()) {
          return "a";
        }
        const std::size_t last = data.tokens.size() - 1;
        const std::string left(data.tokens[input_.ConsumeIntegralInRange<std::size_t>(0, last)]);
        return (left + std::string(data.tokens[input_.ConsumeIntegralInRange<std::size_t>(0, last)]))
            .substr(0, kMaxMerged);
      }
      case 1: {
        constexpr char kHex[] = "0123456789ABCDEFg";
        return std::string("<0x") + kHex[input_.ConsumeIntegralInRange(0, 16)] +
               kHex[input_.ConsumeIntegralInRange(0, 16)] + ">";
      }
      case 2:
        return std::string(1, input_.ConsumeIntegral<char>());
      default:
        return input_.ConsumeRandomLengthString(16);
    }
  }
  void add(VocabData& data, std::string text, TokenType type) {
    data.tokens.push_back(own(std::move(text)));
    data.token_types.push_back(static_cast<std::int32_t>(type));
  }
  std::string_view own(std::string text) { return texts_.emplace_back(std::move(text)); }

  FuzzedDataProvider& input_;
  std::deque<std::string> texts_;
};

bool is_valid_utf8(std::string_view text) {
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    if (c.state != Utf8State::kValid) {
      return false;
    }
    pos += c.length;
  }
  return true;
}

void check_text(const Tokenizer& tokenizer, const VocabData& data, bool sound, const std::string& text,
                std::size_t cut) {
  for (const bool parse : {false, true}) {
    const std::vector<TokenId> ids = tokenizer.encode(text, {.parse_special = parse}).value();
    for (const TokenId id : ids) {
      require(id >= 0 && static_cast<std::size_t>(id) < tokenizer.size(), "ids lie in the vocabulary");
      const bool control = !data.token_types.empty() && data.token_types[static_cast<std::size_t>(id)] == 3;
      require(parse || !control, "plain text gives no control token");
    }
    const std::string decoded = tokenizer.decode(ids, {.render_control = true}).value();
    require(!sound || decoded == text, "decode(encode(text)) == text");

    const std::vector<TextSegment> whole = {{text, parse}};
    require(tokenizer.encode(whole, false).value() == ids, "one segment equals the text");
    if (!parse) {
      const std::vector<TextSegment> parts = {{text.substr(0, cut), false}, {text.substr(cut), false}};
      require(tokenizer.encode(parts, false).value() == ids, "cuts between plain segments do not show");
    }

    StreamDecoder stream(tokenizer, true);
    std::string streamed;
    for (const TokenId id : ids) {
      streamed += stream.push(id).value();
    }
    streamed += stream.finish();
    require(is_valid_utf8(streamed), "streamed text is valid UTF-8");
    require(!sound || !is_valid_utf8(text) || streamed == text, "streaming gives valid text back");
    require(tokenizer.encode(text, {.add_special = true, .parse_special = parse}).value().size() <= ids.size() + 2,
            "BOS and EOS are two tokens");
  }
}

void check_chat(const Tokenizer& tokenizer, ChatTemplate chat_template, const std::string& text, std::size_t cut) {
  const std::vector<ChatMessage> messages = {{"user", text.substr(0, cut)}, {"assistant", text.substr(cut)}};
  const std::vector<TextSegment> segments = render_chat(chat_template, messages, {.enable_thinking = false}).value();
  require(tokenizer.encode(segments, true).ok(), "chat prompts encode");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  FuzzedDataProvider input(bytes, size);
  VocabMaker maker(input);
  const bool sound = input.ConsumeBool();
  const VocabData data = sound ? maker.sound() : maker.arbitrary();
  Result<Tokenizer> tokenizer = Tokenizer::create(data);
  require(!sound || tokenizer.ok(), "a sound vocabulary is accepted");
  if (!tokenizer.ok()) {
    require(!tokenizer.status().text().empty(), "errors have a sentence");
    return 0;
  }
  const auto chat_template =
      input.PickValueInArray({ChatTemplate::kChatMl, ChatTemplate::kSmolLm2, ChatTemplate::kQwen25,
                              ChatTemplate::kQwen3, ChatTemplate::kLlama3});
  const auto cut_source = input.ConsumeIntegral<std::uint16_t>();
  const std::string text = input.ConsumeRemainingBytesAsString();
  const std::size_t cut = text.empty() ? 0 : cut_source % (text.size() + 1);
  check_text(tokenizer.value(), data, sound, text, cut);
  check_chat(tokenizer.value(), chat_template, text, cut);
  return 0;
}
