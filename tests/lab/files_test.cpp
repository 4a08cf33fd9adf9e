#include "lab/files.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lab/lab_fixture.h"
#include "lab/run_command.h"

namespace tessera::lab {
namespace {

size_t files_in(const std::filesystem::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++count;
  }
  return count;
}

TEST(LabFiles, WritesTheWholeFile) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "a.json";
  ASSERT_TRUE(write_file_atomically(path, "one").ok());
  ASSERT_TRUE(write_file_atomically(path, std::string(1000000, 'x')).ok());
  EXPECT_EQ(read_file(path, 2000000).value(), std::string(1000000, 'x'));
  EXPECT_FALSE(read_file(path, 10).ok());
  EXPECT_EQ(files_in(folder.path()), 1U);
}

// A full disk, as a limit of the file size shows it: the write stops in the middle.
TEST(LabFiles, AFullDiskLeavesTheOldFile) {
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

TEST(LabFiles, AFolderThatIsNotThereIsAnError) {
  const TemporaryFolder folder;
  EXPECT_FALSE(write_file_atomically(folder.path() / "no" / "a.json", "x").ok());
  EXPECT_FALSE(read_file(folder.path(), 100).ok());
  EXPECT_FALSE(sha256_of_file(folder.path()).ok());
  EXPECT_FALSE(sha256_of_file("/dev/zero").ok());
}

TEST(LabFiles, DigestsAFile) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "abc") << "abc";
  EXPECT_EQ(sha256_of_file(folder.path() / "abc").value(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(LabFiles, ALockHoldsOthersOutUntilItIsDropped) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "lock";
  {
    const Result<FileLock> first = FileLock::acquire(path, FileLock::Wait::kNever);
    ASSERT_TRUE(first.ok() && first.value().held());
    EXPECT_FALSE(FileLock::acquire(path, FileLock::Wait::kNever).value().held());
  }
  EXPECT_TRUE(FileLock::acquire(path, FileLock::Wait::kNever).value().held());
}

TEST(LabFiles, ALockIsNotInheritedByCommands) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "lock";
  {
    const Result<FileLock> first = FileLock::acquire(path, FileLock::Wait::kNever);
    ASSERT_TRUE(first.value().held());
    CommandOptions options;
    options.folder = folder.path();
    ASSERT_TRUE(run_command("(setsid sleep 5 >/dev/null 2>&1 </dev/null &)", options).ok());
  }
  EXPECT_TRUE(FileLock::acquire(path, FileLock::Wait::kNever).value().held());
}

TEST(RunCommand, GivesOutputExitCodeAndStderr) {
  std::string seen;
  CommandOptions options;
  options.environment = {{"TESSERA_LAB_WORD", "tile"}};
  options.on_stderr = [&](std::string_view text) { seen += text; };
  const CommandResult r = run_command("echo \"$TESSERA_LAB_WORD\"; echo bad >&2; exit 2", options).value();
  EXPECT_EQ(r.output, "tile\n");
  EXPECT_EQ(r.stderr_tail, "bad\n");
  EXPECT_EQ(seen, "bad\n");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_FALSE(r.signalled);
}

TEST(RunCommand, LosesNothingOfALargeOutputAndCutsAtItsLimit) {
  CommandOptions options;
  const CommandResult whole = run_command("head -c 3000000 /dev/zero", options).value();
  EXPECT_EQ(whole.output.size(), 3000000U);
  EXPECT_FALSE(whole.output_cut);
  options.most_output = 1000;
  const CommandResult cut = run_command("head -c 3000000 /dev/zero", options).value();
  EXPECT_EQ(cut.output.size(), 1000U);
  EXPECT_TRUE(cut.output_cut);
  EXPECT_EQ(cut.exit_code, 0);
}

TEST(RunCommand, EndsWhatRunsTooLongOrIsCancelled) {
  CommandOptions options;
  options.limit_seconds = 0.2;
  const CommandResult late = run_command("sleep 60; echo x", options).value();
  EXPECT_TRUE(late.past_limit);
  EXPECT_TRUE(late.signalled);
  EXPECT_LT(late.seconds, 30);
  const std::atomic<bool> cancel = true;
  options.limit_seconds = 60;
  options.cancel = &cancel;
  EXPECT_TRUE(run_command("sleep 60", options).value().cancelled);
}

TEST(RunCommand, EndsWhatTheCommandLeftRunning) {
  const TemporaryFolder folder;
  CommandOptions options;
  options.folder = folder.path();
  const CommandResult r = run_command("sleep 60 & echo $!", options).value();
  EXPECT_LT(r.seconds, 30);
  // Ended, or a zombie that init has not taken yet.
  const std::string state = "ps -o stat= -p " + r.output.substr(0, r.output.find('\n')) + " | grep -v '^Z'";
  EXPECT_EQ(run_command(state, options).value().output, "");
}

TEST(RunCommand, SaysWhichSignalEndedIt) {
  const CommandResult r = run_command("kill -SEGV $$", CommandOptions{}).value();
  EXPECT_TRUE(r.signalled);
  EXPECT_EQ(r.exit_code, 128 + SIGSEGV);
}

TEST(RunCommand, AFolderThatIsNotThereIsAnError) {
  CommandOptions options;
  options.folder = "/no/such/folder";
  EXPECT_FALSE(run_command("true", options).ok());
}

}  // namespace
}  // namespace tessera::lab
