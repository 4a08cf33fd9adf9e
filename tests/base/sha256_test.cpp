#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

std::string hex(const std::string& text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

// FIPS 180-4 / NIST CAVP example messages.
TEST(Sha256, EmptyMessage) {
  EXPECT_EQ(hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, OneBlockMessage) {
  EXPECT_EQ(hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, MessageWhoseLengthFieldNeedsASecondBlock) {
  EXPECT_EQ(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, TwoBlockMessage) {
  EXPECT_EQ(
      hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrst"
          "nopqrstu"),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

TEST(Sha256, MillionCharacters) {
  EXPECT_EQ(hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Lengths around the padding boundaries (55, 56, 63, 64 bytes), against digests of coreutils sha256sum.
TEST(Sha256, PaddingBoundaries) {
  EXPECT_EQ(hex(std::string(55, 'x')), "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  EXPECT_EQ(hex(std::string(56, 'x')), "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  EXPECT_EQ(hex(std::string(63, 'x')), "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  EXPECT_EQ(hex(std::string(64, 'x')), "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
  EXPECT_EQ(hex(std::string(65, 'x')), "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9");
}

TEST(Sha256, AnySplitIntoUpdatesGivesTheSameDigest) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  const std::string whole = hex(text);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 sha;
    sha.update(text.data(), cut);
    sha.digest();  // taking a digest must not disturb the stream
    sha.update(text.data() + cut, text.size() - cut);
    ASSERT_EQ(to_hex(sha.digest()), whole) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace tessera
