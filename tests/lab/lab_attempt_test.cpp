// Attempts: the order of the gates, what counts, and what is refused.
#include <filesystem>
#include <string>

#include "lab/lab_fixture.h"

namespace tessera::lab {
namespace {

using LabAttempt = LabTest;

TEST_F(LabAttempt, ABitNeutralChangeIsTimedAfterIdentity) {
  const Attempt a = attempt(open());
  EXPECT_EQ(a.outcome, Outcome::kPassed);
  EXPECT_EQ(calls(), "identity perf");
  ASSERT_EQ(a.runs.size(), 2U);
  EXPECT_EQ(a.runs[1].timing->ratio, 1.03);
  EXPECT_EQ(a.runs[0].metrics.at("n"), 33);
}

TEST_F(LabAttempt, NothingIsTimedBeforeAGreenGate) {
  for (const Verdict verdict : {Verdict::kFail, Verdict::kInconclusive, Verdict::kError}) {
    set_gate(kIdentity, verdict);
    EXPECT_NE(attempt(open()).outcome, Outcome::kPassed);
  }
  set_script(kIdentity, "echo PASS");
  EXPECT_EQ(attempt(open()).outcome, Outcome::kVoid);
  set_script(kIdentity, "echo FAIL; exit 1");
  EXPECT_EQ(attempt(open()).outcome, Outcome::kError);
  set_script(kIdentity, "kill -9 $$");
  EXPECT_EQ(attempt(open()).outcome, Outcome::kError);
  EXPECT_EQ(calls().find(kPerf), std::string::npos) << calls();
}

TEST_F(LabAttempt, AnOrderChangingChangeIsTimedAfterToleranceWhateverIdentitySays) {
  set_gate(kIdentity, Verdict::kFail);
  const Attempt a = attempt(open(kOrderChanging));
  EXPECT_EQ(a.outcome, Outcome::kPassed);
  EXPECT_NE(a.reason.find("identity did not"), std::string::npos) << a.reason;
  EXPECT_EQ(calls(), "identity tolerance perf");
}

TEST_F(LabAttempt, AnOrderChangingChangeThatToleranceRefusesIsNotTimed) {
  set_gate(kTolerance, Verdict::kFail,
           R"(, "flips": [{"position": 19, "token_a": 1, "token_b": 2, "margin": 0.5, "class": "kernel-drift"}])");
  const Attempt a = attempt(open(kOrderChanging));
  EXPECT_EQ(a.outcome, Outcome::kFailed);
  EXPECT_EQ(a.runs.back().flips.at(0).kind, "kernel-drift");
  EXPECT_EQ(calls(), "identity tolerance");
}

TEST_F(LabAttempt, ABitNeutralChangeHasNoTolerance) {
  set_gate(kIdentity, Verdict::kFail);
  EXPECT_EQ(attempt(open()).outcome, Outcome::kFailed);
  EXPECT_EQ(calls(), "identity");
}

TEST_F(LabAttempt, AThirdAttemptIsRefused) {
  set_gate(kIdentity, Verdict::kFail);
  const std::string name = open();
  EXPECT_EQ(attempt(name).outcome, Outcome::kFailed);
  set_gate(kIdentity, Verdict::kPass);
  set_perf(1.001, 0.99, 1.01);
  EXPECT_EQ(attempt(name).outcome, Outcome::kFailed);
  const std::string before = calls();
  EXPECT_NE(refusal(lab().attempt(name, "again", GateWatch{})).find("after 2 attempts"), std::string::npos);
  EXPECT_EQ(calls(), before);
  EXPECT_EQ(lab().load(name).value().attempts.size(), 2U);
}

TEST_F(LabAttempt, AGainOfTheLastAttemptHasToShowTwice) {
  set_perf(1.0, 0.99, 1.01);
  const std::string name = open();
  EXPECT_EQ(attempt(name).outcome, Outcome::kFailed);
  set_perf(1.03, 1.02, 1.04);
  const Attempt second = attempt(name);
  EXPECT_EQ(second.outcome, Outcome::kPassed);
  ASSERT_EQ(second.runs.size(), 3U);
  EXPECT_TRUE(second.runs[2].confirmation);
  EXPECT_EQ(calls(), "identity perf identity perf perf");
}

TEST_F(LabAttempt, AfterAPassThereIsNoOtherAttempt) {
  const std::string name = open();
  EXPECT_EQ(attempt(name).outcome, Outcome::kPassed);
  EXPECT_NE(refusal(lab().attempt(name, "faster still", GateWatch{})).find("passed"), std::string::npos);
}

TEST_F(LabAttempt, WhatTheEnvironmentStoppedDoesNotCount) {
  const std::string name = open();
  set_script(kIdentity, "exit 3");
  EXPECT_EQ(attempt(name).outcome, Outcome::kVoid);
  set_script(kIdentity, "/no/such/program");
  EXPECT_EQ(attempt(name).outcome, Outcome::kVoid);
  EXPECT_EQ(lab().load(name).value().attempts_used(), 0);
  set_gate(kIdentity, Verdict::kPass);
  EXPECT_EQ(attempt(name).outcome, Outcome::kPassed);
}

TEST_F(LabAttempt, AGateIsFixedOnceItGaveAVerdict) {
  const std::string name = open();
  set_script(kPerf, "/no/such/program");
  EXPECT_EQ(attempt(name).outcome, Outcome::kVoid);
  EXPECT_NE(refusal(lab().change_gates(name, {{kIdentity, "true"}})).find("verdict"), std::string::npos);
  EXPECT_NE(refusal(lab().change_gates(name, {{"speed", "true"}})).find("speed"), std::string::npos);
  set_perf(1.0, 0.99, 1.01);
  std::filesystem::rename(root() / "perf.sh", root() / "other.sh");
  ASSERT_TRUE(lab().change_gates(name, {{kPerf, "sh ./other.sh"}}).ok());
  EXPECT_EQ(attempt(name).outcome, Outcome::kFailed);
  EXPECT_FALSE(lab().change_gates(name, {{kPerf, "true"}}).ok());
}

TEST_F(LabAttempt, TheJsonOfAnotherGateIsNoVerdict) {
  std::filesystem::copy(root() / "tolerance.sh", root() / "identity.sh",
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(attempt(open()).outcome, Outcome::kError);
}

TEST_F(LabAttempt, AnErrorOfTheEnvironmentAfterATimingCounts) {
  set_perf(1.0, 0.99, 1.01);
  const std::string name = open();
  EXPECT_EQ(attempt(name).outcome, Outcome::kFailed);
  set_script(kPerf, R"(if [ -e once ]; then exit 3; fi; touch once
echo '{"gate": "perf", "verdict": "pass", "summary": "x", "ratio": 1.03, "interval": [1.02, 1.04], "noise_floor": 0.005}')");
  EXPECT_EQ(attempt(name).outcome, Outcome::kError);
  EXPECT_EQ(lab().load(name).value().attempts_used(), 2);
}

TEST_F(LabAttempt, AReferenceThatChangedStopsEverything) {
  write(root() / "reference.json", "logits");
  NewExperiment what = question();
  what.changes.references = {"reference.json"};
  const std::string name = lab().create(what).value().name;
  write(root() / "reference.json", "others");
  EXPECT_NE(refusal(lab().attempt(name, "x", GateWatch{})).find("reference.json"), std::string::npos);
  EXPECT_EQ(calls(), "");
  write(root() / "reference.json", "logits");
  set_script(kIdentity,
             R"(echo others > reference.json; echo '{"gate": "identity", "verdict": "pass", "summary": "x"}')");
  EXPECT_EQ(attempt(name).outcome, Outcome::kVoid);
  EXPECT_EQ(calls(), "identity");
}

TEST_F(LabAttempt, WhatWasCheckedIsWhatIsTimed) {
  write(root() / "program", "one");
  NewExperiment what = question();
  what.changes.subjects = {"program"};
  const std::string name = lab().create(what).value().name;
  set_script(kIdentity, R"(echo two > program; echo '{"gate": "identity", "verdict": "pass", "summary": "x"}')");
  const Attempt a = attempt(name);
  EXPECT_EQ(a.outcome, Outcome::kVoid);
  EXPECT_NE(a.reason.find("program: its content changed"), std::string::npos) << a.reason;
  EXPECT_EQ(calls(), "identity");
  EXPECT_EQ(a.subjects.at(0).path, "program");
}

TEST_F(LabAttempt, GatesRunBesideTheLabAndKnowWhoAsks) {
  set_script(kIdentity, R"(echo "$TESSERA_LAB_EXPERIMENT $TESSERA_LAB_ATTEMPT $TESSERA" > who; pwd > where
echo '{"gate": "identity", "verdict": "pass", "summary": "x"}')");
  const std::string name = open();
  attempt(name);
  EXPECT_EQ(read_file(root() / "who", 1000).value(), name + " 1 /no/such/tessera\n");
  EXPECT_EQ(read_file(root() / "where", 1000).value(), root().string() + "\n");
}

TEST_F(LabAttempt, AStoppedAttemptIsInterruptedAndCounts) {
  const std::string name = open();
  std::atomic<bool> cancel = false;
  GateWatch watch;
  watch.cancel = &cancel;
  watch.on_stderr = [&](std::string_view) { cancel = true; };
  set_script(kIdentity, "echo started >&2; sleep 60");
  const Experiment e = lab().attempt(name, "x", watch).value();
  EXPECT_EQ(e.attempts.back().outcome, Outcome::kInterrupted);
  EXPECT_EQ(e.attempts_used(), 1);
}

// Found by the fuzzer: the reason of an error cites bytes of the output, and a record with them did not read back.
TEST_F(LabAttempt, BytesThatAreNoTextDoNotSpoilTheRecord) {
  set_script(kIdentity, R"(printf '\212\016 \377'; printf '\212\033[2J' >&2; exit 1)");
  const std::string name = open();
  EXPECT_EQ(attempt(name).outcome, Outcome::kError);
  const Experiment e = lab().load(name).value();
  EXPECT_EQ(e.attempts[0].reason.find('\x1b'), std::string::npos);
  EXPECT_TRUE(lab().census().value().damages.empty());
}

TEST_F(LabAttempt, AHugeOutputIsAnErrorAndNoPass) {
  set_script(
      kIdentity,
      R"(echo '{"gate": "identity", "verdict": "pass", "summary": "'; head -c 9000000 /dev/zero | tr '\0' x; echo '"}')");
  const std::string name = open();
  EXPECT_EQ(attempt(name).outcome, Outcome::kError);
  EXPECT_LT(std::filesystem::file_size(folder() / (name + ".json")), 100000U);
}

}  // namespace
}  // namespace tessera::lab
