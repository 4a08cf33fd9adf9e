#include "engine/tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

using Words = std::vector<std::string>;

Words split(PreTokenizer kind, std::string_view text) {
  Words words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = next_word_end(kind, text, begin);
    words.emplace_back(text.substr(begin, end - begin));
    if (end <= begin) {
      ADD_FAILURE() << "empty word at " << begin;
      break;
    }
    begin = end;
  }
  return words;
}

Words smollm(std::string_view text) {
  return split(PreTokenizer::kSmollm, text);
}
Words llama(std::string_view text) {
  return split(PreTokenizer::kLlamaBpe, text);
}
Words qwen(std::string_view text) {
  return split(PreTokenizer::kQwen2, text);
}

TEST(PreTokenizerName, KnownNamesAndAliases) {
  EXPECT_EQ(pretokenizer_by_name("smollm").value(), PreTokenizer::kSmollm);
  EXPECT_EQ(pretokenizer_by_name("starcoder").value(), PreTokenizer::kSmollm);
  EXPECT_EQ(pretokenizer_by_name("llama-bpe").value(), PreTokenizer::kLlamaBpe);
  EXPECT_EQ(pretokenizer_by_name("llama3").value(), PreTokenizer::kLlamaBpe);
  EXPECT_EQ(pretokenizer_by_name("llama-v3").value(), PreTokenizer::kLlamaBpe);
  EXPECT_EQ(pretokenizer_by_name("qwen2").value(), PreTokenizer::kQwen2);
}

TEST(PreTokenizerName, AnUnknownNameIsRefusedWithTheAllowedOnes) {
  const Status status = pretokenizer_by_name("gpt-4o").status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  for (const char* part : {"gpt-4o", "smollm", "llama-bpe", "qwen2"}) {
    EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
  }
  EXPECT_FALSE(pretokenizer_by_name("").ok());
}

TEST(Smollm, WordsTakeOneLeadingSpace) {
  EXPECT_EQ(smollm("Hello world  again"), (Words{"Hello", " world", " ", " again"}));
  EXPECT_EQ(smollm("a+b == c"), (Words{"a", "+", "b", " ==", " c"}));
  EXPECT_EQ(smollm("\tx"), (Words{"\t", "x"}));
}

TEST(Smollm, EachDigitStandsAloneAndEndsTheSpacesBeforeIt) {
  EXPECT_EQ(smollm("in 2024"), (Words{"in", " ", "2", "0", "2", "4"}));
  EXPECT_EQ(smollm("   1"), (Words{"   ", "1"}));
  EXPECT_EQ(smollm("\u00BD\u2167"), (Words{"\u00BD", "\u2167"}));
  EXPECT_EQ(smollm("!\U00011DE0!"), (Words{"!", "\U00011DE0", "!"}));  // a number since Unicode 17.0
}

TEST(Smollm, ContractionsAreLowerCaseOnly) {
  EXPECT_EQ(smollm("it's we'll I'd"), (Words{"it", "'s", " we", "'ll", " I", "'d"}));
  EXPECT_EQ(smollm("IT'S 'l"), (Words{"IT", "'", "S", " '", "l"}));
  EXPECT_EQ(smollm("'\u017F"), (Words{"'", "\u017F"}));
}

TEST(Smollm, SpacesAtTheEndStayTogether) {
  EXPECT_EQ(smollm("a \n\t "), (Words{"a", " \n\t "}));
  EXPECT_EQ(smollm("a\u3000\u3000b"), (Words{"a", "\u3000", "\u3000", "b"}));
}

TEST(Llama, DigitsComeInThreesAndQwenTakesOne) {
  EXPECT_EQ(llama("1234567"), (Words{"123", "456", "7"}));
  EXPECT_EQ(qwen("1234"), (Words{"1", "2", "3", "4"}));
  EXPECT_EQ(llama("  12"), (Words{" ", " ", "12"}));
  EXPECT_EQ(llama("!\U00011DE0!"), (Words{"!\U00011DE0!"}));  // not yet a number to this pattern
}

TEST(Llama, ContractionsIgnoreCaseAndKnowTheLongS) {
  EXPECT_EQ(llama("IT'S"), (Words{"IT", "'S"}));
  EXPECT_EQ(llama("a'\u017Fx"), (Words{"a", "'\u017F", "x"}));
  EXPECT_EQ(llama("'lL'Re'vE"), (Words{"'lL", "'Re", "'vE"}));
  EXPECT_EQ(llama("'rx"), (Words{"'rx"}));
}

TEST(Llama, AnyOneNonLetterLeadsAWord) {
  EXPECT_EQ(llama("(foo)bar"), (Words{"(foo", ")bar"}));
  EXPECT_EQ(llama("\tfoo"), (Words{"\tfoo"}));
  EXPECT_EQ(llama("\nfoo"), (Words{"\n", "foo"}));
  EXPECT_EQ(llama("\u3000\u3000x"), (Words{"\u3000", "\u3000x"}));
}

TEST(Llama, SymbolsTakeASpaceInFrontAndNewlinesBehind) {
  EXPECT_EQ(llama("a ==\r\n\n b"), (Words{"a", " ==\r\n\n", " b"}));
  EXPECT_EQ(llama("!! x"), (Words{"!!", " x"}));
}

TEST(Llama, SpacesEndAtTheLastNewline) {
  EXPECT_EQ(llama("a  \n \n  b"), (Words{"a", "  \n \n", " ", " b"}));
  EXPECT_EQ(llama(" \r"), (Words{" \r"}));
  EXPECT_EQ(llama("a   "), (Words{"a", "   "}));
}

TEST(PreTokenizer, AnInvalidByteIsACharacterOfNoClass) {
  EXPECT_EQ(smollm("a\xFF\x80 b"), (Words{"a", "\xFF\x80", " b"}));
  EXPECT_EQ(llama("\xE2\x82z"), (Words{"\xE2\x82", "z"}));
  EXPECT_EQ(llama("\x82z"), (Words{"\x82z"}));
}

TEST(PreTokenizer, WordsCoverEveryTextWithoutGaps) {
  std::uint32_t state = 1;
  const std::string units[] = {"a", " ",      "\n",     "\r",   "1",          "!", "'",
                               "s", "\u3000", "\u00E9", "\xFF", "\U0001F600", "ll"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      state = state * 1664525u + 1013904223u;
      text += units[(state >> 16) % std::size(units)];
    }
    for (const PreTokenizer kind : {PreTokenizer::kSmollm, PreTokenizer::kLlamaBpe, PreTokenizer::kQwen2}) {
      std::string joined;
      for (const std::string& word : split(kind, text)) {
        joined += word;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

}  // namespace
}  // namespace tessera
