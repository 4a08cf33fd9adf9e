#include "records/canonical_json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace tessera {
namespace {

std::string again(const std::string& text) {
  const Result<Json> parsed = parse_json(text, "text");
  EXPECT_TRUE(parsed.ok()) << text << " " << parsed.status().text();
  return parsed.ok() ? compact_json(parsed.value()) : "";
}

TEST(CanonicalJson, SortsKeysAndLeavesNoSpace) {
  EXPECT_EQ(again("{ \"b\": [1, 2],\n \"a\": {\"z\": null, \"y\": true} }"), R"({"a":{"y":true,"z":null},"b":[1,2]})");
}

// What Python's repr writes for the same doubles.
TEST(CanonicalJson, WritesNumbersAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {{0.1, "0.1"},
                                                  {1.0, "1.0"},
                                                  {-0.0, "-0.0"},
                                                  {1e-4, "0.0001"},
                                                  {1e-5, "1e-05"},
                                                  {1.5e-7, "1.5e-07"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},
                                                  {123456789012345.6, "123456789012345.6"},
                                                  {1e22, "1e+22"},
                                                  {0.3, "0.3"},
                                                  {2.0 / 3, "0.6666666666666666"},
                                                  {5e-324, "5e-324"},
                                                  {1e100, "1e+100"},
                                                  {100.0, "100.0"},
                                                  {-1234.5, "-1234.5"},
                                                  {1.0042, "1.0042"}};
  for (const auto& [value, text] : cases) {
    EXPECT_EQ(compact_json(value), text);
    EXPECT_EQ(again(compact_json(value)), compact_json(value));
  }
  EXPECT_EQ(compact_json(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
  EXPECT_EQ(again("18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(again("-9223372036854775808"), "-9223372036854775808");
  EXPECT_EQ(again("1E2"), "100.0");
}

TEST(CanonicalJson, EscapesWhatJsonMustAndNothingElse) {
  EXPECT_EQ(compact_json(Json("a\"b\\c\n\t\x01/\x7f é")), "\"a\\\"b\\\\c\\n\\t\\u0001/\x7f é\"");
}

// Whatever the bytes of a name in a model's file are: what is written can be read back.
TEST(CanonicalJson, WritesAByteThatIsNoUtf8AsTheReplacementCharacter) {
  EXPECT_EQ(compact_json(Json("a\xff\xc3\xa9\xe2\x82z")), "\"a\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbdz\"");
}

TEST(CanonicalJson, ADigestLeavesItsOwnKeyOut) {
  const Json value = {{"b", 0.5}, {"a", 1}};
  Json sealed = value;
  sealed["digest"] = digest_without(value, "digest");
  EXPECT_EQ(digest_without(sealed, "digest"), digest_without(value, "digest"));
  // printf '{"a":1,"b":0.5}' | sha256sum
  EXPECT_EQ(digest_without(sealed, "digest"), "2e76599baa1e42fd9bf6253fdc2bf4ea1317abe64622c63aeb6c862f4b705306");
  sealed["b"] = 0.25;
  EXPECT_NE(digest_without(sealed, "digest"), digest_without(value, "digest"));
}

TEST(CanonicalJson, PrettyFormReadsBackAsTheSameValue) {
  const std::string text = R"({"a":[],"b":[1,2.5,"x"],"c":[{"d":1},[3]],"e":{}})";
  const Json value = parse_json(text, "text").value();
  EXPECT_EQ(pretty_json(value),
            "{\n  \"a\": [],\n  \"b\": [1, 2.5, \"x\"],\n  \"c\": [\n    {\n      \"d\": 1\n    },\n    [3]\n  ],\n"
            "  \"e\": {}\n}\n");
  EXPECT_EQ(again(pretty_json(value)), text);
}

TEST(CanonicalJson, RefusesWhatIsNotStrict) {
  const std::string deep(100000, '[');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("{} {}"), std::string("{\"a\":1,\"a\":2}"), std::string("[NaN]"),
        std::string("1e999"), std::string("\"\xff\""), std::string("\"\xed\xa0\x80\""), std::string("'a'"),
        std::string("[1,]"), deep, deep + std::string(100000, ']')}) {
    EXPECT_FALSE(parse_json(text, "text").ok()) << text.substr(0, 40);
  }
  EXPECT_TRUE(parse_json("{\"a\":{\"b\":1},\"c\":{\"b\":1}}", "text").ok());
  EXPECT_NE(parse_json("{\"a\":1,\"a\":2}", "text").status().text().find("\"a\" twice"), std::string::npos);
}

}  // namespace
}  // namespace tessera
