#include "engine/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

TEST(CharClass, ClassesOfKnownCharacters) {
  EXPECT_EQ(char_class(U'a'), CharClass::kLetter);
  EXPECT_EQ(char_class(0x00AA), CharClass::kLetter);  // feminine ordinal: Lo
  EXPECT_EQ(char_class(0x4E00), CharClass::kLetter);
  EXPECT_EQ(char_class(0x10FFFF), CharClass::kOther);
  EXPECT_EQ(char_class(U'7'), CharClass::kNumber);
  EXPECT_EQ(char_class(0x00BD), CharClass::kNumber);  // one half: No
  EXPECT_EQ(char_class(0x2160), CharClass::kNumber);  // roman numeral one: Nl
  EXPECT_EQ(char_class(0x0301), CharClass::kOther);   // combining acute: Mn
  EXPECT_EQ(char_class(U'_'), CharClass::kOther);
  EXPECT_EQ(char_class(0x7FFFFFFF), CharClass::kOther);
}

TEST(CharClass, WhiteSpaceIsTheUnicodeProperty) {
  std::string spaces;
  for (char32_t cp = 0; cp < 0x110000; ++cp) {
    if (char_class(cp) == CharClass::kSpace) {
      append_utf8(cp, spaces);
    }
  }
  std::string expected;
  for (const char32_t cp :
       {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85,   0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003,
        0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}) {
    append_utf8(cp, expected);
  }
  EXPECT_EQ(spaces, expected);
}

TEST(CharClass, TableFollowsUnicode16AndTheNewNumbersOf17) {
  EXPECT_EQ(char_class(0x1C89), CharClass::kLetter);      // new in 16.0
  EXPECT_EQ(char_class(0xA7CE), CharClass::kOther);       // new in 17.0
  EXPECT_EQ(char_class(0x10D40), CharClass::kNumber);     // new in 16.0
  EXPECT_EQ(char_class(0x11DE0), CharClass::kNewNumber);  // new in 17.0
}

TEST(Utf8, EveryScalarValueSurvivesARoundTrip) {
  for (char32_t cp = 0; cp < 0x110000; ++cp) {
    if (cp >= 0xD800 && cp < 0xE000) {
      continue;
    }
    std::string text;
    append_utf8(cp, text);
    const Utf8Char c = decode_utf8(text, 0);
    ASSERT_EQ(c.state, Utf8State::kValid) << static_cast<std::uint32_t>(cp);
    ASSERT_EQ(c.code_point, cp);
    ASSERT_EQ(c.length, text.size());
  }
}

struct BadCase {
  std::string bytes;
  Utf8State state;
  int length;
};

TEST(Utf8, MalformedSequencesEndAtTheirMaximalSubpart) {
  const BadCase cases[] = {
      {"\x80", Utf8State::kInvalid, 1},              // continuation without a lead
      {"\xC0\xAF", Utf8State::kInvalid, 1},          // overlong
      {"\xC1\xBF", Utf8State::kInvalid, 1},          //
      {"\xE0\x9F\xBF", Utf8State::kInvalid, 1},      // overlong
      {"\xED\xA0\x80", Utf8State::kInvalid, 1},      // surrogate
      {"\xF0\x8F\xBF\xBF", Utf8State::kInvalid, 1},  // overlong
      {"\xF4\x90\x80\x80", Utf8State::kInvalid, 1},  // above U+10FFFF
      {"\xF5\x80\x80\x80", Utf8State::kInvalid, 1},  //
      {"\xFF", Utf8State::kInvalid, 1},              //
      {"\xC3x", Utf8State::kInvalid, 1},             //
      {"\xE2\x82x", Utf8State::kInvalid, 2},         //
      {"\xF0\x9F\x98x", Utf8State::kInvalid, 3},     //
      {"\xC3", Utf8State::kTruncated, 1},            //
      {"\xE2\x82", Utf8State::kTruncated, 2},        //
      {"\xF0\x9F\x98", Utf8State::kTruncated, 3},    //
  };
  for (const BadCase& bad : cases) {
    const Utf8Char c = decode_utf8(bad.bytes, 0);
    EXPECT_EQ(c.state, bad.state) << ::testing::PrintToString(bad.bytes);
    EXPECT_EQ(c.length, bad.length) << ::testing::PrintToString(bad.bytes);
  }
}

}  // namespace
}  // namespace tessera
