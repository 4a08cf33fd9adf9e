#include "lab/text.h"

#include <gtest/gtest.h>

#include <string>

#include "records/utf8.h"

namespace tessera::lab {
namespace {

TEST(LabText, TakesUtf8AndTakesOffSpaceAround) {
  EXPECT_EQ(clean_text("  a\r\n\tcaf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80\n", "text", 100).value(),
            "a\n\tcaf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80");
}

TEST(LabText, RefusesWhatIsNoText) {
  for (const std::string& text : {std::string(), std::string(" \n\t "), std::string("a\0b", 3), std::string("\x1b[31m"),
                                  std::string("\x7f"), std::string("\xc2\x9b"),
                                  std::string("\xe2\x80\xae"
                                              "abc"),
                                  std::string("\xff"), std::string("\xc0\xaf"), std::string("\xed\xa0\x80"),
                                  std::string("\xf4\x90\x80\x80"), std::string("\xe2\x82"), std::string(101, 'a')}) {
    const Result<std::string> clean = clean_text(text, "hypothesis", 100);
    EXPECT_FALSE(clean.ok()) << text;
    EXPECT_TRUE(clean.ok() || clean.status().text().starts_with("hypothesis: got ")) << clean.status().text();
  }
  EXPECT_FALSE(clean_line("a\nb", "title", 100).ok());
}

TEST(LabText, TameLeavesNoByteThatActs) {
  const std::string tamed = tame(
      "a\x1b[2J\xff\n\xe2\x80\xae"
      "b\tc",
      100, false);
  EXPECT_EQ(tamed, "a?[2J? ?b c");
  EXPECT_EQ(tame("a\nb", 100, true), "a\nb");
  const std::string cut = tame(std::string(5000, 'x') + "\xc3\xa9", 100, false);
  EXPECT_LT(cut.size(), 200U);
  EXPECT_TRUE(is_utf8(cut));
  std::string many;
  for (int i = 0; i < 500; ++i) {
    many += "\xe6\x97\xa5";
  }
  EXPECT_TRUE(is_utf8(tame(many, 101, false)));
}

TEST(LabText, SlugsAreSafeFileNames) {
  EXPECT_EQ(slug_of("KV staging: double buffering!"), "kv-staging-double-buffering");
  EXPECT_EQ(slug_of("../../etc/passwd"), "etc-passwd");
  EXPECT_EQ(slug_of("\xe6\x97\xa5/.."), "experiment");
  EXPECT_EQ(slug_of("---"), "experiment");
  EXPECT_LE(slug_of(std::string(1000, 'a')).size(), 48U);
}

TEST(LabText, HtmlIsTextWhateverItSays) {
  EXPECT_EQ(html_escape("<script>alert('x')</script>&\""),
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;");
  EXPECT_EQ(html_prose("one <b>\ntwo `x < y`\n\n- a\n- b\nthree"),
            "<p>one &lt;b&gt;\ntwo <code>x &lt; y</code></p>\n<ul><li>a</li><li>b</li></ul>\n<p>three</p>\n");
  EXPECT_EQ(html_prose("a ` b"), "<p>a ` b</p>\n");
}

TEST(LabText, MarkdownHoldsNoHtmlAndNoHeadingOfItsOwn) {
  EXPECT_EQ(markdown_escape("a|b\n<i>*x*"), "a\\|b &lt;i\\>\\*x\\*");
  EXPECT_EQ(markdown_prose("# big\n<img>\n- *x*\n---"), "\\# big\n&lt;img>\n- *x*\n\\---");
}

TEST(LabText, AnOpenBlockOfCodeEndsWithItsText) {
  EXPECT_EQ(markdown_prose("a\n```\nb"), "a\n```\nb\n```");
  EXPECT_EQ(markdown_prose("~~~~ c\nb\n~~~"), "~~~~ c\nb\n~~~\n~~~~");
  for (const char* const whole : {"```\nb\n```", "a ``` b", "```b```", "    ```\nb", "```\nb\n````\nc"}) {
    EXPECT_EQ(markdown_prose(whole), whole);
  }
}

TEST(LabText, NumbersArePlain) {
  EXPECT_EQ(format_number(0), "0");
  EXPECT_EQ(format_number(-32), "-32");
  EXPECT_EQ(format_number(999), "999");
  EXPECT_EQ(format_number(3314), "3,314");
  EXPECT_EQ(format_number(1234567), "1,234,567");
  EXPECT_EQ(format_number(0.30391), "0.3039");
  EXPECT_EQ(format_number(3212.44), "3212.4");
  EXPECT_EQ(format_number(1.25e-7), "1.25e-07");
}

}  // namespace
}  // namespace tessera::lab
