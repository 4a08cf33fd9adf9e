// Damage that nobody designed: every truncation and many random byte changes of a valid file. Either the reader refuses
// with a sentence, or everything it promises holds.
#include <gtest/gtest.h>

#include <random>

#include "engine/gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "gguf/walk.h"

namespace tessera {
namespace {

using testing::bytes_of;
using testing::sample;
using testing::walk;

// Parses a copy in an exact-size heap block, so that AddressSanitizer sees any read past the end.
void parse_and_walk(const std::string& bytes, const std::string& what) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  const auto span = std::as_bytes(std::span(exact));
  for (const bool allow_gaps : {false, true}) {
    const Result<GgufFile> result = GgufFile::parse(span, "m.gguf", {.allow_gaps = allow_gaps});
    if (!result.ok()) {
      EXPECT_NE(result.status().text().find("m.gguf at byte "), std::string::npos) << result.status().text();
      continue;
    }
    EXPECT_EQ(walk(result.value(), span), "") << what;
  }
}

TEST(Truncation, EveryPrefixOfAFileIsRefused) {
  testing::GgufWriter writer = sample();
  writer.pad_last = false;
  const std::string file = writer.build();
  ASSERT_TRUE(GgufFile::parse(bytes_of(file), "m.gguf").ok());
  for (size_t n = 0; n < file.size(); ++n) {
    const std::vector<char> prefix(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(n));
    const Result<GgufFile> result = GgufFile::parse(std::as_bytes(std::span(prefix)), "m.gguf");
    ASSERT_FALSE(result.ok()) << "prefix of " << n << " bytes of " << file.size();
    EXPECT_NE(result.status().text().find("m.gguf at byte "), std::string::npos) << result.status().text();
  }
}

TEST(Truncation, EveryPrefixOfTheMetadataSaysTruncatedOrCount) {
  const std::string file = sample().build();
  const size_t metadata = GgufFile::parse(bytes_of(file), "m.gguf").value().tensors()[0].info_offset;
  for (size_t n = 0; n < metadata; ++n) {
    const Result<GgufFile> result = GgufFile::parse(bytes_of(file).first(n), "m.gguf");
    ASSERT_FALSE(result.ok());
    const std::string text = result.status().text();
    EXPECT_TRUE(text.find("truncated") != std::string::npos || text.find("count") != std::string::npos) << text;
  }
}

TEST(Mutation, TenThousandRandomByteChangesNeverBreakAPromise) {
  const std::string valid = sample().build();
  std::mt19937_64 random(20240611);
  int accepted = 0;
  for (int round = 0; round < 10000; ++round) {
    std::string file = valid;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i) file[random() % file.size()] = static_cast<char>(random());
    accepted += GgufFile::parse(bytes_of(file), "m.gguf").ok() ? 1 : 0;
    parse_and_walk(file, "round " + std::to_string(round));
  }
  // The test means nothing if mutations are always, or never, noticed.
  EXPECT_GT(accepted, 1000);
  EXPECT_LT(accepted, 9000);
}

TEST(Mutation, EveryFieldSetToExtremesNeverBreaksAPromise) {
  const std::string valid = sample().build();
  for (const uint64_t value : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 61, uint64_t{1} << 31,
                               uint64_t{0xffffffff}, uint64_t{0x7fffffffffffffff}}) {
    for (const size_t width : {1U, 4U, 8U}) {
      for (size_t at = 0; at + width <= valid.size(); ++at) {
        std::string file = valid;
        file.replace(at, width, testing::le(value).substr(0, width));
        parse_and_walk(file, "byte " + std::to_string(at));
      }
    }
  }
}

}  // namespace
}  // namespace tessera
