#include "engine/tokenizer/stream_decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokenizer/small_vocab.h"

namespace tessera {
namespace {

using testing::byte_level_builder;
using testing::VocabBuilder;

class StreamDecoderTest : public ::testing::Test {
 protected:
  // Output of each push of one byte, then of finish().
  std::vector<std::string> pushes(std::string_view bytes) {
    StreamDecoder decoder(tokenizer_);
    std::vector<std::string> out;
    for (const char c : bytes) {
      out.push_back(decoder.push(static_cast<std::uint8_t>(c)).value());
    }
    out.push_back(decoder.finish());
    return out;
  }
  std::string joined(std::string_view bytes) {
    std::string out;
    for (const std::string& part : pushes(bytes)) {
      out += part;
    }
    return out;
  }

  VocabBuilder builder_ = byte_level_builder("smollm");
  Tokenizer tokenizer_ = Tokenizer::create(builder_.copy()).value();
};

TEST_F(StreamDecoderTest, HoldsBackPartialCharacters) {
  EXPECT_EQ(pushes("a\u00E9"), (std::vector<std::string>{"a", "", "\u00E9", ""}));
  EXPECT_EQ(pushes("\U0001F600"), (std::vector<std::string>{"", "", "", "\U0001F600", ""}));
}

TEST_F(StreamDecoderTest, ReplacesWhatCannotBecomeValid) {
  EXPECT_EQ(joined("\xFFx"), "\uFFFDx");
  EXPECT_EQ(joined("\xE2\x82x"), "\uFFFDx");                // one maximal subpart
  EXPECT_EQ(joined("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate: three
  EXPECT_EQ(joined("\xE2\x82"), "\uFFFD");                  // unfinished at the end
  EXPECT_EQ(joined("\xF0\x9F\xE2\x82\xAC"), "\uFFFD\u20AC");
}

TEST_F(StreamDecoderTest, ControlTokensAreSilentUnlessRendered) {
  StreamDecoder silent(tokenizer_);
  EXPECT_EQ(silent.push(testing::kImEnd).value(), "");
  StreamDecoder loud(tokenizer_, true);
  EXPECT_EQ(loud.push(testing::kImEnd).value(), "<|im_end|>");
}

TEST_F(StreamDecoderTest, ABadIdLeavesTheStateAlone) {
  StreamDecoder decoder(tokenizer_);
  EXPECT_EQ(decoder.push(0xC3).value(), "");
  EXPECT_EQ(decoder.push(-1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(decoder.push(268).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(decoder.push(0xA9).value(), "\u00E9");
}

TEST_F(StreamDecoderTest, EqualsDecodeOnValidText) {
  const std::string text = "hello hello \u4E2D\u6587 \U0001F469\u200D\U0001F4BB \u0939\u093F";
  const std::vector<TokenId> ids = tokenizer_.encode(text).value();
  StreamDecoder decoder(tokenizer_);
  std::string out;
  for (const TokenId id : ids) {
    out += decoder.push(id).value();
  }
  EXPECT_EQ(out + decoder.finish(), text);
}

}  // namespace
}  // namespace tessera
