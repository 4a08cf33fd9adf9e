// What a valid file yields: header fields, typed values, array views, tensors; and what the getters refuse.
#include "engine/gguf/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gguf/gguf_writer.h"

namespace tessera {
namespace {

using testing::array;
using testing::array_of;
using testing::bytes_of;
using testing::GgufWriter;
using testing::le;
using testing::sample;

// Keeps the bytes alive beside the file that views them.
struct Parsed {
  std::string bytes;
  Result<GgufFile> result;
  explicit Parsed(std::string b) : bytes(std::move(b)), result(GgufFile::parse(bytes_of(bytes), "m.gguf")) {}
  explicit Parsed(const GgufWriter& w) : Parsed(w.build()) {}
  Parsed(const Parsed&) = delete;
  const GgufFile& operator*() const { return result.value(); }
  const GgufFile* operator->() const { return &result.value(); }
};

template <class T>
void expect_error(const Result<T>& result, std::initializer_list<std::string_view> words) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kBadFile);
  for (const std::string_view word : words) {
    EXPECT_NE(result.status().text().find(word), std::string::npos) << word << " not in: " << result.status().text();
  }
}

TEST(GgufFile, EmptyFileWithAHeaderIsValid) {
  const Parsed file(GgufWriter{});
  ASSERT_TRUE(file.result.ok()) << file.result.status().text();
  EXPECT_EQ(file->version(), 3U);
  EXPECT_EQ(file->alignment(), 32U);
  EXPECT_TRUE(file->metadata().empty());
  EXPECT_TRUE(file->tensors().empty());
}

TEST(GgufFile, Version2IsReadLikeVersion3) {
  GgufWriter w = sample();
  w.version = 2;
  const Parsed file(w);
  ASSERT_TRUE(file.result.ok()) << file.result.status().text();
  EXPECT_EQ(file->version(), 2U);
  EXPECT_EQ(file->get_string("t.string").value(), "hello");
}

TEST(GgufFile, MetadataKeepsFileOrderAndIsFoundByKey) {
  const Parsed file(sample());
  ASSERT_TRUE(file.result.ok()) << file.result.status().text();
  ASSERT_EQ(file->metadata().size(), 17U);
  EXPECT_EQ(file->metadata()[0].key, "t.u8");
  EXPECT_EQ(file->metadata()[0].offset, 24U);
  EXPECT_EQ(file->metadata()[16].key, "general.alignment");
  for (const MetaEntry& entry : file->metadata()) EXPECT_EQ(file->find(entry.key), &entry);
  EXPECT_EQ(file->find("t.u"), nullptr);
  EXPECT_EQ(file->find(""), nullptr);
}

TEST(GgufFile, TensorsCarryShapeExtentAndData) {
  const Parsed file(sample());
  ASSERT_TRUE(file.result.ok()) << file.result.status().text();
  ASSERT_EQ(file->tensors().size(), 2U);
  const TensorInfo* norm = file->find_tensor("norm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->type, TensorType::F32);
  EXPECT_EQ(norm->n_dims, 1U);
  EXPECT_EQ(norm->dims, (std::array<int64_t, 4>{3, 1, 1, 1}));
  EXPECT_EQ(norm->nbytes, 12U);
  EXPECT_EQ(norm->offset, file->data_offset());
  EXPECT_EQ(load_le<float>(norm->data.data() + 8), 3.0F);
  const TensorInfo* w = file->find_tensor("blk.0.w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->type, TensorType::Q8_0);
  EXPECT_EQ(w->dims, (std::array<int64_t, 4>{32, 2, 1, 1}));
  EXPECT_EQ(w->n_elements(), 64);
  EXPECT_EQ(w->n_rows(), 2);
  EXPECT_EQ(w->row_bytes(), 34U);
  EXPECT_EQ(w->nbytes, 68U);
  EXPECT_EQ(w->offset, norm->offset + 64);  // general.alignment = 64
  EXPECT_EQ(w->offset % 64, 0U);
  EXPECT_EQ(w->data[0], std::byte{1});
  EXPECT_EQ(file->find_tensor("blk.0"), nullptr);
}

TEST(GgufFile, EverySupportedTensorTypeHasItsSize) {
  struct Row {
    TensorType type;
    int64_t row;
    uint64_t bytes;
  };
  const Row rows[] = {{TensorType::F32, 256, 1024}, {TensorType::F16, 256, 512},  {TensorType::BF16, 256, 512},
                      {TensorType::Q4_0, 256, 144}, {TensorType::Q4_1, 256, 160}, {TensorType::Q5_0, 256, 176},
                      {TensorType::Q5_1, 256, 192}, {TensorType::Q8_0, 256, 272}, {TensorType::Q4_K, 256, 144},
                      {TensorType::Q5_K, 256, 176}, {TensorType::Q6_K, 256, 210}};
  for (const Row& row : rows) {
    GgufWriter w;
    w.tensor({.name = "w",
              .dims = {row.row},
              .type = static_cast<uint32_t>(row.type),
              .data = std::string(row.bytes, '\0')});
    const Parsed file(w);
    ASSERT_TRUE(file.result.ok()) << type_name(row.type) << file.result.status().text();
    EXPECT_EQ(file->tensors()[0].nbytes, row.bytes) << type_name(row.type);
  }
}

TEST(GgufFile, LastTensorNeedsNoPadding) {
  GgufWriter w = sample();
  w.pad_last = false;
  const Parsed file(w);
  EXPECT_TRUE(file.result.ok()) << file.result.status().text();
}

TEST(GgufFile, NameOf63BytesIsAccepted) {
  GgufWriter w;
  w.tensor({.name = std::string(63, 'n'), .dims = {1}, .type = 0, .data = le(1.0F)});
  EXPECT_TRUE(Parsed(w).result.ok());
}

TEST(GgufFile, MovingKeepsViewsValid) {
  Parsed file(sample());
  const std::string_view text = file->get_string("t.string").value();
  const GgufFile moved = std::move(file.result).value();
  EXPECT_EQ(text, "hello");
  EXPECT_EQ(moved.get_string("t.string").value().data(), text.data());
}

TEST(GetInt, AcceptsEveryIntegerWidth) {
  const Parsed file(sample());
  EXPECT_EQ(file->get_u64("t.u8").value(), 200U);
  EXPECT_EQ(file->get_u64("t.u16").value(), 65535U);
  EXPECT_EQ(file->get_u64("t.u32").value(), 4000000000U);
  EXPECT_EQ(file->get_u64("t.u64").value(), ~uint64_t{0});
  EXPECT_EQ(file->get_i64("t.u32").value(), 4000000000);
  EXPECT_EQ(file->get_i64("t.i8").value(), -3);
  EXPECT_EQ(file->get_i64("t.i16").value(), -300);
  EXPECT_EQ(file->get_i64("t.i32").value(), -70000);
  EXPECT_EQ(file->get_i64("t.i64").value(), -5000000000);
}

TEST(GetInt, RefusesValuesOutsideTheRange) {
  const Parsed file(sample());
  expect_error(file->get_u64("t.i8"), {"m.gguf at byte ", "key 't.i8'", "got -3", "from 0 to"});
  expect_error(file->get_i64("t.u64"), {"key 't.u64'", "got 18446744073709551615", "to 9223372036854775807"});
  expect_error(file->get_u64("t.u8", 0, 199), {"key 't.u8'", "got 200", "0 to 199"});
  expect_error(file->get_u64("t.u8", 201), {"key 't.u8'", "got 200", "201 to"});
  expect_error(file->get_i64("t.i16", -299, 0), {"key 't.i16'", "got -300", "-299 to 0"});
  EXPECT_TRUE(file->get_u64("t.u8", 200, 200).ok());
  EXPECT_TRUE(file->get_i64("t.i16", -300, -300).ok());
}

TEST(GetInt, RefusesOtherTypes) {
  const Parsed file(sample());
  for (const char* key : {"t.f32", "t.f64", "t.bool", "t.string", "t.ints"}) {
    expect_error(file->get_u64(key), {"m.gguf at byte ", key, "allowed an integer"});
    expect_error(file->get_i64(key), {"m.gguf at byte ", key, "allowed an integer"});
  }
}

TEST(GetF32, IsExactlyF32AndFinite) {
  GgufWriter w = sample();
  w.f32("rope.freq_base", std::numeric_limits<float>::quiet_NaN());
  w.f32("a.inf", std::numeric_limits<float>::infinity());
  w.f32("a.zero", 0.0F);
  const Parsed file(w);
  EXPECT_EQ(file->get_f32("t.f32").value(), 0.5F);
  expect_error(file->get_f32("t.f64"), {"key 't.f64'", "got f64", "f32"});
  expect_error(file->get_f32("t.u32"), {"key 't.u32'", "got u32"});
  expect_error(file->get_f32("rope.freq_base"), {"key 'rope.freq_base'", "got nan", "finite"});
  expect_error(file->get_f32("a.inf"), {"key 'a.inf'", "got inf", "finite"});
  expect_error(file->get_f32("a.zero", 1e-9F), {"key 'a.zero'", "got 0"});
}

TEST(GetOthers, HaveExactTypes) {
  const Parsed file(sample());
  EXPECT_TRUE(file->get_bool("t.bool").value());
  expect_error(file->get_bool("t.u8"), {"key 't.u8'", "got u8", "allowed a bool"});
  EXPECT_EQ(file->get_string("t.string").value(), "hello");
  expect_error(file->get_string("t.strings"), {"key 't.strings'", "got array of string [3]", "allowed a string"});
}

TEST(MissingKey, IsAnErrorWhenRequiredAndTheFallbackWhenOptional) {
  const Parsed file(sample());
  expect_error(file->get_u64("llama.block_count"), {"m.gguf: key 'llama.block_count'", "no such key", "an integer"});
  expect_error(file->get_f32("x"), {"key 'x'", "no such key"});
  expect_error(file->get_bool("x"), {"key 'x'", "no such key"});
  expect_error(file->get_string("x"), {"key 'x'", "no such key"});
  expect_error(file->get_i64_array("x"), {"key 'x'", "no such key"});
  EXPECT_EQ(file->get_u64_or("x", 7).value(), 7U);
  EXPECT_EQ(file->get_i64_or("x", -7).value(), -7);
  EXPECT_EQ(file->get_f32_or("x", 1.5F).value(), 1.5F);
  EXPECT_TRUE(file->get_bool_or("x", true).value());
  EXPECT_EQ(file->get_string_or("x", "none").value(), "none");
}

TEST(OptionalKey, OfTheWrongTypeOrRangeIsStillAnError) {
  const Parsed file(sample());
  expect_error(file->get_u64_or("t.string", 7), {"key 't.string'", "got string"});
  expect_error(file->get_u64_or("t.u8", 7, 0, 10), {"key 't.u8'", "got 200"});
  expect_error(file->get_i64_or("t.f32", 7), {"key 't.f32'"});
  expect_error(file->get_f32_or("t.bool", 1.0F), {"key 't.bool'"});
  expect_error(file->get_bool_or("t.u8", true), {"key 't.u8'"});
  expect_error(file->get_string_or("t.u8", ""), {"key 't.u8'"});
  EXPECT_EQ(file->get_u64_or("t.u8", 7).value(), 200U);
  EXPECT_EQ(file->get_f32_or("t.f32", 7.0F).value(), 0.5F);
}

TEST(StringArray, IteratesTheFileWithoutCopying) {
  const Parsed file(sample());
  const StringArray array = file->get_string_array("t.strings").value();
  ASSERT_EQ(array.size(), 3U);
  const std::vector<std::string_view> views = array.views();
  EXPECT_EQ(views, (std::vector<std::string_view>{"a", "", "a\xff\x01z"}));
  EXPECT_GE(views[2].data(), file.bytes.data());
  EXPECT_LT(views[2].data(), file.bytes.data() + file.bytes.size());
}

TEST(Arrays, OfEveryElementTypeReadBack) {
  GgufWriter w = sample();
  w.kv("a.u8", MetaType::Array, array_of<uint8_t>(MetaType::U8, {0, 255}));
  w.kv("a.u64", MetaType::Array, array_of<uint64_t>(MetaType::U64, {1, uint64_t{1} << 62}));
  w.kv("a.i16", MetaType::Array, array_of<int16_t>(MetaType::I16, {-1}));
  w.kv("a.none", MetaType::Array, array(MetaType::F32, 0, ""));
  const Parsed file(w);
  EXPECT_EQ(file->get_i64_array("t.ints").value().to_vector(), (std::vector<int64_t>{7, -8, 9}));
  EXPECT_EQ(file->get_i64_array("a.u8").value().to_vector(), (std::vector<int64_t>{0, 255}));
  EXPECT_EQ(file->get_i64_array("a.u64").value().to_vector(), (std::vector<int64_t>{1, int64_t{1} << 62}));
  EXPECT_EQ(file->get_i64_array("a.i16").value()[0], -1);
  EXPECT_EQ(file->get_f32_array("t.floats").value().to_vector(), (std::vector<float>{1.0F, -2.5F}));
  EXPECT_TRUE(file->get_f32_array("a.none").value().empty());
  EXPECT_EQ(file->get_bool_array("t.bools").value().to_vector(), (std::vector<bool>{true, false, true}));
}

TEST(BoolArray, MayBeStoredInSmallIntegers) {
  GgufWriter w;
  w.kv("a.i8", MetaType::Array, array_of<int8_t>(MetaType::I8, {1, 0}));
  w.kv("a.u8", MetaType::Array, array_of<uint8_t>(MetaType::U8, {1, 0}));
  w.kv("a.i32", MetaType::Array, array_of<int32_t>(MetaType::I32, {1, 0}));
  w.kv("a.minus", MetaType::Array, array_of<int8_t>(MetaType::I8, {0, -1}));
  w.kv("a.i64", MetaType::Array, array_of<int64_t>(MetaType::I64, {1, 0}));
  const Parsed file(w);
  for (const char* key : {"a.i8", "a.u8", "a.i32"}) {
    EXPECT_EQ(file->get_bool_array(key).value().to_vector(), (std::vector<bool>{true, false})) << key;
  }
  expect_error(file->get_bool_array("a.minus"), {"key 'a.minus'", "-1 as element 1", "0 or 1"});
  expect_error(file->get_bool_array("a.i64"), {"key 'a.i64'", "got array of i64 [2]"});
}

TEST(Arrays, OfTheWrongTypeLengthOrRangeAreRefused) {
  GgufWriter w = sample();
  w.kv("tok.scores", MetaType::Array, array_of<uint8_t>(MetaType::U8, {1, 2, 3}));
  w.kv("tok.nan", MetaType::Array, array_of<float>(MetaType::F32, {1.0F, NAN}));
  w.kv("a.u64", MetaType::Array, array_of<uint64_t>(MetaType::U64, {0, ~uint64_t{0}}));
  const Parsed file(w);
  expect_error(file->get_f32_array("tok.scores"), {"key 'tok.scores'", "got array of u8 [3]", "array of f32"});
  expect_error(file->get_f32_array("tok.nan"), {"key 'tok.nan'", "NaN as element 1"});
  expect_error(file->get_f32_array("t.f32"), {"key 't.f32'", "got f32", "array of f32"});
  expect_error(file->get_f32_array("t.floats", 3, 3), {"key 't.floats'", "got 2 elements", "exactly 3 elements"});
  expect_error(file->get_string_array("t.strings", 4, 9), {"key 't.strings'", "got 3 elements", "4 to 9 elements"});
  expect_error(file->get_string_array("t.ints"), {"key 't.ints'", "got array of i32 [3]", "array of strings"});
  expect_error(file->get_i64_array("t.floats"), {"key 't.floats'", "got array of f32 [2]", "array of integers"});
  expect_error(file->get_i64_array("a.u64"), {"key 'a.u64'", "18446744073709551615 as element 1"});
  expect_error(file->get_i64_array("t.ints", 0, 3, 0, 9), {"key 't.ints'", "-8 as element 1", "from 0 to 9"});
  expect_error(file->get_bool_array("t.floats"), {"key 't.floats'"});
}

TEST(PerLayer, ScalarIsRepeatedAndArrayMustMatch) {
  GgufWriter w;
  w.u32("a.scalar", 5).kv("a.array", MetaType::Array, array_of<int32_t>(MetaType::I32, {1, 2, 3}));
  const Parsed file(w);
  EXPECT_EQ(file->get_per_layer_u64("a.scalar", 2, 1, 9).value(), (std::vector<uint64_t>{5, 5}));
  EXPECT_EQ(file->get_per_layer_u64("a.array", 3, 1, 9).value(), (std::vector<uint64_t>{1, 2, 3}));
  expect_error(file->get_per_layer_u64("a.array", 4, 1, 9), {"key 'a.array'", "got 3 elements", "exactly 4"});
  expect_error(file->get_per_layer_u64("a.array", 3, 2, 9), {"key 'a.array'", "1 as element 0", "from 2 to 9"});
  expect_error(file->get_per_layer_u64("a.array", 3, 1, 2), {"key 'a.array'", "3 as element 2"});
  expect_error(file->get_per_layer_u64("a.scalar", 2, 6, 9), {"key 'a.scalar'", "got 5"});
  EXPECT_EQ(file->get_per_layer_u64("a.scalar", 513, 1, 9).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(file->get_per_layer_u64("a.scalar", 0, 1, 9).status().code(), Code::kInvalidArgument);
}

TEST(KeyError, NamesFileOffsetAndKey) {
  const Parsed file(sample());
  EXPECT_EQ(file->key_error("t.u8", "5", "an even number", "fix it").text(),
            "m.gguf at byte 24: key 't.u8': got 5; allowed an even number; fix it");
  EXPECT_EQ(file->key_error("none", "nothing", "something", "add it").text(),
            "m.gguf: key 'none': got nothing; allowed something; add it");
}

TEST(Describe, ListsTypesAndValues) {
  GgufWriter w = sample();
  w.string("a.text", "line\n\"quoted\" \xc3\xa9");
  const Parsed file(w);
  const auto type = [&](const char* key) { return describe_type(*file->find(key)); };
  const auto value = [&](const char* key, size_t n = 60) { return describe_value(*file->find(key), n); };
  EXPECT_EQ(type("t.strings"), "array of string [3]");
  EXPECT_EQ(type("t.u8"), "u8");
  EXPECT_EQ(value("t.i64"), "-5000000000");
  EXPECT_EQ(value("t.u64"), "18446744073709551615");
  EXPECT_EQ(value("t.f32"), "0.5");
  EXPECT_EQ(value("t.f64"), "0.25");
  EXPECT_EQ(value("t.bool"), "true");
  EXPECT_EQ(value("t.ints"), "[7, -8, 9]");
  EXPECT_EQ(value("t.ints", 4), "[7, ...]");
  EXPECT_EQ(value("t.bools"), "[true, false, true]");
  EXPECT_EQ(value("t.strings"), "[\"a\", \"\", \"a\\xff\\x01z\"]");
  EXPECT_EQ(value("a.text"), "\"line\\x0a\\\"quoted\\\" \\xc3\\xa9\"");
  EXPECT_EQ(value("a.text", 4), "\"line\"...");
}

TEST(Cursor, ChecksBySubtractionAndStaysPutOnFailure) {
  const std::string text = "abcdef";
  Cursor cursor(bytes_of(text));
  uint32_t word = 0;
  ASSERT_TRUE(cursor.read(word));
  EXPECT_EQ(word, 0x64636261U);
  EXPECT_EQ(cursor.offset(), 4U);
  uint32_t untouched = 7;
  EXPECT_FALSE(cursor.read(untouched));
  EXPECT_EQ(untouched, 7U);
  std::span<const std::byte> view;
  EXPECT_FALSE(cursor.take(3, view));
  EXPECT_FALSE(cursor.take(~uint64_t{0}, view));
  EXPECT_EQ(cursor.remaining(), 2U);
  EXPECT_TRUE(cursor.take(2, view));
  EXPECT_TRUE(cursor.take(0, view));
  EXPECT_FALSE(cursor.take(1, view));
}

}  // namespace
}  // namespace tessera
