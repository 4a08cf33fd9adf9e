// Every malformed header, key-value pair and tensor description that the reader must refuse: one named case each, with
// the error code and the words its sentence must contain. Offsets are those of the layout: version at byte 4, tensor
// count at 8, key count at 16, first pair or first tensor description at 24.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <ostream>

#include "engine/gguf/gguf.h"
#include "gguf/gguf_writer.h"

namespace tessera {
namespace {

using testing::array;
using testing::bytes_of;
using testing::GgufWriter;
using testing::le;
using testing::str;
using testing::TensorSpec;

struct Hostile {
  const char* name;
  std::function<std::string()> make;
  Code code;
  std::vector<std::string> words;  // all of them must occur in the sentence
};

void PrintTo(const Hostile& h, std::ostream* out) {  // NOLINT(readability-identifier-naming): GoogleTest calls it
  *out << h.name;
}

class HostileFile : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileFile, IsRefusedWithASentenceThatNamesThePlace) {
  const Hostile& hostile = GetParam();
  const std::string file = hostile.make();
  const Result<GgufFile> result = GgufFile::parse(bytes_of(file), "m.gguf");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), hostile.code) << result.status().text();
  EXPECT_EQ(result.status().text().substr(0, 6), "m.gguf") << result.status().text();
  EXPECT_NE(result.status().text().find("; allowed "), std::string::npos) << result.status().text();
  for (const std::string& word : hostile.words) {
    EXPECT_NE(result.status().text().find(word), std::string::npos) << word << " not in: " << result.status().text();
  }
}

std::string instance_name(const ::testing::TestParamInfo<Hostile>& param) {
  return param.param.name;
}

// --- header ---------------------------------------------------------------------------------------------------------

std::string with_version(uint32_t version) {
  GgufWriter w;
  w.version = version;
  return w.build();
}

std::string with_counts(int64_t n_tensors, int64_t n_kv) {
  GgufWriter w;
  w.n_tensors = n_tensors;
  w.n_kv = n_kv;
  return w.build();
}

std::string wrong_magic() {
  GgufWriter w;
  w.magic = "GGJT";
  return w.build();
}

INSTANTIATE_TEST_SUITE_P(
    Header, HostileFile,
    ::testing::Values(
        Hostile{"EmptyFile", [] { return std::string(); }, Code::kBadFile, {"at byte 0", "magic", "truncated"}},
        Hostile{"ThreeBytes", [] { return std::string("GGU"); }, Code::kBadFile, {"at byte 0", "magic", "3 bytes"}},
        Hostile{"MagicOnly", [] { return std::string("GGUF"); }, Code::kBadFile, {"at byte 4", "version"}},
        Hostile{"TwentyThreeBytes",
                [] { return GgufWriter{}.build().substr(0, 23); },
                Code::kBadFile,
                {"at byte 16", "key count", "7 bytes", "at least 8"}},
        Hostile{"WrongMagic", wrong_magic, Code::kBadFile, {"at byte 0", "magic", "\"GGJT\""}},
        Hostile{
            "Version0", [] { return with_version(0); }, Code::kBadFile, {"at byte 4", "version", "got 0", "2 or 3"}},
        Hostile{"Version1", [] { return with_version(1); }, Code::kUnsupported, {"at byte 4", "version", "got 1"}},
        Hostile{"Version4", [] { return with_version(4); }, Code::kUnsupported, {"at byte 4", "version", "got 4"}},
        Hostile{"VersionBigEndian",
                [] { return with_version(0x03000000); },
                Code::kUnsupported,
                {"at byte 4", "version", "0x03000000", "big-endian"}},
        Hostile{"KeyCountMinusOne",
                [] { return with_counts(0, -1); },
                Code::kBadFile,
                {"at byte 16", "key count", "got -1"}},
        Hostile{"KeyCountHuge",
                [] { return with_counts(0, int64_t{1} << 62); },
                Code::kBadFile,
                {"at byte 16", "key count", "4611686018427387904"}},
        Hostile{"KeyCountBeyondTheBytes",
                [] { return with_counts(0, 1); },
                Code::kBadFile,
                {"at byte 16", "key count", "got 1;", "at most 0"}},
        Hostile{"TensorCountMinusOne",
                [] { return with_counts(-1, 0); },
                Code::kBadFile,
                {"at byte 8", "tensor count", "got -1"}},
        Hostile{"TensorCountHuge",
                [] { return with_counts(int64_t{1} << 62, 0); },
                Code::kBadFile,
                {"at byte 8", "tensor count", "4611686018427387904"}},
        Hostile{"TensorCountBeyondTheBytes",
                [] { return with_counts(1, 0); },
                Code::kBadFile,
                {"at byte 8", "tensor count", "got 1;", "at most 0"}}),
    instance_name);

// --- key-value pairs ------------------------------------------------------------------------------------------------

// A file whose only pair is the given bytes, followed by room so that counts pass.
std::string one_pair(const std::string& pair) {
  GgufWriter w;
  w.pairs = {pair};
  return w.build();
}

std::string one_kv(std::string_view key, MetaType type, std::string_view value) {
  GgufWriter w;
  w.kv(key, type, value);
  return w.build();
}

std::string duplicate_key() {
  GgufWriter w;
  w.u32("a.b", 1).u32("a.c", 2).string("a.b", "x");
  return w.build();
}

std::string two_duplicate_keys() {
  GgufWriter w;
  w.u32("a.b", 1).u32("a.c", 2).u32("a.b", 3).u32("a.c", 4);
  return w.build();
}

std::string nested_arrays(int depth) {
  std::string value;
  for (int i = 0; i < depth; ++i) value += le<uint32_t>(9) + le<uint64_t>(1);
  return one_kv("a.deep", MetaType::Array, value + le<uint32_t>(0) + le<uint64_t>(0));
}

const uint64_t kHuge = uint64_t{1} << 63;

INSTANTIATE_TEST_SUITE_P(
    KeyValue, HostileFile,
    ::testing::Values(
        Hostile{"KeyLengthHuge",
                [] { return one_pair(le(kHuge) + std::string(20, 'k')); },
                Code::kBadFile,
                {"at byte 24", "length of key 1 of 1", "9223372036854775808 bytes", "at most 65535"}},
        Hostile{"KeyLengthAboveTheCap",
                [] { return one_kv(std::string(65536, 'k'), MetaType::U8, "\1"); },
                Code::kBadFile,
                {"at byte 24", "key 1 of 1", "65536 bytes"}},
        Hostile{"KeyLongerThanTheFile",
                [] { return one_pair(le<uint64_t>(30) + std::string(20, 'k')); },
                Code::kBadFile,
                {"at byte 32", "key 1 of 1", "20 bytes to the end", "at least 30"}},
        Hostile{"EmptyKey",
                [] { return one_kv("", MetaType::U32, le<uint32_t>(1)); },
                Code::kBadFile,
                {"at byte 24", "key 1 of 1", "got \"\""}},
        Hostile{"KeyWithControlBytes",
                [] { return one_kv(std::string("a\0b\n", 4), MetaType::U8, "\1"); },
                Code::kBadFile,
                {"at byte 24", "key 1 of 1", "a\\x00b\\x0a"}},
        Hostile{"KeyWithDel", [] { return one_kv("a\x7f", MetaType::U8, "\1"); }, Code::kBadFile, {"a\\x7f"}},
        Hostile{"KeyWithNonAsciiBytes",
                [] { return one_kv("a\xc3\xa9", MetaType::U8, "\1"); },
                Code::kBadFile,
                {"a\\xc3\\xa9"}},
        Hostile{"KeyWithSpace", [] { return one_kv("a b", MetaType::U8, "\1"); }, Code::kBadFile, {"\"a b\""}},
        Hostile{"DuplicateKey",
                duplicate_key,
                Code::kBadFile,
                {"at byte 62", "key 'a.b'", "second occurrence", "first is at byte 24"}},
        Hostile{"TheFirstOfTwoDuplicateKeysIsNamed",
                two_duplicate_keys,
                Code::kBadFile,
                {"at byte 62", "key 'a.b'", "first is at byte 24"}},
        Hostile{"Type13",
                [] { return one_kv("a.key", MetaType{13}, le<uint64_t>(0)); },
                Code::kBadFile,
                {"at byte 37", "key 'a.key'", "got 13", "0 to 12"}},
        Hostile{"TypeMinusOne",
                [] { return one_kv("a.key", MetaType{0xffffffff}, le<uint64_t>(0)); },
                Code::kBadFile,
                {"at byte 37", "key 'a.key'", "4294967295"}},
        Hostile{"ArrayOfArrays",
                [] { return nested_arrays(1); },
                Code::kBadFile,
                {"at byte 42", "key 'a.deep'", "got array", "do not nest"}},
        Hostile{"ArraysNested100000Deep",
                [] { return nested_arrays(100000); },
                Code::kBadFile,
                {"key 'a.deep'", "got array", "do not nest"}},
        Hostile{"ArrayElementType13",
                [] { return one_kv("a.k", MetaType::Array, array(MetaType{13}, 0, "")); },
                Code::kBadFile,
                {"at byte 39", "element type", "key 'a.k'", "got 13"}},
        Hostile{"StringArrayCountHuge",
                [] { return one_kv("a.k", MetaType::Array, array(MetaType::String, uint64_t{1} << 61, str("x"))); },
                Code::kBadFile,
                {"at byte 43", "element count", "key 'a.k'", "2305843009213693952"}},
        Hostile{"ArrayCountTimesSizeWraps",
                [] { return one_kv("a.k", MetaType::Array, array(MetaType::U64, uint64_t{1} << 61, le(kHuge))); },
                Code::kBadFile,
                {"at byte 43", "element count", "key 'a.k'"}},
        Hostile{"StringArrayCountBeyondTheBytes",
                [] { return one_kv("a.k", MetaType::Array, array(MetaType::String, 1000, str("x"))); },
                Code::kBadFile,
                {"at byte 51", "key 'a.k'", "1000 elements", "at least 8000 bytes"}},
        Hostile{"FloatArrayCountBeyondTheBytes",
                [] { return one_kv("a.k", MetaType::Array, array(MetaType::F32, 3, le(1.0F))); },
                Code::kBadFile,
                {"at byte 51", "key 'a.k'", "3 elements", "4 bytes to the end", "at least 12 bytes"}},
        Hostile{"StringElementLongerThanTheFile",
                [] {
                  return one_kv("a.k", MetaType::Array,
                                array(MetaType::String, 2, str("abc") + le<uint64_t>(9) + "abc"));
                },
                Code::kBadFile,
                {"at byte 70", "element 1", "key 'a.k'", "at least 9"}},
        Hostile{"StringElementLengthHuge",
                [] { return one_kv("a.k", MetaType::Array, array(MetaType::String, 1, le(kHuge))); },
                Code::kBadFile,
                {"at byte 51", "element 0", "key 'a.k'", "9223372036854775808"}},
        Hostile{"StringElementOf2GiB",
                [] { return one_kv("a.k", MetaType::Array, array(MetaType::String, 1, le(uint64_t{1} << 31))); },
                Code::kBadFile,
                {"at byte 51", "element 0", "at most 1073741824 bytes"}},
        Hostile{"StringLengthBeyondTheFile",
                [] { return one_kv("a.k", MetaType::String, le<uint64_t>(100) + "abc"); },
                Code::kBadFile,
                {"at byte 47", "key 'a.k'", "3 bytes to the end", "at least 100"}},
        Hostile{"StringLengthMinusOne",
                [] { return one_kv("a.k", MetaType::String, le(~uint64_t{0})); },
                Code::kBadFile,
                {"at byte 39", "key 'a.k'", "18446744073709551615"}},
        Hostile{"Bool2",
                [] { return one_kv("a.flag", MetaType::Bool, "\2"); },
                Code::kBadFile,
                {"at byte 42", "key 'a.flag'", "bool 2", "0 or 1"}},
        Hostile{"BoolArrayWith255",
                [] { return one_kv("a.f", MetaType::Array, array(MetaType::Bool, 3, "\1\1\xff")); },
                Code::kBadFile,
                {"at byte 53", "key 'a.f'", "bool 255"}}),
    instance_name);

std::string with_alignment(MetaType type, std::string_view value) {
  return one_kv("general.alignment", type, value);
}

INSTANTIATE_TEST_SUITE_P(Alignment, HostileFile,
                         ::testing::Values(Hostile{"Zero",
                                                   [] { return with_alignment(MetaType::U32, le<uint32_t>(0)); },
                                                   Code::kBadFile,
                                                   {"at byte 24", "'general.alignment'", "got 0"}},
                                           Hostile{"Three",
                                                   [] { return with_alignment(MetaType::U32, le<uint32_t>(3)); },
                                                   Code::kBadFile,
                                                   {"at byte 24", "'general.alignment'", "got 3", "power of two"}},
                                           Hostile{"Four",
                                                   [] { return with_alignment(MetaType::U32, le<uint32_t>(4)); },
                                                   Code::kBadFile,
                                                   {"'general.alignment'", "got 4", "from 8"}},
                                           Hostile{"TwentyFour",
                                                   [] { return with_alignment(MetaType::U32, le<uint32_t>(24)); },
                                                   Code::kBadFile,
                                                   {"'general.alignment'", "got 24", "power of two"}},
                                           Hostile{"TwoTo17",
                                                   [] { return with_alignment(MetaType::U32, le<uint32_t>(1U << 17)); },
                                                   Code::kBadFile,
                                                   {"'general.alignment'", "got 131072", "to 65536"}},
                                           Hostile{"TwoTo31",
                                                   [] { return with_alignment(MetaType::U32, le<uint32_t>(1U << 31)); },
                                                   Code::kBadFile,
                                                   {"'general.alignment'", "got 2147483648", "to 65536"}},
                                           Hostile{"TwoTo63AsU64",
                                                   [] { return with_alignment(MetaType::U64, le(kHuge)); },
                                                   Code::kBadFile,
                                                   {"'general.alignment'", "got u64", "u32"}},
                                           Hostile{"AsI32",
                                                   [] { return with_alignment(MetaType::I32, le<int32_t>(32)); },
                                                   Code::kBadFile,
                                                   {"'general.alignment'", "got i32", "u32"}},
                                           Hostile{"AsString",
                                                   [] { return with_alignment(MetaType::String, str("32")); },
                                                   Code::kBadFile,
                                                   {"'general.alignment'", "got string", "u32"}}),
                         instance_name);

// --- tensor descriptions --------------------------------------------------------------------------------------------

std::string one_tensor(TensorSpec spec) {
  GgufWriter w;
  w.tensor(std::move(spec));
  return w.build();
}

// A tensor "w" of 4 floats with one field changed.
TensorSpec floats4() {
  return {.name = "w", .dims = {4}, .type = 0, .data = std::string(16, '\0')};
}

std::string with_dims(std::vector<int64_t> dims, uint32_t type = 0) {
  TensorSpec spec = floats4();
  spec.dims = std::move(dims);
  spec.type = type;
  return one_tensor(spec);
}

std::string with_n_dims(uint32_t n_dims) {
  TensorSpec spec = floats4();
  spec.n_dims = n_dims;
  return one_tensor(spec);
}

std::string with_type(uint32_t type) {
  return with_dims({256}, type);
}

std::string with_name(std::string name) {
  TensorSpec spec = floats4();
  spec.name = std::move(name);
  return one_tensor(spec);
}

// Three tensors of 16 bytes ("t0", "t1", "t2") with the given offsets; packed would be 0, 32, 64.
std::string with_offsets(uint64_t o0, uint64_t o1, uint64_t o2) {
  GgufWriter w;
  const uint64_t offsets[] = {o0, o1, o2};
  for (size_t i = 0; i < 3; ++i) {
    TensorSpec spec = floats4();
    spec.name = {'t', static_cast<char>('0' + i)};
    spec.offset = offsets[i];
    w.tensor(spec);
  }
  return w.build();
}

std::string duplicate_tensor() {
  GgufWriter w;
  w.tensor(floats4()).tensor(floats4());
  return w.build();
}

std::string huge_tensors(int count) {
  GgufWriter w;
  for (int i = 0; i < count; ++i) {
    TensorSpec spec = floats4();
    spec.name += std::to_string(i);
    spec.dims = {int64_t{1} << 61};
    w.tensor(spec);
  }
  return w.build();
}

std::string no_data_section() {
  const std::string file = one_tensor(floats4());
  return file.substr(0, 24 + 8 + 1 + 4 + 8 + 4 + 8);
}

constexpr int64_t kMaxI64 = std::numeric_limits<int64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    TensorShape, HostileFile,
    ::testing::Values(
        Hostile{"NoDims",
                [] { return with_n_dims(0); },
                Code::kBadFile,
                {"at byte 33", "dimension count of tensor 'w'", "got 0", "1 to 4"}},
        Hostile{"FiveDims", [] { return with_n_dims(5); }, Code::kBadFile, {"at byte 33", "tensor 'w'", "got 5"}},
        Hostile{"DimCountMinusOne",
                [] { return with_n_dims(0xffffffff); },
                Code::kBadFile,
                {"at byte 33", "tensor 'w'", "4294967295"}},
        Hostile{"ZeroFirstDim",
                [] { return with_dims({0}); },
                Code::kBadFile,
                {"at byte 37", "dimension 0 of tensor 'w'", "got 0", "at least 1"}},
        Hostile{"ZeroLaterDim",
                [] {
                  return with_dims({32, 0}, 8);
                },
                Code::kBadFile,
                {"at byte 45", "dimension 1 of tensor 'w'", "got 0"}},
        Hostile{"NegativeDim",
                [] { return with_dims({-4}); },
                Code::kBadFile,
                {"at byte 37", "dimension 0 of tensor 'w'", "got -4"}},
        Hostile{"TwoNegativeDimsWithAPositiveProduct",
                [] {
                  return with_dims({-2, -2});
                },
                Code::kBadFile,
                {"dimension 0 of tensor 'w'", "got -2"}},
        // (2^42 + 1) * 2^22 * 4 wraps 2^64 to 2^24: small enough to look valid.
        Hostile{"ProductWraps",
                [] {
                  return with_dims({(int64_t{1} << 42) + 1, int64_t{1} << 22, 4});
                },
                Code::kBadFile,
                {"at byte 45", "dimension 1 of tensor 'w'", "2^63 - 1"}},
        Hostile{"ProductWrapsToZero",
                [] {
                  return with_dims({int64_t{1} << 32, int64_t{1} << 32});
                },
                Code::kBadFile,
                {"at byte 45", "dimension 1 of tensor 'w'", "2^63 - 1"}},
        Hostile{"ByteSizeWraps",
                [] { return with_dims({int64_t{1} << 62}); },
                Code::kBadFile,
                {"at byte 24", "size of tensor 'w'", "4611686018427387904 elements of F32"}},
        Hostile{"LargestDim", [] { return with_dims({kMaxI64}); }, Code::kBadFile, {"size of tensor 'w'"}},
        // One size alone is 2^63 bytes; padding it or adding the second one would wrap.
        Hostile{"SumOfSizesWraps", [] { return huge_tensors(2); }, Code::kBadFile, {"size of tensor 'w0'"}},
        // 2^64 - 4 bytes: padding them to the alignment wraps to 0.
        Hostile{"PaddedSizeWraps",
                [] { return with_dims({(int64_t{1} << 62) - 1}); },
                Code::kBadFile,
                {"size of tensor 'w'", "4611686018427387903 elements of F32"}},
        Hostile{"PartialBlockQ4_0",
                [] { return with_dims({33}, 2); },
                Code::kBadFile,
                {"at byte 24", "dimension 0 of tensor 'w'", "got 33", "multiple of 32 for Q4_0"}},
        Hostile{"PartialBlockQ4_K",
                [] {
                  return with_dims({288, 8}, 12);
                },
                Code::kBadFile,
                {"dimension 0 of tensor 'w'", "got 288", "multiple of 256 for Q4_K"}},
        Hostile{"PartialBlockQ5_K",
                [] {
                  return with_dims({128, 2}, 13);
                },
                Code::kBadFile,
                {"dimension 0 of tensor 'w'", "multiple of 256 for Q5_K"}},
        Hostile{"PartialBlockQ6_K",
                [] { return with_dims({576}, 14); },
                Code::kBadFile,
                {"dimension 0 of tensor 'w'", "multiple of 256 for Q6_K"}},
        Hostile{"ShapeLargerThanTheData",
                [] { return with_dims({9}); },
                Code::kBadFile,
                {"at byte 24", "data of tensor 'w'", "36 bytes at data offset 0", "inside the 32 bytes"}},
        Hostile{"ShapeLargerThanTheFile",
                [] {
                  return with_dims({1 << 20, 1 << 10});
                },
                Code::kBadFile,
                {"at byte 24", "size of tensor 'w'", "file of"}}),
    instance_name);

INSTANTIATE_TEST_SUITE_P(
    TensorType, HostileFile,
    ::testing::Values(Hostile{"RemovedId4",
                              [] { return with_type(4); },
                              Code::kUnsupported,
                              {"at byte 45", "type of tensor 'w'", "got 4", "removed"}},
                      Hostile{"RemovedId5", [] { return with_type(5); }, Code::kUnsupported, {"got 5", "removed"}},
                      Hostile{"RemovedId31", [] { return with_type(31); }, Code::kUnsupported, {"got 31", "removed"}},
                      Hostile{"RemovedId33", [] { return with_type(33); }, Code::kUnsupported, {"got 33", "removed"}},
                      Hostile{"RemovedId36", [] { return with_type(36); }, Code::kUnsupported, {"got 36", "removed"}},
                      Hostile{"RemovedId38", [] { return with_type(38); }, Code::kUnsupported, {"got 38", "removed"}},
                      Hostile{"KnownQ2_K",
                              [] { return with_type(10); },
                              Code::kUnsupported,
                              {"at byte 45", "type of tensor 'w'", "got 10 (Q2_K)", "Q4_K"}},
                      Hostile{"KnownQ8_1", [] { return with_type(9); }, Code::kUnsupported, {"9 (Q8_1)"}},
                      Hostile{"KnownI32", [] { return with_type(26); }, Code::kUnsupported, {"26 (I32)"}},
                      Hostile{"KnownIQ1_M", [] { return with_type(29); }, Code::kUnsupported, {"29 (IQ1_M)"}},
                      Hostile{"KnownTQ1_0", [] { return with_type(34); }, Code::kUnsupported, {"34 (TQ1_0)"}},
                      Hostile{"KnownMxfp4", [] { return with_type(39); }, Code::kUnsupported, {"39 (MXFP4)"}},
                      Hostile{"KnownQ2_0", [] { return with_type(42); }, Code::kUnsupported, {"42 (Q2_0)"}},
                      Hostile{"Unknown43",
                              [] { return with_type(43); },
                              Code::kBadFile,
                              {"at byte 45", "type of tensor 'w'", "got 43", "unknown"}},
                      Hostile{"UnknownMinusOne",
                              [] { return with_type(0xffffffff); },
                              Code::kBadFile,
                              {"type of tensor 'w'", "4294967295"}}),
    instance_name);

INSTANTIATE_TEST_SUITE_P(
    TensorName, HostileFile,
    ::testing::Values(
        Hostile{"Empty", [] { return with_name(""); }, Code::kBadFile, {"at byte 24", "name of tensor 1 of 1"}},
        Hostile{"SixtyFourBytes",
                [] { return with_name(std::string(64, 'n')); },
                Code::kBadFile,
                {"at byte 24", "name of tensor 1 of 1", "64 bytes", "at most 63"}},
        Hostile{"LengthHuge",
                [] {
                  std::string file = one_tensor(floats4());
                  file.replace(24, 8, le(kHuge));
                  return file;
                },
                Code::kBadFile,
                {"at byte 24", "name of tensor 1 of 1", "9223372036854775808"}},
        Hostile{"EmbeddedNul",
                [] { return with_name(std::string("w\0x", 3)); },
                Code::kBadFile,
                {"name of tensor 1 of 1", "w\\x00x"}},
        // The second description follows the first: 24 + (8 + 1 + 4 + 8 + 4 + 8).
        Hostile{"Duplicate",
                duplicate_tensor,
                Code::kBadFile,
                {"at byte 57", "tensor 'w'", "second occurrence", "first is at byte 24"}}),
    instance_name);

INSTANTIATE_TEST_SUITE_P(
    TensorOffset, HostileFile,
    ::testing::Values(
        Hostile{"Misaligned",
                [] { return with_offsets(0, 33, 64); },
                Code::kBadFile,
                {"at byte 58", "offset of tensor 't1'", "got 33", "multiple of the alignment 32"}},
        Hostile{"Overlapping",
                [] { return with_offsets(0, 0, 64); },
                Code::kBadFile,
                {"at byte 58", "offset of tensor 't1'", "got 0", "overlaps", "exactly 32"}},
        Hostile{"OutOfOrder",
                [] { return with_offsets(32, 0, 64); },
                Code::kBadFile,
                {"at byte 24", "offset of tensor 't0'", "got 32", "exactly 0"}},
        Hostile{"Gap",
                [] { return with_offsets(0, 64, 64); },
                Code::kBadFile,
                {"offset of tensor 't1'", "got 64", "gap", "exactly 32"}},
        Hostile{"PastTheEnd",
                [] { return with_offsets(0, 32, 96); },
                Code::kBadFile,
                {"at byte 92", "data of tensor 't2'", "16 bytes at data offset 96", "inside the 96 bytes"}},
        Hostile{"Huge",
                [] { return with_offsets(0, 32, ~uint64_t{31}); },
                Code::kBadFile,
                {"data of tensor 't2'", "data offset 18446744073709551584"}},
        // 2^64 - 32 plus 48 bytes wraps to 16.
        Hostile{"WrapsWithTheSize",
                [] {
                  return one_tensor(
                      {.name = "w", .dims = {12}, .type = 0, .data = std::string(48, '\0'), .offset = ~uint64_t{31}});
                },
                Code::kBadFile,
                {"data of tensor 'w'", "48 bytes at data offset 18446744073709551584"}},
        Hostile{"DataSectionMissing", no_data_section, Code::kBadFile, {"at byte 57", "data section", "truncated"}},
        Hostile{"DataCutShort",
                [] {
                  const std::string file = one_tensor(floats4());
                  return file.substr(0, file.size() - 17);
                },
                Code::kBadFile,
                {"data of tensor 'w'", "inside the 15 bytes"}},
        // A tensor count damaged downwards would otherwise shift the data section unnoticed.
        Hostile{"BytesAfterTheData",
                [] { return one_tensor(floats4()) + std::string(1, 'x'); },
                Code::kBadFile,
                {"end of the tensor data", "17 bytes after it", "at most 16 bytes of padding"}}),
    instance_name);

// --- things a table cannot say --------------------------------------------------------------------------------------

TEST(HostileTime, AMillionKeysWithOneDuplicateAreRefusedQuickly) {
  GgufWriter w;
  for (int i = 0; i < 1000000; ++i) w.pairs.push_back(str(std::to_string(i)) + le<uint32_t>(0) + "\1");
  w.pairs.push_back(str("4711") + le<uint32_t>(0) + "\1");
  const std::string file = w.build();
  const auto start = std::chrono::steady_clock::now();
  const Result<GgufFile> result = GgufFile::parse(bytes_of(file), "m.gguf");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().text().find("key '4711'"), std::string::npos) << result.status().text();
  // About 0.6 s; comparing all pairs would take hours.
  EXPECT_LT(seconds.count(), 60.0);
}

TEST(HostileTime, MoreKeysThanTheCapAreRefused) {
  GgufWriter w;
  w.n_kv = static_cast<int64_t>(kMaxMetaEntries) + 1;
  const Result<GgufFile> result = GgufFile::parse(bytes_of(w.build()), "m.gguf");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().text().find("0 to 1048576"), std::string::npos) << result.status().text();
}

TEST(AllowGaps, PassesGapsAndOrdersButNeverOverlaps) {
  const ParseOptions gaps{.allow_gaps = true};
  EXPECT_TRUE(GgufFile::parse(bytes_of(with_offsets(32, 0, 64)), "m.gguf", gaps).ok());
  EXPECT_TRUE(GgufFile::parse(bytes_of(one_tensor(floats4()) + "tail"), "m.gguf", gaps).ok());
  const Result<GgufFile> overlap = GgufFile::parse(bytes_of(with_offsets(64, 0, 64)), "m.gguf", gaps);
  ASSERT_FALSE(overlap.ok());
  EXPECT_NE(overlap.status().text().find("overlap tensor 't"), std::string::npos) << overlap.status().text();
  // Partial overlap: 48 bytes from offset 0 reach over the tensor at 32.
  GgufWriter w;
  w.tensor({.name = "a", .dims = {12}, .type = 0, .data = std::string(48, '\0'), .offset = 0});
  w.tensor({.name = "b", .dims = {4}, .type = 0, .data = std::string(16, '\0'), .offset = 32});
  EXPECT_FALSE(GgufFile::parse(bytes_of(w.build()), "m.gguf", gaps).ok());
}

}  // namespace
}  // namespace tessera
