#include "engine/gguf/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "engine/gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "gguf/temp_dir.h"
#include "gguf/walk.h"

namespace tessera {
namespace {

using testing::byte_sum;
using testing::TempDir;

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const TempDir dir;
  const Result<MappedFile> map = MappedFile::open(dir.write("a", "content"));
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(byte_sum(map.value().bytes()), byte_sum(std::string_view("content")));
  EXPECT_EQ(map.value().bytes().size(), 7U);
}

TEST(MappedFile, EmptyFileIsAnEmptySpan) {
  const TempDir dir;
  const Result<MappedFile> map = MappedFile::open(dir.write("a", ""));
  ASSERT_TRUE(map.ok());
  EXPECT_TRUE(map.value().bytes().empty());
}

TEST(MappedFile, WhatIsNoRegularFileIsAnIoError) {
  const TempDir dir;
  const std::string pipe = dir.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {dir.file("missing"), dir.file(""), pipe, std::string("/dev/null")}) {
    const Result<MappedFile> map = MappedFile::open(path);
    ASSERT_FALSE(map.ok()) << path;
    EXPECT_EQ(map.status().code(), Code::kIo);
    EXPECT_EQ(map.status().text().find(path), 0U) << map.status().text();
  }
}

TEST(MappedFile, MoveTransfersTheMapping) {
  const TempDir dir;
  MappedFile a = MappedFile::open(dir.write("a", "content")).value();
  const std::byte* data = a.bytes().data();
  MappedFile b = std::move(a);
  EXPECT_EQ(b.bytes().data(), data);
  MappedFile c;
  c = std::move(b);
  EXPECT_EQ(c.bytes().data(), data);
}

TEST(MappedFile, DroppedPagesLeaveMemoryAndComeBack) {
  const TempDir dir;
  constexpr size_t kBytes = size_t{32} << 20;
  const MappedFile map = MappedFile::open(dir.write("a", std::string(kBytes, '\1'))).value();
  EXPECT_EQ(byte_sum(map.bytes()), kBytes);
  const uint64_t before = resident_bytes();
  // An unaligned extent keeps only its two partial pages.
  map.advise_dontneed(100, kBytes - 200);
  const uint64_t after = resident_bytes();
  EXPECT_LT(after + kBytes * 3 / 4, before);
  EXPECT_EQ(byte_sum(map.bytes()), kBytes);
}

TEST(MappedFile, AdviceOutsideTheFileIsClipped) {
  const TempDir dir;
  const MappedFile map = MappedFile::open(dir.write("a", std::string(10000, '\1'))).value();
  map.advise_dontneed(0, ~uint64_t{0});
  map.advise_dontneed(~uint64_t{0}, ~uint64_t{0});
  map.advise_dontneed(10000, 1);
  map.advise_dontneed(5000, 10);
  EXPECT_EQ(byte_sum(map.bytes()), 10000U);
  MappedFile{}.advise_dontneed(0, 100);
}

TEST(GgufFileOpen, ReadsAFileAndNamesItsPathInErrors) {
  const TempDir dir;
  const std::string path = dir.write("good.gguf", testing::sample().build());
  const Result<GgufFile> good = GgufFile::open(path);
  ASSERT_TRUE(good.ok()) << good.status().text();
  EXPECT_EQ(good.value().get_string("t.string").value(), "hello");
  EXPECT_EQ(good.value().name(), path);
  const std::string bad_path = dir.write("bad.gguf", "not a model");
  const Result<GgufFile> bad = GgufFile::open(bad_path);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().text().find(bad_path + " at byte 0: magic"), 0U) << bad.status().text();
  EXPECT_EQ(GgufFile::open(dir.write("empty.gguf", "")).status().code(), Code::kBadFile);
  EXPECT_EQ(GgufFile::open(dir.file("missing.gguf")).status().code(), Code::kIo);
}

}  // namespace
}  // namespace tessera
