// Opening, notes, decisions, the check of a revert, and the census.
#include <filesystem>
#include <string>

#include "lab/lab_fixture.h"

namespace tessera::lab {
namespace {

using LabClose = LabTest;

Close reverted() {
  return {.landed = false,
          .because = "The gain did not show.",
          .notes = {{"lessons", "Measure first."}, {"retry", "New hardware."}}};
}

TEST_F(LabClose, NumbersAndNamesFollow) {
  EXPECT_EQ(open(), "0001-kv-staging-double-buffering");
  NewExperiment other = question();
  other.title = "../../etc/\xc3\xa9 <b>x</b>";
  const Experiment e = lab().create(other).value();
  EXPECT_EQ(e.name, "0002-etc-b-x-b");
  EXPECT_EQ(e.title, other.title);
  EXPECT_EQ(e.previous_digest, lab().load("1").value().first_digest());
  EXPECT_TRUE(lab().load("0002").ok());
  EXPECT_TRUE(lab().load("0002-etc-b-x-b").ok());
}

TEST_F(LabClose, HostileNamesFindNothing) {
  open();
  for (const char* const id : {"", "../lab/0001-kv-staging-double-buffering", "/etc/passwd", "1/..", "0", "2", "-1",
                               "1 ", "99999999999999999999", "lab", "*", "\xff"}) {
    EXPECT_FALSE(lab().load(id).ok()) << id;
  }
}

TEST_F(LabClose, AQuestionNeedsItsParts) {
  NewExperiment what = question();
  what.hypothesis = "  ";
  EXPECT_NE(refusal(lab().create(what)).find("hypothesis"), std::string::npos);
  what = question("harmless");
  EXPECT_NE(refusal(lab().create(what)).find("harmless"), std::string::npos);
  what = question();
  what.title = "a\nb";
  EXPECT_NE(refusal(lab().create(what)).find("title"), std::string::npos);
  what = question();
  what.notes["gossip"] = "x";
  EXPECT_NE(refusal(lab().create(what)).find("gossip"), std::string::npos);
  what = question();
  what.notes["background"] = std::string(300000, 'x');
  EXPECT_NE(refusal(lab().create(what)).find("300000 bytes"), std::string::npos);
  what = question();
  what.changes.references = {"no/such/file"};
  EXPECT_NE(refusal(lab().create(what)).find("no/such/file"), std::string::npos);
  EXPECT_TRUE(lab().census().value().experiments.empty());
}

TEST_F(LabClose, LandingNeedsAnAttemptThatPassed) {
  const std::string name = open();
  Close landed = {.landed = true, .because = "3 % faster.", .notes = {{"lessons", "It works."}}};
  EXPECT_NE(refusal(lab().close(name, landed)).find("no attempt"), std::string::npos);
  set_gate(kIdentity, Verdict::kFail);
  attempt(name);
  EXPECT_NE(refusal(lab().close(name, landed)).find("failed"), std::string::npos);
  set_gate(kIdentity, Verdict::kPass);
  attempt(name);
  EXPECT_EQ(lab().close(name, landed).value().state(), "landed");
  EXPECT_NE(refusal(lab().close(name, landed)).find("closed as landed"), std::string::npos);
  EXPECT_NE(refusal(lab().attempt(name, "x", GateWatch{})).find("closed as landed"), std::string::npos);
}

TEST_F(LabClose, ADecisionNeedsReasonLessonsAndWhenToRetry) {
  const std::string name = open();
  for (const char* const missing : {"lessons", "retry"}) {
    Close close = reverted();
    close.notes.erase(missing);
    EXPECT_NE(refusal(lab().close(name, close)).find(missing), std::string::npos);
  }
  Close close = reverted();
  close.because = "";
  EXPECT_NE(refusal(lab().close(name, close)).find("because"), std::string::npos);
  EXPECT_TRUE(lab().note(name, "lessons", "Said before.").ok());
  close = reverted();
  close.notes.erase("lessons");
  const Experiment e = lab().close(name, close).value();
  EXPECT_EQ(e.state(), "reverted");
  EXPECT_EQ(e.section("lessons"), "Said before.");
  EXPECT_EQ(e.section("retry"), "New hardware.");
}

TEST_F(LabClose, NotesAreAddedAlsoAfterwards) {
  const std::string name = open();
  EXPECT_TRUE(lab().close(name, reverted()).ok());
  EXPECT_EQ(lab().note(name, "lessons", "Later insight.").value().section("lessons"),
            "Measure first.\n\nLater insight.");
}

class LabRevert : public LabTest {
 protected:
  RevertCheck check(double band = 0.02) const {
    const Result<Experiment> e = lab().verify_revert("1", band, GateWatch{});
    EXPECT_TRUE(e.ok()) << e.status().text();
    return e.ok() ? e.value().revert_checks.back() : RevertCheck{};
  }
  void SetUp() override {
    open();
    ASSERT_TRUE(lab().close("1", reverted()).ok());
  }
};

TEST_F(LabRevert, PassesWhereLogitsAndSpeedAreAsBefore) {
  set_perf(1.001, 0.995, 1.006);  // perf itself says fail: not faster
  EXPECT_EQ(check().verdict, Verdict::kPass);
  EXPECT_EQ(lab().load("1").value().revert_checks.size(), 1U);
}

TEST_F(LabRevert, FailsWhereTheSpeedIsAnother) {
  set_perf(0.93, 0.92, 0.94);
  EXPECT_EQ(check().verdict, Verdict::kFail);
  set_perf(1.07, 1.06, 1.08);  // faster is not as before either
  EXPECT_EQ(check().verdict, Verdict::kFail);
}

TEST_F(LabRevert, IsInconclusiveWhereTheIntervalIsTooWide) {
  set_perf(1.0, 0.95, 1.05);
  EXPECT_EQ(check().verdict, Verdict::kInconclusive);
  EXPECT_EQ(check(0.06).verdict, Verdict::kPass);
  set_perf(1.0, 0.95, 1.05, 0.5);  // noise does not excuse a difference
  EXPECT_EQ(check().verdict, Verdict::kInconclusive);
}

TEST_F(LabRevert, FailsWhereTheLogitsAreOthersAndTimesNothing) {
  set_gate(kIdentity, Verdict::kFail);
  EXPECT_EQ(check().verdict, Verdict::kFail);
  EXPECT_EQ(calls(), "identity");
}

TEST_F(LabRevert, AGateThatGivesNoVerdictIsAnError) {
  set_script(kIdentity, "echo PASS");
  EXPECT_EQ(check().verdict, Verdict::kError);
  set_gate(kIdentity, Verdict::kPass);
  set_script(kPerf, "exit 3");
  EXPECT_EQ(check().verdict, Verdict::kError);
}

TEST_F(LabRevert, IsForRevertedExperimentsAlone) {
  open();
  EXPECT_NE(refusal(lab().verify_revert("2", 0.02, GateWatch{})).find("open"), std::string::npos);
  EXPECT_NE(refusal(lab().verify_revert("1", 0, GateWatch{})).find("band"), std::string::npos);
}

using LabCensus = LabTest;

TEST_F(LabCensus, ATamperedRecordIsNamedAndRefused) {
  const std::string name = open();
  open();
  const std::filesystem::path path = folder() / (name + ".json");
  std::string text = read_file(path, 1000000).value();
  text.replace(text.find("\"expected_gain_percent\": 3"), 26, "\"expected_gain_percent\": 9");
  write(path, text);
  const Census census = lab().census().value();
  ASSERT_EQ(census.damages.size(), 1U);
  EXPECT_EQ(census.damages[0].file, name);
  EXPECT_EQ(census.experiments.size(), 1U);
  EXPECT_NE(refusal(lab().attempt(name, "x", GateWatch{})).find("altered"), std::string::npos);
  EXPECT_NE(refusal(lab().note(name, "lessons", "x")).find("altered"), std::string::npos);
  EXPECT_NE(refusal(lab().close(name, reverted())).find("altered"), std::string::npos);
  EXPECT_EQ(calls(), "");
}

TEST_F(LabCensus, AMissingAndAnExchangedRecordAreNoticed) {
  const std::string first = open();
  const std::string second = open();
  open();
  std::filesystem::copy(folder() / (second + ".json"), root() / "kept.json");
  std::filesystem::remove(folder() / (second + ".json"));
  ASSERT_EQ(lab().census().value().damages.size(), 1U);
  EXPECT_EQ(lab().census().value().damages[0].file, "0002");

  // A lab of its own whose second record is sound in itself, put into this one.
  std::filesystem::remove(folder() / (first + ".json"));
  std::filesystem::rename(folder() / "0003-kv-staging-double-buffering.json", root() / "third.json");
  NewExperiment other = question();
  other.hypothesis = "Another story.";
  ASSERT_TRUE(lab().create(other).ok());
  std::filesystem::copy(root() / "kept.json", folder() / (second + ".json"));
  ASSERT_EQ(lab().census().value().damages.size(), 1U);
  EXPECT_NE(lab().census().value().damages[0].what.find("does not follow"), std::string::npos);

  std::filesystem::copy(folder() / (second + ".json"), folder() / "0003-renamed.json");
  EXPECT_EQ(lab().census().value().damages.size(), 2U);
}

TEST_F(LabCensus, TwoRecordsOfOneNumberAreNoticed) {
  const std::string name = open();
  std::filesystem::copy(folder() / (name + ".json"), folder() / "0001-twin.json");
  EXPECT_EQ(lab().census().value().damages.size(), 1U);
  EXPECT_NE(refusal(lab().load("1")).find("more than one"), std::string::npos);
}

TEST_F(LabCensus, AnEarlierStateOfARecordTakesNoCommand) {
  const std::string name = open();
  set_gate(kIdentity, Verdict::kPass);
  set_perf(1.1, 1.09, 1.11);
  const std::string before = read_file(folder() / (name + ".json"), 1000000).value();
  attempt(name);
  ASSERT_TRUE(lab().draw_all().value().damages.empty());
  const std::string called = calls();
  write(folder() / (name + ".json"), before);
  for (const std::string& said :
       {refusal(lab().attempt(name, "again", GateWatch{})), refusal(lab().note(name, "lessons", "x")),
        refusal(lab().close(name, {.landed = true, .because = "x", .notes = {}}))}) {
    EXPECT_NE(said.find(name + ".json: got a record without events that index.json knows"), std::string::npos) << said;
  }
  EXPECT_EQ(calls(), called);
  EXPECT_EQ(read_file(folder() / (name + ".json"), 1000000).value(), before);

  // Nor under another name, nor where the index can no longer say.
  std::filesystem::rename(folder() / (name + ".json"), folder() / "0001-other.json");
  EXPECT_NE(refusal(lab().attempt("0001-other", "again", GateWatch{})).find("got a record without events"),
            std::string::npos);
  write(folder() / "index.json", "{}");
  EXPECT_NE(refusal(lab().note("0001-other", "lessons", "x")).find("index.json: got a file that is no index"),
            std::string::npos);
  EXPECT_EQ(calls(), called);
}

TEST_F(LabCensus, ExchangedRecordsTakeNoCommand) {
  const std::string first = open();
  const std::string second = open();
  ASSERT_TRUE(lab().draw_all().value().damages.empty());
  std::filesystem::rename(folder() / (first + ".json"), folder() / "kept");
  std::filesystem::rename(folder() / (second + ".json"), folder() / (first + ".json"));
  std::filesystem::rename(folder() / "kept", folder() / (second + ".json"));
  EXPECT_NE(
      refusal(lab().attempt(first, "x", GateWatch{})).find("got the record of experiment 2; allowed is that of 1"),
      std::string::npos);
  EXPECT_NE(refusal(lab().note(second, "lessons", "x")).find("got the record of experiment 1"), std::string::npos);
  EXPECT_EQ(calls(), "");
}

TEST_F(LabCensus, TheIndexRemembersWhatAChainCannot) {
  const std::string name = open();
  const std::string last = open();
  ASSERT_TRUE(lab().note(name, "lessons", "x").ok());
  ASSERT_TRUE(lab().draw_all().value().damages.empty());

  // Events cut off at the end, head and all: sound in itself.
  const std::string text = read_file(folder() / (name + ".json"), 1000000).value();
  Record record = parse_record(text, "x").value();
  record.events.pop_back();
  write(folder() / (name + ".json"), record_text(record));
  for (int i = 0; i < 2; ++i) {  // drawing does not make it forget
    const Census census = lab().draw_all().value();
    ASSERT_EQ(census.damages.size(), 1U);
    EXPECT_EQ(census.damages[0].file, name);
  }
  write(folder() / (name + ".json"), text);
  ASSERT_TRUE(lab().draw_all().value().damages.empty());

  std::filesystem::remove(folder() / (last + ".json"));
  ASSERT_EQ(lab().draw_all().value().damages.size(), 1U);
  EXPECT_EQ(lab().draw_all().value().damages[0].file, last);

  std::filesystem::remove(folder() / "index.json");
  EXPECT_TRUE(lab().draw_all().value().damages.empty());
}

TEST_F(LabCensus, AnIndexThatSaysNothingIsDamageUntilItIsDeleted) {
  open();
  for (const char* text : {"<<<<<<< a merge", "", "[]", "{\"experiments\": [1]}"}) {
    ASSERT_TRUE(lab().draw_all().value().damages.empty());
    write(folder() / "index.json", text);
    for (int i = 0; i < 2; ++i) {
      const Census census = lab().draw_all().value();
      ASSERT_EQ(census.damages.size(), 1U) << text;
      EXPECT_EQ(census.damages[0].file, "index.json");
    }
    std::filesystem::remove(folder() / "index.json");
  }
}

TEST_F(LabCensus, SettingsAreReadStrictly) {
  for (const char* const text : {"", "{}", "[]", R"({"schema": "tessera-lab-settings-1", "gate": {}})",
                                 R"({"schema": "tessera-lab-settings-1", "gates": {"speed": "x"}})",
                                 R"({"schema": "tessera-lab-settings-1", "gates": {"perf": 3}})",
                                 R"({"schema": "tessera-lab-settings-1", "gates": {"identity": "x"}})"}) {
    write(folder() / "lab.json", text);
    EXPECT_NE(refusal(lab().create(question())).find("lab.json"), std::string::npos) << text;
  }
}

TEST_F(LabCensus, AFolderWithoutALabAndALabThatIsThereAreRefused) {
  EXPECT_NE(refusal(Lab::open(root(), "test", "")).find("lab init"), std::string::npos);
  EXPECT_FALSE(Lab::init(folder(), Settings{}).ok());
  EXPECT_NE(Lab::init("", Settings{}).text().find("lab: got no name"), std::string::npos);
  write(root() / "file", "x");
  EXPECT_FALSE(Lab::init(root() / "file" / "lab", Settings{}).ok());
}

}  // namespace
}  // namespace tessera::lab
