// What a model file may get wrong about its vocabulary, and the sentence it earns.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>

#include "engine/tokenizer/tokenizer.h"
#include "tokenizer/small_vocab.h"

namespace tessera {
namespace {

using testing::byte_level_builder;
using testing::spm_builder;
using testing::VocabBuilder;

// The status of a vocabulary that must be refused; its sentence must hold `part` and have all three clauses.
Code refused(VocabData data, const std::string& part) {
  const Status status = Tokenizer::create(std::move(data)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("allowed"), std::string::npos) << status.text();
  return status.code();
}

TEST(Vocab, SmallVocabulariesAreAccepted) {
  EXPECT_TRUE(Tokenizer::create(byte_level_builder("smollm").copy()).ok());
  EXPECT_TRUE(Tokenizer::create(spm_builder(true, {{"a", -1.0f}}).copy()).ok());
}

TEST(Vocab, UnknownModelIsUnsupported) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.data().model = "bert\n";
  EXPECT_EQ(refused(builder.copy(), "'bert\\x0A'"), Code::kUnsupported);
}

TEST(Vocab, UnknownPreTokenizerIsUnsupported) {
  EXPECT_EQ(refused(byte_level_builder("gpt-4o").copy(), "tokenizer.ggml.pre"), Code::kUnsupported);
}

TEST(Vocab, NoTokensAtAll) {
  VocabData data;
  data.model = "gpt2";
  data.pre = "smollm";
  EXPECT_EQ(refused(data, "got 0 tokens"), Code::kBadFile);
}

TEST(Vocab, ArraysOfAnotherLength) {
  VocabBuilder bpe = byte_level_builder("smollm");
  bpe.data().token_types.pop_back();
  EXPECT_EQ(refused(bpe.copy(), "token_type: got 267"), Code::kBadFile);
  bpe = byte_level_builder("smollm");
  bpe.data().scores.push_back(0);
  EXPECT_EQ(refused(bpe.copy(), "scores: got 269"), Code::kBadFile);
  VocabBuilder spm = spm_builder(false, {{"a", 0.0f}});
  spm.data().scores.clear();
  EXPECT_EQ(refused(spm.copy(), "scores: got 0"), Code::kBadFile);
  spm = spm_builder(false, {{"a", 0.0f}});
  spm.data().token_types.clear();
  EXPECT_EQ(refused(spm.copy(), "token_type: got 0"), Code::kBadFile);
}

TEST(Vocab, ByteLevelNeedsNeitherTypesNorScores) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.data().token_types.clear();
  builder.data().scores.clear();
  EXPECT_TRUE(Tokenizer::create(builder.copy()).ok());
}

TEST(Vocab, TokenTypesOutOfRange) {
  for (const std::int32_t type : {0, 7, -1, std::numeric_limits<std::int32_t>::min()}) {
    VocabBuilder builder = byte_level_builder("smollm");
    builder.data().token_types[5] = type;
    EXPECT_EQ(refused(builder.copy(), "token_type[5]"), Code::kBadFile);
  }
}

TEST(Vocab, SpecialIdsOutOfRange) {
  const auto with = [](auto set) {
    VocabBuilder builder = byte_level_builder("smollm");
    set(builder.data());
    return builder.copy();
  };
  EXPECT_EQ(refused(with([](VocabData& d) { d.bos_id = 268; }), "bos_token_id: got 268; allowed 0..267"),
            Code::kBadFile);
  EXPECT_EQ(refused(with([](VocabData& d) { d.eos_id = 0xFFFFFFFF; }), "eos_token_id: got 4294967295"), Code::kBadFile);
  EXPECT_EQ(refused(with([](VocabData& d) { d.eot_id = 1u << 31; }), "eot_token_id"), Code::kBadFile);
  EXPECT_EQ(refused(with([](VocabData& d) { d.unk_id = 268; }), "unknown_token_id"), Code::kBadFile);
  EXPECT_EQ(refused(with([](VocabData& d) { d.pad_id = 268; }), "padding_token_id"), Code::kBadFile);
}

TEST(Vocab, TheUnknownTokenOfAnSpmVocabularyIsNoControlToken) {
  VocabBuilder builder = spm_builder(false, {{"a", 0.0f}});
  builder.data().unk_id = 2;
  EXPECT_EQ(refused(builder.copy(), "unknown_token_id: got 2, a control token"), Code::kBadFile);
}

TEST(Vocab, BosOrEosWantedButAbsent) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.data().add_bos = true;
  builder.data().bos_id.reset();
  EXPECT_EQ(refused(builder.copy(), "bos_token_id: absent, but add_bos_token is set to true"), Code::kBadFile);
  builder.data().add_bos.reset();
  EXPECT_TRUE(Tokenizer::create(builder.copy()).ok());
  builder.data().pre = "llama-bpe";
  EXPECT_EQ(refused(builder.copy(), "add_bos_token is by default true"), Code::kBadFile);
  builder.data().pre = "smollm";
  builder.data().eos_id.reset();
  builder.data().add_eos = true;
  EXPECT_EQ(refused(builder.copy(), "eos_token_id: absent"), Code::kBadFile);
}

TEST(Vocab, EmptyControlTokens) {
  for (const TokenType type : {TokenType::kControl, TokenType::kUserDefined}) {
    VocabBuilder builder = byte_level_builder("smollm");
    builder.add("", type);
    EXPECT_EQ(refused(builder.copy(), "tokens[268]"), Code::kBadFile);
  }
}

TEST(Vocab, EmptyNormalTokensAreHarmless) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.add("");
  builder.add("", TokenType::kUnused);
  builder.add("", TokenType::kUnknown);
  Result<Tokenizer> tokenizer = Tokenizer::create(builder.copy());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().text();
  EXPECT_EQ(tokenizer.value().encode("hi", {.parse_special = true}).value(), (std::vector<TokenId>{'h', 'i'}));
}

TEST(Vocab, OverlongTokens) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.add(std::string(65536, 'a'));
  EXPECT_EQ(refused(builder.copy(), "tokens[268]: got 65536 bytes"), Code::kBadFile);
  builder = byte_level_builder("smollm");
  builder.add(std::string(513, 'a'), TokenType::kControl);
  EXPECT_EQ(refused(builder.copy(), "control token of 513 bytes"), Code::kBadFile);
}

TEST(Vocab, ByteTokensNeedTwoHexDigits) {
  for (const char* text :
       {"<0x-1>", "<0xZZ>", "<0x1>", "<0x001>", "<0x0G>", "0x00", "<0X00>", "", "<0x00> ", "<0x 1>", "<0x+1>"}) {
    VocabBuilder builder = spm_builder(false, {{"a", 0.0f}});
    builder.add(text, TokenType::kByte);
    EXPECT_EQ(refused(builder.copy(), "tokens[4]: got byte token"), Code::kBadFile) << text;
  }
  VocabBuilder lower = spm_builder(false, {{"a", 0.0f}});
  lower.add("<0xfe>", TokenType::kByte);
  lower.data().add_space_prefix = false;
  Result<Tokenizer> tokenizer = Tokenizer::create(lower.copy());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().text();
  EXPECT_EQ(tokenizer.value().encode("\xFE").value(), std::vector<TokenId>{4});
}

TEST(Vocab, MergesThatNameNoTokens) {
  const auto with = [](std::string line) {
    VocabBuilder builder = byte_level_builder("smollm");
    builder.add_merge_line(std::move(line));
    return builder.copy();
  };
  EXPECT_EQ(refused(with("he"), "merges[7]: got 'he', which has no space"), Code::kBadFile);
  EXPECT_EQ(refused(with(""), "no space"), Code::kBadFile);
  EXPECT_EQ(refused(with(" he"), "no space behind its first byte"), Code::kBadFile);
  EXPECT_EQ(refused(with("h "), "right side is empty"), Code::kBadFile);
  EXPECT_EQ(refused(with("zz h"), "left side is unknown"), Code::kBadFile);
  EXPECT_EQ(refused(with("h zz"), "right side is unknown"), Code::kBadFile);
  EXPECT_EQ(refused(with("h h h"), "right side is unknown"), Code::kBadFile);
  EXPECT_EQ(refused(with("h h"), "result is unknown"), Code::kBadFile);
  EXPECT_EQ(refused(with("\xFF \xFE"), "\\xFF \\xFE"), Code::kBadFile);
}

TEST(Vocab, MergesCannotMakeControlTokens) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.add("ab", TokenType::kControl);
  builder.add_merge_line("a b");
  EXPECT_EQ(refused(builder.copy(), "result is unknown"), Code::kBadFile);
}

TEST(Vocab, MissingMergesAreNoticed) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.data().merges.clear();
  EXPECT_EQ(refused(builder.copy(), "merges: got none, but token 256 ('he')"), Code::kBadFile);
}

TEST(Vocab, ARepeatedMergeKeepsItsFirstRank) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.add_merge_line("h e");
  Result<Tokenizer> tokenizer = Tokenizer::create(builder.copy());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(tokenizer.value().encode("hello").value(), std::vector<TokenId>{testing::kHello});
}

TEST(Vocab, ARepeatedTextMeansTheLowestId) {
  VocabBuilder builder = byte_level_builder("smollm");
  builder.add("h");
  Result<Tokenizer> tokenizer = Tokenizer::create(builder.copy());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(tokenizer.value().token_id("h"), 'h');
}

TEST(Vocab, NanScores) {
  VocabBuilder builder = spm_builder(false, {{"a", std::numeric_limits<float>::quiet_NaN()}});
  EXPECT_EQ(refused(builder.copy(), "scores[3]: got NaN"), Code::kBadFile);
}

TEST(Vocab, TokensThatAreNoUtf8AreKeptAsBytes) {
  VocabBuilder builder = byte_level_builder("smollm");
  const TokenId odd = builder.add("\xFF\xC3");
  const TokenId mark = builder.add("\xC3(", TokenType::kControl);
  Result<Tokenizer> tokenizer = Tokenizer::create(builder.copy());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().text();
  EXPECT_EQ(tokenizer.value().decode(std::vector<TokenId>{odd}).value(), "\xFF\xC3");
  EXPECT_EQ(tokenizer.value().encode("\xC3(", {.parse_special = true}).value(), std::vector<TokenId>{mark});
}

TEST(Vocab, AHundredThousandEqualTextsLoadInLinearTime) {
  VocabBuilder builder = byte_level_builder("smollm");
  for (int i = 0; i < 100000; ++i) {
    builder.data().tokens.push_back("h");
    builder.data().token_types.push_back(1);
    builder.data().scores.push_back(0.0f);
  }
  EXPECT_TRUE(Tokenizer::create(builder.copy()).ok());
}

TEST(Vocab, TheTokenizerKeepsItsStorageAlive) {
  std::weak_ptr<const void> watch;
  {
    Result<Tokenizer> tokenizer = [&] {
      VocabBuilder builder = byte_level_builder("smollm");
      watch = builder.data().storage;
      return Tokenizer::create(builder.copy());
    }();
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().text();
    EXPECT_FALSE(watch.expired());
    EXPECT_EQ(tokenizer.value().token_text(testing::kHello), "hello");
  }
  EXPECT_TRUE(watch.expired());
}

TEST(Alphabet, IsABijectionOfTheBytes) {
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(alphabet_to_byte(byte_to_alphabet(static_cast<std::uint8_t>(byte))), byte);
  }
  EXPECT_EQ(byte_to_alphabet(' '), 0x120u);
  EXPECT_EQ(byte_to_alphabet('\n'), 0x10Au);
  EXPECT_EQ(byte_to_alphabet(0xAD), 0x143u);
  for (const char32_t cp : {0x20, 0x7F, 0xAD, 0x144, 0x10FFFF}) {
    EXPECT_EQ(alphabet_to_byte(cp), -1);
  }
}

}  // namespace
}  // namespace tessera
