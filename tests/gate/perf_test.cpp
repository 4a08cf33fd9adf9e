// The performance gate over synthetic clocks: what it must find, and what it must not.
#include "gate/perf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

namespace tessera {
namespace {

// Times around `seconds` with normal noise of `spread`, and a machine that slows down by `drift` per run.
struct Clock {
  std::mt19937_64 random;
  double spread = 0.01;
  double drift = 0;
  double pace = 1;

  std::function<Status(double*)> run(double seconds) {
    return [this, seconds](double* out) {
      pace += drift;
      *out = seconds * pace * std::exp(std::normal_distribution<double>(0, spread)(random));
      return Status();
    };
  }
};

PerfReport measure(Clock* clock, double a, double b, const PerfOptions& options) {
  const PerfWork work{"work", clock->run(a), clock->run(b)};
  const Result<PerfReport> r = measure_perf({&work, 1}, options);
  EXPECT_TRUE(r.ok()) << r.status().text();
  return r.value();
}

TEST(PerfGate, GivesNoFalseAlarmInTwentyRunsOfAgainstItself) {
  int passed = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Clock clock{.random = std::mt19937_64(seed)};
    const PerfReport r = measure(&clock, 1, 1, {.seed = seed});
    EXPECT_NE(r.verdict, Verdict::kFail) << r.summary;
    passed += r.verdict == Verdict::kPass ? 1 : 0;
    const PerfReport faster = measure(&clock, 1, 1, {.expectation = PerfExpectation::kFaster, .seed = seed});
    EXPECT_NE(faster.verdict, Verdict::kPass) << faster.summary;
  }
  EXPECT_GE(passed, 18);
}

TEST(PerfGate, FindsAThreePercentSlowdownUnderOnePercentOfNoise) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Clock clock{.random = std::mt19937_64(seed)};
    const PerfReport r = measure(&clock, 1, 1.03, {.seed = seed});
    EXPECT_EQ(r.verdict, Verdict::kFail) << r.summary;
    EXPECT_NEAR(r.all.median, std::log(1.03), 0.008);
  }
}

TEST(PerfGate, FindsASpeedup) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Clock clock{.random = std::mt19937_64(seed)};
    const PerfReport r = measure(&clock, 1, 0.96, {.expectation = PerfExpectation::kFaster, .seed = seed});
    EXPECT_EQ(r.verdict, Verdict::kPass) << r.summary;
  }
}

TEST(PerfGate, AMachineThatSlowsDownSteadilyIsNoDifference) {
  Clock clock{.random = std::mt19937_64(1), .spread = 1e-6, .drift = 0.002};
  const PerfReport r = measure(&clock, 1, 1, {});
  EXPECT_EQ(r.verdict, Verdict::kPass) << r.summary;
  EXPECT_LT(std::fabs(r.all.median), 1e-4);
}

TEST(PerfGate, KnowsTheMedianLogRatioOfExactTimes) {
  Clock clock{.random = std::mt19937_64(1), .spread = 0};
  const PerfReport r = measure(&clock, 0.5, 0.25, {.expectation = PerfExpectation::kFaster});
  EXPECT_DOUBLE_EQ(r.all.median, -std::log(2.0));
  EXPECT_DOUBLE_EQ(r.all.interval.low, -std::log(2.0));
  EXPECT_EQ(r.all.noise_floor, 0);
  EXPECT_EQ(r.verdict, Verdict::kPass);
  EXPECT_EQ(r.works[0].a_seconds.size(), 40U);
}

TEST(PerfGate, NoiseThatCouldHideTheAnswerIsInconclusive) {
  Clock clock{.random = std::mt19937_64(3), .spread = 0.2};
  EXPECT_EQ(measure(&clock, 1, 0.93, {.expectation = PerfExpectation::kFaster}).verdict, Verdict::kInconclusive);
  EXPECT_EQ(measure(&clock, 1, 1, {.blocks = 5}).verdict, Verdict::kInconclusive);
}

// Without a cap the floor of a machine that others use would let any slowdown below it pass.
TEST(PerfGate, NoSlowdownPassesInNoiseAboveTheCap) {
  const auto judge = [](double noise, double ratio, const PerfOptions& options) {
    PerfSeries s;
    s.log_ratios.assign(20, std::log1p(ratio));
    s.noise.assign(20, std::log1p(noise));
    judge_perf(options, 1, &s);
    return s.verdict;
  };
  const PerfOptions not_slower;
  EXPECT_EQ(judge(0.025, 0.02, not_slower), Verdict::kPass);
  EXPECT_EQ(judge(0.2, 0.15, not_slower), Verdict::kInconclusive);
  EXPECT_EQ(judge(0.2, 0, not_slower), Verdict::kInconclusive);
  EXPECT_EQ(judge(0.2, 0.25, not_slower), Verdict::kFail);   // slower than the noise is slower
  EXPECT_EQ(judge(0.2, -0.25, not_slower), Verdict::kPass);  // and faster is faster
  EXPECT_EQ(judge(0.2, 0.15, {.margin = 0.25}), Verdict::kPass);
  const PerfOptions faster = {.expectation = PerfExpectation::kFaster};
  EXPECT_EQ(judge(0.2, -0.25, faster), Verdict::kPass);
  EXPECT_EQ(judge(0.2, -0.1, faster), Verdict::kInconclusive);
  EXPECT_EQ(judge(0.2, 0.25, faster), Verdict::kFail);
  EXPECT_EQ(judge(0.01, 0, faster), Verdict::kFail);

  Clock clock{.random = std::mt19937_64(7), .spread = 0.5};
  const PerfReport r = measure(&clock, 1, 1.05, {});
  EXPECT_EQ(r.verdict, Verdict::kInconclusive) << r.summary;
  EXPECT_NE(r.summary.find("hide in noise above 3 %"), std::string::npos) << r.summary;
}

TEST(PerfGate, OneSlowWorkAmongManyFails) {
  Clock clock{.random = std::mt19937_64(5), .spread = 0.002};
  const PerfWork works[] = {{"one", clock.run(1), clock.run(0.9)},
                            {"two", clock.run(1), clock.run(0.9)},
                            {"three", clock.run(1), clock.run(1.1)}};
  const Result<PerfReport> r = measure_perf(works, {});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.value().verdict, Verdict::kFail);
  EXPECT_NE(r.value().summary.find("three"), std::string::npos) << r.value().summary;
  EXPECT_LT(r.value().all.median, 0);
}

TEST(PerfGate, RefusesTimesThatAreNone) {
  const auto zero = [](double* seconds) {
    *seconds = 0;
    return Status();
  };
  const PerfWork work{"work", zero, zero};
  EXPECT_FALSE(measure_perf({&work, 1}, {}).ok());
  EXPECT_FALSE(measure_perf({}, {}).ok());
  const auto failing = [](double*) { return Status(Code::kDevice, "lost"); };
  const PerfWork lost{"work", failing, failing};
  EXPECT_FALSE(measure_perf({&lost, 1}, {}).ok());
}

TEST(PerfGate, SaysWhyAMachineIsBusy) {
  EXPECT_EQ(why_busy({.others = 0.02}), "");
  EXPECT_EQ(why_busy({}), "");
  EXPECT_NE(why_busy({.others = 0.5}), "");
  EXPECT_NE(why_busy({.other_processes = 1}), "");
}

}  // namespace
}  // namespace tessera
