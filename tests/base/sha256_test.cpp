#include "base/sha256.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/sha256_blocks.h"

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

// The two compression functions must agree on any state and data.
TEST(Sha256Blocks, InstructionsEqualThePortableCode) {
  const Sha256Blocks shani = sha256_blocks_shani();
  if (shani == nullptr) GTEST_SKIP() << "this CPU has no SHA instructions";
  std::mt19937 random(7);
  for (size_t count = 0; count < 9; ++count) {
    std::array<uint32_t, 8> a;
    for (uint32_t& word : a) word = static_cast<uint32_t>(random());
    std::array<uint32_t, 8> b = a;
    std::vector<uint8_t> data(64 * count + 1);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    sha256_blocks_portable(a.data(), data.data() + 1, count);
    shani(b.data(), data.data() + 1, count);
    EXPECT_EQ(a, b) << count << " blocks";
  }
}

// FIPS 180-4 "abc", padded by hand, so that the portable code is tested where the class uses the instructions.
TEST(Sha256Blocks, PortableCodeHashesAbc) {
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block = {'a', 'b', 'c', 0x80};
  block[63] = 24;
  sha256_blocks_portable(state.data(), block.data(), 1);
  EXPECT_EQ(state, (std::array<uint32_t, 8>{0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223, 0xb00361a3, 0x96177a9c,
                                            0xb410ff61, 0xf20015ad}));
}

}  // namespace
}  // namespace tessera
