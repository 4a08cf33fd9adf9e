#include "lab/run_command.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <string>
#include <vector>

#include "records/files.h"
#include "records/temporary_folder.h"

namespace tessera::lab {
namespace {

TEST(RunCommand, DoesNotInheritALock) {
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

TEST(RunCommand, SaysThatASilentCommandRuns) {
  std::vector<double> silent;
  CommandOptions options;
  options.pace_seconds = 0.3;
  options.on_silence = [&](double seconds) { silent.push_back(seconds); };
  ASSERT_TRUE(run_command("true", options).ok());
  EXPECT_TRUE(silent.empty());
  const double seconds = run_command("sleep 1", options).value().seconds;
  ASSERT_FALSE(silent.empty());
  EXPECT_GE(silent.front(), 0.3);
  EXPECT_LE(silent.back(), seconds);
  silent.clear();
  options.pace_seconds = 1.5;
  ASSERT_TRUE(run_command("for i in $(seq 20); do echo x >&2; sleep 0.1; done", options).ok());
  EXPECT_TRUE(silent.empty());
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
