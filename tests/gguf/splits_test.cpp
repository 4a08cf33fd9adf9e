// Models stored as one file or as a set of split files.
#include <gtest/gtest.h>

#include "engine/gguf/model_files.h"
#include "gguf/gguf_writer.h"
#include "gguf/temp_dir.h"

namespace tessera {
namespace {

using testing::GgufWriter;
using testing::le;
using testing::TempDir;

// Part `no` of `count`, holding the named tensors of 4 floats each.
GgufWriter part(uint16_t no, uint16_t count, int32_t total, std::initializer_list<const char*> tensors) {
  GgufWriter w;
  w.kv("split.no", MetaType::U16, le(no)).kv("split.count", MetaType::U16, le(count));
  w.kv("split.tensors.count", MetaType::I32, le(total));
  for (const char* name : tensors) {
    w.tensor({.name = name, .dims = {2, 2}, .type = 0, .data = std::string(16, static_cast<char>(no + 1))});
  }
  return w;
}

void expect_error(const Result<ModelFiles>& result, Code code, std::initializer_list<std::string_view> words) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().text();
  for (const std::string_view word : words) {
    EXPECT_NE(result.status().text().find(word), std::string::npos) << word << " not in: " << result.status().text();
  }
}

TEST(ModelFiles, SingleFileNeedsNoSplitKeys) {
  const TempDir dir;
  const Result<ModelFiles> model = ModelFiles::open(dir.write("m.gguf", testing::sample().build()));
  ASSERT_TRUE(model.ok()) << model.status().text();
  EXPECT_EQ(model.value().n_tensors(), 2U);
  EXPECT_NE(model.value().find_tensor("norm.weight"), nullptr);
}

TEST(ModelFiles, SplitCountZeroOrOneIsAWholeModel) {
  const TempDir dir;
  EXPECT_TRUE(ModelFiles::open(dir.write("a.gguf", part(0, 0, 1, {"a"}).build())).ok());
  EXPECT_TRUE(ModelFiles::open(dir.write("b.gguf", part(0, 1, 1, {"a"}).build())).ok());
}

TEST(ModelFiles, TensorsOfAllPartsAreFound) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00003.gguf", part(0, 3, 4, {"d", "a"}).string("k", "v").build());
  dir.write("m-00002-of-00003.gguf", part(1, 3, 4, {"c"}).build());
  dir.write("m-00003-of-00003.gguf", part(2, 3, 4, {"b"}).build());
  Result<ModelFiles> opened = ModelFiles::open(first);
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  const ModelFiles model = std::move(opened).value();
  EXPECT_EQ(model.files().size(), 3U);
  EXPECT_EQ(model.n_tensors(), 4U);
  EXPECT_EQ(model.head().get_string("k").value(), "v");
  for (const auto& [name, value] : {std::pair{"a", 1}, {"b", 3}, {"c", 2}, {"d", 1}}) {
    const TensorInfo* tensor = model.find_tensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(std::to_integer<int>(tensor->data[0]), value) << name;
    model.release_pages(*tensor);
    EXPECT_EQ(std::to_integer<int>(tensor->data[15]), value) << name;
  }
  EXPECT_EQ(model.find_tensor("e"), nullptr);
}

TEST(ModelFiles, ThreePartsWithOneFileIsAnIoErrorNamingTheMissingOne) {
  const TempDir dir;
  expect_error(ModelFiles::open(dir.write("m-00001-of-00003.gguf", part(0, 3, 3, {"a"}).build())), Code::kIo,
               {"m-00002-of-00003.gguf"});
}

TEST(ModelFiles, SplitCountInAFileOfAnotherNameIsRefused) {
  const TempDir dir;
  expect_error(ModelFiles::open(dir.write("m.gguf", part(0, 3, 3, {"a"}).build())), Code::kBadFile,
               {"m.gguf at byte ", "key 'split.count'", "got 3", "-00001-of-00003.gguf"});
}

TEST(ModelFiles, OpeningALaterPartNamesTheFirst) {
  const TempDir dir;
  expect_error(ModelFiles::open(dir.write("m-00002-of-00002.gguf", part(1, 2, 2, {"a"}).build())), Code::kBadFile,
               {"key 'split.no'", "got 1", "'-00001-of-00002.gguf'"});
}

TEST(ModelFiles, PartNumberThatContradictsTheNameIsRefused) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", part(0, 2, 2, {"a"}).build());
  dir.write("m-00002-of-00002.gguf", part(0, 2, 2, {"b"}).build());
  expect_error(ModelFiles::open(first), Code::kBadFile,
               {"m-00002-of-00002.gguf at byte ", "key 'split.no'", "got 0", "allowed 1"});
}

TEST(ModelFiles, PartsThatDisagreeOnTheCountAreRefused) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", part(0, 2, 2, {"a"}).build());
  dir.write("m-00002-of-00002.gguf", part(1, 3, 2, {"b"}).build());
  expect_error(ModelFiles::open(first), Code::kBadFile,
               {"m-00002-of-00002.gguf", "key 'split.count'", "got 3", "allowed 2"});
}

TEST(ModelFiles, PartWithoutSplitKeysIsRefused) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", part(0, 2, 3, {"a"}).build());
  dir.write("m-00002-of-00002.gguf", testing::sample().build());
  expect_error(ModelFiles::open(first), Code::kBadFile, {"m-00002-of-00002.gguf", "key 'split.no'", "no such key"});
}

TEST(ModelFiles, WrongTensorTotalIsRefused) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", part(0, 2, 5, {"a"}).build());
  dir.write("m-00002-of-00002.gguf", part(1, 2, 5, {"b"}).build());
  expect_error(ModelFiles::open(first), Code::kBadFile, {"key 'split.tensors.count'", "got 5", "allowed 2"});
}

TEST(ModelFiles, SameTensorInTwoPartsIsRefused) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", part(0, 2, 3, {"a", "b"}).build());
  dir.write("m-00002-of-00002.gguf", part(1, 2, 3, {"b"}).build());
  expect_error(ModelFiles::open(first), Code::kBadFile,
               {"m-00002-of-00002.gguf at byte ", "tensor 'b'", "second occurrence", "m-00001-of-00002.gguf"});
}

TEST(ModelFiles, SplitKeysOfTheWrongTypeAreRefused) {
  const TempDir dir;
  GgufWriter w;
  w.string("split.count", "3");
  expect_error(ModelFiles::open(dir.write("m.gguf", w.build())), Code::kBadFile, {"key 'split.count'", "got string"});
}

TEST(ModelFiles, DamagedPartIsRefusedUnderItsOwnName) {
  const TempDir dir;
  const std::string first = dir.write("m-00001-of-00002.gguf", part(0, 2, 2, {"a"}).build());
  dir.write("m-00002-of-00002.gguf", "GGUF");
  expect_error(ModelFiles::open(first), Code::kBadFile, {"m-00002-of-00002.gguf at byte 4: version"});
}

TEST(RequireTensor, ComparesShapesExactlyAndNamesWhatIsMissing) {
  const TempDir dir;
  const ModelFiles model = std::move(ModelFiles::open(dir.write("m.gguf", testing::sample().build()))).value();
  EXPECT_TRUE(model.require_tensor("blk.0.w", {32, 2}).ok());
  EXPECT_TRUE(model.require_tensor("norm.weight", {3}).ok());
  const auto text = [&](std::string_view name, std::initializer_list<int64_t> dims) {
    const auto result = model.require_tensor(name, dims);
    return result.ok() ? "accepted" : result.status().text();
  };
  EXPECT_NE(text("blk.0.w", {2, 32}).find("shape of tensor 'blk.0.w': got [32, 2]; allowed [2, 32]"), std::string::npos)
      << text("blk.0.w", {2, 32});
  EXPECT_NE(text("blk.0.w", {32}).find("got [32, 2]; allowed [32]"), std::string::npos);
  EXPECT_NE(text("blk.0.w", {32, 2, 1, 1, 1}).find("got [32, 2]"), std::string::npos);
  EXPECT_NE(text("output.weight", {64, 9}).find("m.gguf: tensor 'output.weight': got no such tensor"),
            std::string::npos)
      << text("output.weight", {64, 9});
}

}  // namespace
}  // namespace tessera
