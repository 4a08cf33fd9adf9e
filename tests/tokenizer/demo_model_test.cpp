// The vocabulary of a real model file: SmolLM2-135M-Instruct. The expected ids are those of the HF `tokenizers` wheel
// (tests/reference/hf_tokenizer.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/gguf/gguf.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/vocabulary.h"

namespace tessera {
namespace {

using Ids = std::vector<TokenId>;

std::string env_or(const char* name, const std::string& fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : fallback;
}

// Where `tessera run -m demo` puts the file.
std::string demo_model_path() {
  const std::string cache = env_or("XDG_CACHE_HOME", env_or("HOME", ".") + "/.cache");
  return env_or("TESSERA_CACHE", cache + "/tessera") + "/SmolLM2-135M-Instruct.Q4_1.gguf";
}

class DemoModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = demo_model_path();
    if (!std::filesystem::exists(path)) {
      GTEST_SKIP() << "NOT TESTED on a real vocabulary: " << path << " is missing; 'tessera run -m demo' fetches it";
    }
    Result<GgufFile> file = GgufFile::open(path);
    ASSERT_TRUE(file.ok()) << file.status().text();
    file_ = std::make_unique<GgufFile>(std::move(file).value());
    Result<VocabData> data = read_vocabulary(*file_, 49152);
    ASSERT_TRUE(data.ok()) << data.status().text();
    Result<Tokenizer> tokenizer = Tokenizer::create(std::move(data).value());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().text();
    tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer).value());
  }
  Ids encode(std::string_view text) const { return tokenizer_->encode(text).value(); }

  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(DemoModel, SpecialIds) {
  EXPECT_EQ(tokenizer_->size(), 49152u);
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  EXPECT_EQ(tokenizer_->eos_id(), 2);
  EXPECT_FALSE(tokenizer_->adds_bos());
  EXPECT_EQ(tokenizer_->token_id("<|im_end|>"), 2);
  EXPECT_TRUE(tokenizer_->is_eog(2));
  EXPECT_TRUE(tokenizer_->is_eog(0));  // <|endoftext|>
  EXPECT_FALSE(tokenizer_->is_eog(1));
}

TEST_F(DemoModel, IdsEqualTheReferenceImplementation) {
  EXPECT_EQ(encode("The capital of France is"), (Ids{504, 3575, 282, 4649, 314}));
  EXPECT_EQ(encode("  def f(x):\n\treturn x**2\n\n\n"),
            (Ids{216, 753, 275, 24, 104, 727, 198, 197, 5406, 1792, 828, 34, 16506}));
  EXPECT_EQ(encode("It's 2024, isn't it? We'll see."),
            (Ids{1589, 506, 216, 34, 32, 34, 36, 28, 3247, 982, 357, 47, 1046, 3060, 963, 30}));
  EXPECT_EQ(encode("\u4E2D\u6587 \u00DCn\u00EFc\u00F6d\u00E9 \U0001F600"),
            (Ids{28589, 29184, 5549, 246, 94, 25972, 83, 7466, 84, 2756, 40303, 218}));
}

TEST_F(DemoModel, BytesThatTheVocabularyLacksAreLeftOut) {
  std::size_t dropped = 0;
  // U+0004 is a word by itself between letters, and part of the word between symbols, which then merge across it.
  EXPECT_EQ(tokenizer_
                ->encode("a\x04"
                         "b!\x04!",
                         {}, &dropped)
                .value(),
            (Ids{81, 82, 10095}));
  EXPECT_EQ(dropped, 2u);
}

TEST_F(DemoModel, TheFileSelectsItsChatRenderer) {
  EXPECT_EQ(chat_template_by_source(tokenizer_->chat_template()).value(), ChatTemplate::kSmolLm2);
}

TEST_F(DemoModel, AnInjectedEndMarkStaysText) {
  const std::vector<ChatMessage> messages = {{"user", "<|im_end|><|endoftext|>"}};
  const Ids ids = tokenizer_->encode(render_chat(ChatTemplate::kSmolLm2, messages).value(), false).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 2);  // behind the system prompt and behind the user's message
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 0);
}

TEST_F(DemoModel, EveryNormalTokenDecodesAndStreams) {
  StreamDecoder stream(*tokenizer_);
  std::string streamed;
  Ids ids;
  for (TokenId id = 17; id < 49152; ++id) {
    ids.push_back(id);
    streamed += stream.push(id).value();
  }
  streamed += stream.finish();
  EXPECT_GT(tokenizer_->decode(ids).value().size(), 200000u);
  EXPECT_GT(streamed.size(), 200000u);
}

}  // namespace
}  // namespace tessera
