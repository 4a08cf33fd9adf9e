#include "engine/gguf/tensor_check.h"

#include <gtest/gtest.h>

#include <limits>

#include "gguf/gguf_writer.h"

namespace tessera {
namespace {

using testing::bytes_of;
using testing::GgufWriter;
using testing::le;

constexpr uint16_t kHalfInf = 0x7c00;
constexpr uint16_t kHalfNan = 0x7e00;
constexpr uint16_t kHalf1 = 0x3c00;

std::string check(TensorType type, std::vector<int64_t> dims, std::string data) {
  GgufWriter w;
  w.tensor({.name = "w", .dims = std::move(dims), .type = static_cast<uint32_t>(type), .data = std::move(data)});
  const std::string bytes = w.build();
  const Result<GgufFile> file = GgufFile::parse(bytes_of(bytes), "m.gguf");
  EXPECT_TRUE(file.ok()) << file.status().text();
  return check_tensor_values(file.value().tensors()[0], file.value().name()).text();
}

std::string q8_block(uint16_t d) {
  return le(d) + std::string(32, '\x7f');
}

TEST(CheckTensorValues, FiniteWeightsPass) {
  EXPECT_EQ(check(TensorType::Q8_0, {32, 2}, q8_block(kHalf1) + q8_block(kHalf1)), "");
}

TEST(CheckTensorValues, NonFiniteScaleIsNamedByRowColumnAndOffset) {
  // Data starts at 96 = align_up(24 + 8 + 1 + 4 + 16 + 4 + 8 = 65, 32); the bad block is the third, 68 bytes further.
  const std::string text =
      check(TensorType::Q8_0, {64, 2}, q8_block(kHalf1) + q8_block(kHalf1) + q8_block(kHalfInf) + q8_block(kHalf1));
  EXPECT_EQ(text.find("m.gguf at byte 164: tensor 'w', row 1, column 0: got inf; allowed "), 0U) << text;
  EXPECT_NE(check(TensorType::Q8_0, {32}, q8_block(kHalfNan)).find("got nan"), std::string::npos);
}

TEST(CheckTensorValues, ErrorBeyondTheFirstChunkIsFound) {
  std::string data;
  for (int i = 0; i < 4095; ++i) data += le(1.0F);
  const std::string text = check(TensorType::F32, {4096}, data + le(std::numeric_limits<float>::quiet_NaN()));
  EXPECT_NE(text.find("row 0, column 4095: got nan"), std::string::npos) << text;
}

TEST(CheckTensorValues, MatricesMustStayFiniteInF16) {
  // 65519.996 rounds to 65504, 65520 to infinity.
  EXPECT_EQ(check(TensorType::F32, {2, 1, 1}, le(65519.996F) + le(-65519.996F)), "");
  EXPECT_NE(check(TensorType::F32, {1, 2}, le(1.0F) + le(65520.0F)).find("row 1, column 0: got 65520"),
            std::string::npos);
  // 516 * 127 = 65532 from finite scale and code.
  EXPECT_NE(check(TensorType::Q8_0, {32, 1}, q8_block(0x6008)).find("got 65532"), std::string::npos)
      << check(TensorType::Q8_0, {32, 1}, q8_block(0x6008));
  EXPECT_NE(check(TensorType::BF16, {1, 1}, le<uint16_t>(0x4780)).find("got 65536"), std::string::npos);
}

TEST(CheckTensorValues, VectorsMayHoldAnyFiniteNumber) {
  EXPECT_EQ(check(TensorType::F32, {2}, le(1.0F) + le(1e30F)), "");
  EXPECT_NE(check(TensorType::F32, {1}, le(std::numeric_limits<float>::infinity())).find("got inf"), std::string::npos);
}

}  // namespace
}  // namespace tessera
