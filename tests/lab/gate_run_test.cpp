#include "lab/gate_run.h"

#include <gtest/gtest.h>

#include <string>

#include "lab/plots.h"

namespace tessera::lab {
namespace {

CommandResult ended(int exit_code, const std::string& output) {
  CommandResult result;
  result.exit_code = exit_code;
  result.output = output;
  return result;
}

GateRun identity(int exit_code, const std::string& output) {
  return judge(kIdentity, "gate", ended(exit_code, output));
}

const char* const kPass = R"({"gate":"identity","verdict":"pass","summary":"same bytes","metrics":{"positions":33}})";
const char* const kPerfPass =
    R"({"gate":"perf","verdict":"pass","summary":"faster","metrics":{},"ratio":1.03,"interval":[1.02,1.04],
        "noise_floor":0.005,"samples_a":[1,2],"samples_b":[1.1,2.1],"unit":"tok/s"})";

TEST(GateRun, ReadsAVerdict) {
  const GateRun run = identity(0, kPass);
  EXPECT_EQ(run.verdict, Verdict::kPass);
  EXPECT_EQ(run.summary, "same bytes");
  EXPECT_EQ(run.metrics.at("positions"), 33);
  EXPECT_TRUE(run.problem.empty());
  const GateRun fail = identity(1, R"({"gate":"identity","verdict":"fail","summary":"token 19 differs"})");
  EXPECT_EQ(fail.verdict, Verdict::kFail);
  EXPECT_EQ(identity(2, R"({"gate":"identity","verdict":"inconclusive","summary":"too short"})").verdict,
            Verdict::kInconclusive);
}

TEST(GateRun, WhatIsNotClearlyAVerdictIsAnError) {
  const std::string pass = kPass;
  const std::pair<int, std::string> cases[] = {
      {0, ""},
      {0, "PASS"},
      {0, pass.substr(0, 40)},
      {0, pass + pass},
      {0, "noise before\n" + pass},
      {0, "null"},
      {0, R"({"gate":"identity","verdict":"fail","summary":"x"})"},
      {1, pass},
      {2, pass},
      {3, pass},
      {4, pass},
      {0, R"({"gate":"perf","verdict":"pass","summary":"x"})"},
      {0, R"({"gate":"identity","verdict":"pass"})"},
      {0, R"({"gate":"identity","verdict":true,"summary":"x"})"},
      {0, R"({"gate":"identity","verdict":"fail","verdict":"pass","summary":"x"})"},
      {0, R"({"gate":"identity","verdict":"pass","summary":"x","metrics":{"a":"b"}})"},
      {0, R"({"gate":"identity","verdict":"pass","summary":"x","metrics":[1]})"},
      {0, R"({"gate":"identity","verdict":"pass","summary":"wrote record.json","wrote":true})"}};
  for (const auto& [code, output] : cases) {
    const GateRun run = identity(code, output);
    EXPECT_EQ(run.verdict, Verdict::kError) << code << " " << output;
    EXPECT_FALSE(run.problem.empty()) << output;
  }
}

TEST(GateRun, SignalsAndLimitsAreErrorsOfTheCandidate) {
  CommandResult crash = ended(139, kPass);
  crash.signalled = true;
  EXPECT_EQ(judge(kIdentity, "gate", crash).verdict, Verdict::kError);
  EXPECT_FALSE(judge(kIdentity, "gate", crash).environment);
  CommandResult late = ended(137, kPass);
  late.past_limit = late.signalled = true;
  EXPECT_EQ(judge(kIdentity, "gate", late).verdict, Verdict::kError);
  EXPECT_FALSE(judge(kIdentity, "gate", late).environment);
  CommandResult cut = ended(0, kPass);
  cut.output_cut = true;
  EXPECT_EQ(judge(kIdentity, "gate", cut).verdict, Verdict::kError);
}

TEST(GateRun, WhatCannotStartIsTheEnvironments) {
  EXPECT_TRUE(identity(127, "").environment);
  EXPECT_TRUE(identity(3, "").environment);
  const GateRun refused = identity(3, R"({"gate":"identity","verdict":"error","summary":"no model"})");
  EXPECT_TRUE(refused.environment);
  EXPECT_EQ(refused.problem, "exit code 3, bad input or environment: no model");
  CommandResult silent = ended(3, "");
  silent.stderr_tail = "progress\nerror: no GPU\n";
  EXPECT_EQ(judge(kIdentity, "gate", silent).problem, "exit code 3, bad input or environment: error: no GPU");
  EXPECT_TRUE(identity(0, "PASS: forgot its --json").environment);
  EXPECT_FALSE(identity(0, R"({"gate":"identity","verdict":"fail","summary":"x"})").environment);
  EXPECT_FALSE(identity(1, "").environment);
  EXPECT_TRUE(run_gate(kIdentity, "/no/such/program", CommandOptions{}).environment);
}

TEST(GateRun, APassOfPerfNeedsItsNumbers) {
  const GateRun run = judge(kPerf, "gate", ended(0, kPerfPass));
  ASSERT_EQ(run.verdict, Verdict::kPass) << run.problem;
  ASSERT_TRUE(run.timing.has_value());
  EXPECT_EQ(run.timing->ratio, 1.03);
  EXPECT_EQ(run.timing->samples_b[1], 2.1);
  const GateRun loud = judge(kPerf, "gate", ended(1, R"({"gate":"perf","verdict":"fail","summary":"x","ratio":1.0,
      "interval":[0.4,2.4],"noise_floor":1.9})"));
  EXPECT_EQ(loud.verdict, Verdict::kFail) << loud.problem;
  EXPECT_EQ(ratio_plot({{"x", *loud.timing}}, 3.0).find("width=\"-"), std::string::npos);
  for (const char* const broken :
       {R"({"gate":"perf","verdict":"pass","summary":"x"})",
        R"({"gate":"perf","verdict":"pass","summary":"x","ratio":1.03,"interval":[1.02,1.04]})",
        R"({"gate":"perf","verdict":"pass","summary":"x","ratio":1.03,"interval":[1.04,1.02],"noise_floor":0})",
        R"({"gate":"perf","verdict":"pass","summary":"x","ratio":0,"interval":[0,0],"noise_floor":0})",
        R"({"gate":"perf","verdict":"pass","summary":"x","ratio":"1.03","interval":[1.02,1.04],"noise_floor":0})",
        R"({"gate":"perf","verdict":"pass","summary":"x","ratio":1.03,"interval":[1.02,1.04],"noise_floor":-1})"}) {
    EXPECT_EQ(judge(kPerf, "gate", ended(0, broken)).verdict, Verdict::kError) << broken;
  }
  EXPECT_EQ(judge(kPerf, "gate", ended(2, R"({"gate":"perf","verdict":"inconclusive","summary":"noisy"})")).verdict,
            Verdict::kInconclusive);
}

TEST(GateRun, APassOfToleranceNeedsItsFlips) {
  const GateRun run = judge(kTolerance, "gate", ended(0, R"({"gate":"tolerance","verdict":"pass","summary":"x","flips":[
      {"position":19,"token_a":262,"token_b":" the","margin":0.01,"class":"knife-edge"}]})"));
  ASSERT_EQ(run.verdict, Verdict::kPass) << run.problem;
  ASSERT_EQ(run.flips.size(), 1U);
  EXPECT_EQ(run.flips[0].token_a, "262");
  EXPECT_EQ(run.flips[0].token_b, " the");
  EXPECT_EQ(run.flips[0].kind, "knife-edge");
  const GateRun named =
      judge(kTolerance, "gate", ended(1, R"({"gate":"tolerance","verdict":"fail","summary":"x","flips":[
      {"position":19,"token_a":{"token":262,"text":" the"},"margin":0.01,"class":"kernel drift"}]})"));
  EXPECT_EQ(named.flips.at(0).token_a, "262 ' the'");
  EXPECT_EQ(named.flips.at(0).token_b, "");
  for (const char* const broken : {R"({"gate":"tolerance","verdict":"pass","summary":"x"})",
                                   R"({"gate":"tolerance","verdict":"pass","summary":"x","flips":3})",
                                   R"({"gate":"tolerance","verdict":"pass","summary":"x","flips":[{"position":1}]})",
                                   R"({"gate":"tolerance","verdict":"pass","summary":"x","flips":[
      {"position":19,"token_a":1,"token_b":2,"margin":5,"class":"kernel drift"}]})"}) {
    EXPECT_EQ(judge(kTolerance, "gate", ended(0, broken)).verdict, Verdict::kError) << broken;
  }
}

}  // namespace
}  // namespace tessera::lab
