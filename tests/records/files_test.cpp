#include "records/files.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "records/temporary_folder.h"

namespace tessera {
namespace {

size_t files_in(const std::filesystem::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++count;
  }
  return count;
}

TEST(Files, WritesTheWholeFile) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "a.json";
  ASSERT_TRUE(write_file_atomically(path, "one").ok());
  ASSERT_TRUE(write_file_atomically(path, std::string(1000000, 'x')).ok());
  EXPECT_EQ(read_file(path, 2000000).value(), std::string(1000000, 'x'));
  EXPECT_FALSE(read_file(path, 10).ok());
  EXPECT_EQ(files_in(folder.path()), 1U);
}

// A full disk, as a limit of the file size shows it: the write stops in the middle.
TEST(Files, AFullDiskLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "a.json";
  ASSERT_TRUE(write_file_atomically(path, "old").ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = write_file_atomically(path, std::string(100000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.text().find("nothing was changed"), std::string::npos);
  EXPECT_EQ(read_file(path, 100).value(), "old");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(Files, WhatIsNotCommittedLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "rows";
  ASSERT_TRUE(write_file_atomically(path, "old").ok());
  {
    AtomicFile file = AtomicFile::create(path).value();
    ASSERT_TRUE(file.append(std::as_bytes(std::span("ab", 2))).ok());
    AtomicFile moved = std::move(file);
    ASSERT_TRUE(moved.append(std::as_bytes(std::span("cd", 2))).ok());
    EXPECT_EQ(read_file(path, 100).value(), "old");
  }
  EXPECT_EQ(files_in(folder.path()), 1U);
  AtomicFile file = AtomicFile::create(path).value();
  ASSERT_TRUE(file.append(std::as_bytes(std::span("ab", 2))).ok());
  ASSERT_TRUE(file.append(std::as_bytes(std::span("cd", 2))).ok());
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(read_file(path, 100).value(), "abcd");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(Files, AFolderThatIsNotThereIsAnError) {
  const TemporaryFolder folder;
  EXPECT_FALSE(write_file_atomically(folder.path() / "no" / "a.json", "x").ok());
  EXPECT_FALSE(read_file(folder.path(), 100).ok());
  EXPECT_FALSE(sha256_of_file(folder.path()).ok());
  EXPECT_FALSE(sha256_of_file("/dev/zero").ok());
}

TEST(Files, DigestsAFile) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "abc") << "abc";
  EXPECT_EQ(sha256_of_file(folder.path() / "abc").value(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Files, ALockHoldsOthersOutUntilItIsDropped) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "lock";
  {
    const Result<FileLock> first = FileLock::acquire(path, FileLock::Wait::kNever);
    ASSERT_TRUE(first.ok() && first.value().held());
    EXPECT_FALSE(FileLock::acquire(path, FileLock::Wait::kNever).value().held());
  }
  EXPECT_TRUE(FileLock::acquire(path, FileLock::Wait::kNever).value().held());
}

}  // namespace
}  // namespace tessera
