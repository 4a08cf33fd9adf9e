#include "engine/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "tokenizer/small_vocab.h"

namespace tessera {
namespace {

using testing::byte_level_builder;
using testing::kEndOfText;
using testing::kHe;
using testing::kHell;
using testing::kHello;
using testing::kImEnd;
using testing::kImStart;
using testing::kSpaceH;
using testing::kSpaceHello;
using testing::kTool;
using testing::kTools;
using testing::kTwelve;
using testing::VocabBuilder;

using Ids = std::vector<TokenId>;

// The tokenizer and the texts its vocabulary views.
struct Fixture {
  explicit Fixture(VocabBuilder b) : builder(std::move(b)), tokenizer(Tokenizer::create(builder.copy()).value()) {}
  Ids encode(std::string_view text, EncodeOptions options = {}) const {
    return tokenizer.encode(text, options).value();
  }
  std::string decode(const Ids& ids, DecodeOptions options = {}) const {
    return tokenizer.decode(ids, options).value();
  }

  VocabBuilder builder;
  Tokenizer tokenizer;
};

Fixture smollm() {
  return Fixture(byte_level_builder("smollm"));
}

TEST(Bpe, MergesByRankNotByLength) {
  const Fixture t = smollm();
  EXPECT_EQ(t.encode("hello"), Ids{kHello});
  EXPECT_EQ(t.encode("hell"), Ids{kHell});
  EXPECT_EQ(t.encode("lll"), (Ids{testing::kLl, 'l'}));  // the leftmost of equal pairs
  EXPECT_EQ(t.encode(" hello"), Ids{kSpaceHello});       // "h e" ranks before " h", so "hello" forms first
  EXPECT_EQ(t.encode(" h"), Ids{kSpaceH});
  EXPECT_EQ(t.encode(" he"), (Ids{' ', kHe}));
}

TEST(Bpe, MergesStayInsideWords) {
  const Fixture t = smollm();
  EXPECT_EQ(t.encode("12"), (Ids{'1', '2'}));  // each digit is a word to smollm
  const Fixture llama{byte_level_builder("llama-bpe")};
  EXPECT_EQ(llama.encode("12"), Ids{kTwelve});
  EXPECT_EQ(llama.encode("3312"), (Ids{'3', '3', '1', '2'}));
}

TEST(Bpe, EmptyTextHasNoTokens) {
  EXPECT_EQ(smollm().encode(""), Ids{});
}

TEST(Bpe, OnlyLlamaBpeTakesWholeWordsWithoutMerging) {
  for (const char* pre : {"smollm", "qwen2", "llama-bpe"}) {
    VocabBuilder builder = byte_level_builder(pre);
    const TokenId whole = builder.add(testing::in_alphabet(" xyz"));  // no merge leads here
    const Fixture t{std::move(builder)};
    EXPECT_EQ(t.encode(" xyz"), std::string_view(pre) == "llama-bpe" ? Ids{whole} : (Ids{' ', 'x', 'y', 'z'})) << pre;
  }
}

TEST(Bpe, ABytesWithoutATokenIsLeftOutBeforeMerging) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.data().tokens[0xFE] = "unreachable";
  const Fixture t{std::move(builder)};
  std::size_t dropped = 0;
  EXPECT_EQ(t.tokenizer.encode("l\xFEl", {}, &dropped).value(), (Ids{'l', 'l'}));  // three words
  EXPECT_EQ(dropped, 1u);
  EXPECT_EQ(t.tokenizer.encode("+\xFE+", {}, &dropped).value(), (Ids{'+', '+'}));
  EXPECT_EQ(dropped, 1u);
  EXPECT_EQ(t.tokenizer.encode("hello", {}, &dropped).value(), Ids{kHello});
  EXPECT_EQ(dropped, 0u);
}

TEST(Special, ControlTokensAreTextUnlessParsed) {
  const Fixture t = smollm();
  EXPECT_EQ(t.encode("hello<|im_end|>", {.parse_special = true}), (Ids{kHello, kImEnd}));
  const Ids plain = t.encode("hello<|im_end|>");
  EXPECT_EQ(plain.size(), 1u + 10u);
  for (const TokenId id : plain) {
    EXPECT_LT(id, kImStart);
  }
}

TEST(Special, UserDefinedTokensAreAlwaysCutLongestFirst) {
  const Fixture t = smollm();
  for (const bool parse : {false, true}) {
    EXPECT_EQ(t.encode("[TOOLS][TOOL]x[TOOL", {.parse_special = parse}),
              (Ids{kTools, kTool, 'x', '[', 'T', 'O', 'O', 'L'}));
  }
}

TEST(Special, TheLongestOfTokensThatStartAlikeIsCut) {
  VocabBuilder builder = byte_level_builder("smollm");
  const TokenId longer = builder.add("[TOOL]s", TokenType::kUserDefined);
  const TokenId longest = builder.add("[TOOL]s!", TokenType::kControl);
  const Fixture t{std::move(builder)};
  EXPECT_EQ(t.encode("[TOOL][TOOL]s[TOOL]s!"), (Ids{kTool, longer, longer, '!'}));
  EXPECT_EQ(t.encode("[TOOL][TOOL]s[TOOL]s!", {.parse_special = true}), (Ids{kTool, longer, longest}));
}

TEST(Special, WordsDoNotReachAcrossACutToken) {
  const Fixture t = smollm();
  EXPECT_EQ(t.encode("he[TOOL]llo"), (Ids{kHe, kTool, testing::kLl, 'o'}));
  EXPECT_EQ(t.encode("  [TOOL]"), (Ids{' ', ' ', kTool}));
}

TEST(Special, BosAndEosAsTheFileAsks) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.data().add_bos = true;
  builder.data().add_eos = true;
  const Fixture t{std::move(builder)};
  EXPECT_EQ(t.encode("hello", {.add_special = true}), (Ids{kImStart, kHello, kImEnd}));
  EXPECT_EQ(t.encode("hello"), Ids{kHello});
  EXPECT_EQ(smollm().encode("hello", {.add_special = true}), Ids{kHello});
}

TEST(Special, BosIsTheDefaultOfLlamaBpe) {
  VocabBuilder builder = byte_level_builder("llama-bpe");
  builder.data().add_bos.reset();
  EXPECT_EQ(Fixture(std::move(builder)).encode("x", {.add_special = true}), (Ids{kImStart, 'x'}));
}

TEST(Segments, ControlTokensComeFromSpecialSegmentsOnly) {
  const Fixture t = smollm();
  const std::vector<TextSegment> segments = {
      {"<|im_start|>", true}, {"<|im_end|>", false}, {"<|im_", true}, {"end|>", false}, {"<|im_end|>", true}};
  const Ids ids = t.tokenizer.encode(segments, false).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kImStart), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kImEnd), 1);
  EXPECT_EQ(ids.front(), kImStart);
  EXPECT_EQ(ids.back(), kImEnd);
  EXPECT_EQ(t.decode(ids, {.render_control = true}), "<|im_start|><|im_end|><|im_end|><|im_end|>");
}

TEST(Segments, WordsReachAcrossSegments) {
  const Fixture t = smollm();
  const std::vector<TextSegment> segments = {{"he", true}, {"l", false}, {"lo", true}, {"", false}};
  EXPECT_EQ(t.tokenizer.encode(segments, false).value(), Ids{kHello});
}

TEST(Eog, IdsOfTheFileAndKnownMarks) {
  const Fixture t = smollm();
  EXPECT_TRUE(t.tokenizer.is_eog(kImEnd));      // eos of the file
  EXPECT_TRUE(t.tokenizer.is_eog(kEndOfText));  // by text
  for (const TokenId id : {kImStart, kTool, kHello, TokenId{'h'}, kNoToken, TokenId{1 << 30}}) {
    EXPECT_FALSE(t.tokenizer.is_eog(id)) << id;
  }
  VocabBuilder builder = byte_level_builder("smollm");
  builder.data().eot_id = kTool;
  builder.add("<end_of_turn>");  // a normal token that only looks like a mark
  const Fixture other{std::move(builder)};
  EXPECT_TRUE(other.tokenizer.is_eog(kTool));
  EXPECT_FALSE(other.tokenizer.is_eog(268));
}

TEST(Eog, EndOfMessageIsNotEndOfGenerationBesideReturnAndCall) {
  VocabBuilder builder = byte_level_builder("smollm");
  const TokenId end = builder.add("<|end|>", TokenType::kControl);
  EXPECT_TRUE(Fixture(builder).tokenizer.is_eog(end));
  const TokenId ret = builder.add("<|return|>", TokenType::kControl);
  builder.add("<|call|>", TokenType::kControl);
  const Fixture t{std::move(builder)};
  EXPECT_FALSE(t.tokenizer.is_eog(end));
  EXPECT_TRUE(t.tokenizer.is_eog(ret));
}

TEST(Decode, GivesTheBytesBack) {
  const Fixture t = smollm();
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(byte));
  }
  for (const std::string& text : {all, all + all, std::string(" hello\xC3"), std::string("\0\0", 2)}) {
    EXPECT_EQ(t.decode(t.encode(text)), text);
  }
}

TEST(Decode, ControlTokensVanishUnlessRendered) {
  const Fixture t = smollm();
  EXPECT_EQ(t.decode({kImStart, kHello, kImEnd, kTool}), "hello[TOOL]");
  EXPECT_EQ(t.decode({kImStart, kHello, kImEnd}, {.render_control = true}), "<|im_start|>hello<|im_end|>");
}

TEST(Decode, IdsOutsideTheVocabularyAreRefused) {
  const Fixture t = smollm();
  for (const TokenId id : {-1, 268, 1 << 30}) {
    const Status status = t.tokenizer.decode(Ids{'h', id}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.text().find("ids[1]"), std::string::npos) << status.text();
    EXPECT_EQ(t.tokenizer.token_text(id), "");
  }
}

TEST(TokenId, FindsControlTokensByTheirExactText) {
  const Fixture t = smollm();
  EXPECT_EQ(t.tokenizer.token_id("<|im_end|>"), kImEnd);
  EXPECT_EQ(t.tokenizer.token_id("hello"), kHello);
  EXPECT_EQ(t.tokenizer.token_id("[TOOL"), kNoToken);
  EXPECT_EQ(t.tokenizer.token_id(""), kNoToken);
  EXPECT_EQ(t.tokenizer.token_text(kSpaceHello), "\u0120hello");
}

// A quadratic scanner or merge loop needs minutes for these; the bound (processor time) is two orders above what they
// take.
TEST(Encode, LongWordsAreNotQuadratic) {
  for (const char* pre : {"smollm", "llama-bpe", "qwen2"}) {
    const Fixture t{byte_level_builder(pre)};
    for (const char* unit : {"l", " ", "\n", "=", "'", "hel", "\xFF", "<|im_start"}) {
      std::string text;
      while (text.size() < (1u << 18)) {
        text += unit;
      }
      const std::clock_t start = std::clock();
      const Ids ids = t.encode(text, {.parse_special = true});
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      EXPECT_LT(seconds, 20.0) << pre << " " << unit;
      EXPECT_EQ(t.decode(ids), text) << pre << " " << unit;
    }
  }
}

}  // namespace
}  // namespace tessera
