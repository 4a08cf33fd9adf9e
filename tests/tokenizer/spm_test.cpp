#include "engine/tokenizer/spm.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "tokenizer/small_vocab.h"

namespace tessera {
namespace {

using testing::spm_builder;
using testing::VocabBuilder;

using Ids = std::vector<TokenId>;

// Ids 3..258 are the bytes, pieces start at 259.
constexpr TokenId kByte = 3;
constexpr TokenId kA = 259, kB = 260, kC = 261, kAb = 262, kBc = 263, kMark = 264, kMarkA = 265, kAbc = 266;

VocabBuilder abc_builder() {
  return spm_builder(
      true, {{"a", -9}, {"b", -9}, {"c", -9}, {"ab", -2}, {"bc", -1}, {"\u2581", -9}, {"\u2581a", -3}, {"abc", -4}});
}

struct Fixture {
  explicit Fixture(VocabBuilder b) : builder(std::move(b)), tokenizer(Tokenizer::create(builder.copy()).value()) {}
  Ids encode(std::string_view text, EncodeOptions options = {}) const {
    return tokenizer.encode(text, options).value();
  }
  std::string decode(const Ids& ids) const { return tokenizer.decode(ids).value(); }

  VocabBuilder builder;
  Tokenizer tokenizer;
};

Fixture without_prefix() {
  VocabBuilder builder = abc_builder();
  builder.data().add_space_prefix = false;
  return Fixture(std::move(builder));
}

TEST(Spm, TheHighestScoreMergesFirst) {
  const Fixture t = without_prefix();
  EXPECT_EQ(t.encode("abc"), Ids{kAbc});  // bc, then a+bc
  EXPECT_EQ(t.encode("ab"), Ids{kAb});
  EXPECT_EQ(t.encode("bcb"), (Ids{kBc, kB}));
  EXPECT_EQ(t.encode("ac"), (Ids{kA, kC}));
}

TEST(Spm, TheLongestTokenOfTheVocabularyCanForm) {
  VocabBuilder builder = spm_builder(false, {{"a", -9}, {"aa", -3}, {"aaaa", -2}, {"aaaaaaaa", -1}});
  builder.data().add_space_prefix = false;
  EXPECT_EQ(Fixture(std::move(builder)).encode("aaaaaaaa"), Ids{6});
}

TEST(Spm, EqualScoresMergeFromTheLeft) {
  VocabBuilder builder = spm_builder(true, {{"a", -9}, {"aa", -1}});
  builder.data().add_space_prefix = false;
  EXPECT_EQ(Fixture(std::move(builder)).encode("aaa"), (Ids{260, 259}));
}

TEST(Spm, SpacesAreMarkedAndThePrefixIsPutOnceInFront) {
  const Fixture t{abc_builder()};
  EXPECT_EQ(t.encode("a a"), (Ids{kMarkA, kMarkA}));
  EXPECT_EQ(without_prefix().encode("a a"), (Ids{kA, kMarkA}));
  EXPECT_EQ(t.encode(""), Ids{});
  EXPECT_EQ(t.encode("a</s>a", {.add_special = true, .parse_special = true}), (Ids{1, kMarkA, 2, kA}));
}

TEST(Spm, UnknownCharactersFallBackToBytes) {
  const Fixture t = without_prefix();
  EXPECT_EQ(t.encode("a\u00E9"), (Ids{kA, kByte + 0xC3, kByte + 0xA9}));
  EXPECT_EQ(t.encode("\n"), Ids{kByte + '\n'});
  EXPECT_EQ(t.encode("\xFF"
                     "a"),
            (Ids{kByte + 0xFF, kA}));
  EXPECT_EQ(t.decode(t.encode("a\u00E9\xFF")), "a\u00E9\xFF");
}

TEST(Spm, WithoutByteTokensACharacterIsOneUnknown) {
  VocabBuilder builder = spm_builder(false, {{"a", -1}});
  builder.data().add_space_prefix = false;
  EXPECT_EQ(Fixture(builder).encode("a\u00E9z"), (Ids{3, 0, 0}));
  builder.data().unk_id.reset();
  const Fixture t{std::move(builder)};
  std::size_t dropped = 0;
  EXPECT_EQ(t.tokenizer.encode("a\u00E9z", {}, &dropped).value(), Ids{3});
  EXPECT_EQ(dropped, 3u);
}

TEST(Spm, TextCannotSpellControlOrByteTokens) {
  VocabBuilder builder = abc_builder();
  builder.data().add_space_prefix = false;
  const Fixture t{std::move(builder)};
  for (const char* text : {"<s>", "</s>", "<unk>", "<0x0A>"}) {
    const Ids ids = t.encode(text);
    EXPECT_EQ(ids.size(), std::string_view(text).size()) << text;
    EXPECT_EQ(t.decode(ids), text);
  }
}

TEST(Spm, DecodeTakesThePrefixAway) {
  const Fixture t{abc_builder()};
  EXPECT_EQ(t.decode(t.encode("a b")), "a b");
  EXPECT_EQ(t.decode(t.encode(" a", {.add_special = true})), " a");
  EXPECT_EQ(t.tokenizer.decode(Ids{kMarkA}, {.strip_space_prefix = false}).value(), " a");
  EXPECT_EQ(t.decode({kA, kMark}), "a ");
  EXPECT_EQ(t.decode({0}), "\uFFFD");
}

TEST(Spm, UserDefinedTokensKeepTheirSpaces) {
  VocabBuilder builder = abc_builder();
  const TokenId spaces = builder.add("    ", TokenType::kUserDefined);
  builder.data().add_space_prefix = false;
  const Fixture t{std::move(builder)};
  EXPECT_EQ(t.encode("a    b"), (Ids{kA, spaces, kB}));
  EXPECT_EQ(t.decode({kA, spaces, kB}), "a    b");
}

}  // namespace
}  // namespace tessera
