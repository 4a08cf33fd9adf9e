// Processes that die in the middle, and processes that work at once.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lab/lab_fixture.h"

namespace tessera::lab {
namespace {

class LabCrash : public LabTest {
 protected:
  // A process of its own that does `work` and ends with its result, without the destructors of this test.
  static pid_t start(const std::function<bool()>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::_exit(work() ? 0 : 1);
    }
    return child;
  }

  static int wait_for(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  void wait_until_there(const char* file) const {
    for (int i = 0; i < 1000 && !std::filesystem::exists(root() / file); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(std::filesystem::exists(root() / file));
  }
};

TEST_F(LabCrash, AnAttemptThatIsKilledStaysVisibleAndCounts) {
  const std::string name = open();
  set_script(kIdentity, "touch started; sleep 3");
  const pid_t child = start([&] { return lab().attempt(name, "killed in the middle", GateWatch{}).ok(); });
  wait_until_there("started");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(WIFSIGNALED(wait_for(child)));

  // What was written before the crash is whole and says that an attempt runs.
  Experiment e = lab().load(name).value();
  EXPECT_EQ(e.state(), "running");
  EXPECT_EQ(e.attempts.back().change, "killed in the middle");

  // The next attempt finds it, writes it down as interrupted, and is the last one.
  set_gate(kIdentity, Verdict::kFail);
  attempt(name);
  e = lab().load(name).value();
  ASSERT_EQ(e.attempts.size(), 2U);
  EXPECT_EQ(e.attempts[0].outcome, Outcome::kInterrupted);
  EXPECT_EQ(e.attempts[1].outcome, Outcome::kFailed);
  EXPECT_FALSE(lab().attempt(name, "third", GateWatch{}).ok());
}

TEST_F(LabCrash, GatesThatFinishedBeforeTheCrashKeepTheirResults) {
  const std::string name = open();
  set_script(kPerf, "touch timing; sleep 3");
  const pid_t child = start([&] { return lab().attempt(name, "x", GateWatch{}).ok(); });
  wait_until_there("timing");
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  wait_for(child);
  const Experiment e = lab().load(name).value();
  ASSERT_EQ(e.attempts.back().runs.size(), 1U);
  EXPECT_EQ(e.attempts.back().runs[0].verdict, Verdict::kPass);
}

// Killed at any moment of many writes, the record is always a whole one.
TEST_F(LabCrash, ARecordIsNeverHalf) {
  const std::string name = open();
  size_t notes = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = start([&] {
      for (int i = 0; i < 1000; ++i) {
        if (!lab().note(name, "background", "note " + std::to_string(i)).ok()) {
          return false;
        }
      }
      return true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 7 * round));
    ::kill(child, SIGKILL);
    wait_for(child);
    const Result<Experiment> e = lab().load(name);
    ASSERT_TRUE(e.ok()) << e.status().text();
    EXPECT_GE(e.value().notes.size(), notes);
    notes = e.value().notes.size();
  }
  EXPECT_GT(notes, 0U);
  ASSERT_TRUE(lab().draw_all().ok());
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST_F(LabCrash, ProcessesThatOpenAtOnceGetNumbersOfTheirOwn) {
  std::vector<pid_t> children;
  children.reserve(4);
  for (int i = 0; i < 4; ++i) {
    children.push_back(start([&] {
      for (int n = 0; n < 5; ++n) {
        if (!lab().create(question()).ok()) {
          return false;
        }
      }
      return true;
    }));
  }
  for (const pid_t child : children) {
    EXPECT_EQ(wait_for(child), 0);
  }
  const Census census = lab().census().value();
  EXPECT_EQ(census.experiments.size(), 20U);
  EXPECT_TRUE(census.damages.empty());
}

TEST_F(LabCrash, NotesOfManyProcessesAllArrive) {
  const std::string name = open();
  std::vector<pid_t> children;
  children.reserve(4);
  for (int i = 0; i < 4; ++i) {
    children.push_back(start([&, i] {
      for (int n = 0; n < 10; ++n) {
        if (!lab().note(name, "background", std::to_string(10 * i + n)).ok()) {
          return false;
        }
      }
      return true;
    }));
  }
  for (const pid_t child : children) {
    EXPECT_EQ(wait_for(child), 0);
  }
  std::set<std::string> texts;
  const Experiment e = lab().load(name).value();
  for (const Note& note : e.notes) {
    texts.insert(note.text);
  }
  EXPECT_EQ(texts.size(), 40U);
}

TEST_F(LabCrash, OneProcessRunsAnExperimentsGatesAndNotesGoOnMeanwhile) {
  const std::string name = open();
  set_script(kIdentity, R"(touch started; while [ ! -e go ]; do sleep 0.02; done
echo '{"gate": "identity", "verdict": "pass", "summary": "x"}')");
  const pid_t child = start([&] { return lab().attempt(name, "first", GateWatch{}).ok(); });
  wait_until_there("started");
  EXPECT_NE(refusal(lab().attempt(name, "second", GateWatch{})).find("another process"), std::string::npos);
  EXPECT_NE(refusal(lab().close(name, Close{.landed = false, .because = "x", .notes = {}})).find("another process"),
            std::string::npos);
  EXPECT_TRUE(lab().note(name, "background", "while it runs").ok());
  write(root() / "go", "");
  EXPECT_EQ(wait_for(child), 0);
  const Experiment e = lab().load(name).value();
  EXPECT_EQ(e.attempts.size(), 1U);
  EXPECT_EQ(e.attempts[0].outcome, Outcome::kPassed);
  EXPECT_EQ(e.section("background"), "while it runs");
}

TEST_F(LabCrash, TwoExperimentsAreNeverTimedAtOnce) {
  const std::string first = open();
  const std::string second = open();
  set_script(kPerf, R"(if [ -e timing ]; then touch overlap; fi; touch timing; sleep 0.3; rm timing
echo '{"gate": "perf", "verdict": "pass", "summary": "x", "ratio": 1.03, "interval": [1.02, 1.04], "noise_floor": 0.005}')");
  const pid_t a = start([&] { return lab().attempt(first, "x", GateWatch{}).ok(); });
  const pid_t b = start([&] { return lab().attempt(second, "x", GateWatch{}).ok(); });
  EXPECT_EQ(wait_for(a), 0);
  EXPECT_EQ(wait_for(b), 0);
  EXPECT_FALSE(std::filesystem::exists(root() / "overlap"));
  EXPECT_EQ(lab().load(first).value().attempts[0].outcome, Outcome::kPassed);
  EXPECT_EQ(lab().load(second).value().attempts[0].outcome, Outcome::kPassed);
}

}  // namespace
}  // namespace tessera::lab
