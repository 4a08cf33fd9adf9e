// The gate itself: it passes where the contract holds, and one flipped bit makes it fail.
#include "gate/invariance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/toy_model.h"

namespace tessera {
namespace {

std::unique_ptr<Engine> load(const testing::ToySpec& spec, const std::string& name, const InvarianceOptions& options) {
  const std::string path = testing::write_file("invariance_" + name + ".gguf", testing::toy_model(spec).build());
  Result<std::unique_ptr<Engine>> engine =
      Engine::load(path, {.threads = 2, .cache_tokens = invariance_cache_tokens(options)});
  EXPECT_TRUE(engine.ok()) << engine.status().text();
  return std::move(engine).value();
}

std::vector<int32_t> some_tokens(int64_t n) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back(static_cast<int32_t>((i * i * 7 + 3) % 260));
  }
  return tokens;
}

TEST(InvarianceGate, PassesForEveryArchitecture) {
  const InvarianceOptions options{.num_tokens = 96};
  const testing::ToySpec specs[] = {
      {.arch = "llama", .types = {TensorType::Q4_1}},
      {.arch = "qwen2", .types = {TensorType::Q4_K, TensorType::Q6_K, TensorType::Q5_0, TensorType::F16}},
      {.arch = "qwen3", .types = {TensorType::Q8_0, TensorType::Q5_1, TensorType::BF16, TensorType::Q5_K}}};
  for (const testing::ToySpec& spec : specs) {
    SCOPED_TRACE(spec.arch);
    const std::unique_ptr<Engine> engine = load(spec, spec.arch, options);
    Result<InvarianceReport> report = run_invariance(*engine, some_tokens(96), options);
    ASSERT_TRUE(report.ok()) << report.status().text();
    for (const InvarianceCase& c : report.value().cases) {
      EXPECT_TRUE(c.passed()) << c.axis << ", " << c.variant << ": " << c.rows_differing << " of " << c.rows;
    }
    EXPECT_TRUE(report.value().passed());
    EXPECT_GT(report.value().cases.size(), 20U);
  }
}

TEST(InvarianceGate, NoticesOneFlippedBitUnderEverySchedule) {
  const InvarianceOptions options{.num_tokens = 96, .negative_control = true};
  const std::unique_ptr<Engine> engine = load({}, "control", options);
  Result<InvarianceReport> report = run_invariance(*engine, some_tokens(96), options);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_FALSE(report.value().passed());
  for (const InvarianceCase& c : report.value().cases) {
    EXPECT_GT(c.rows_differing, 0) << c.axis << ", " << c.variant;
  }
}

// What a case leaves behind in the engine tells whether its schedule took place.
TEST(InvarianceGate, SchedulesReallyVaryPagesAndBatchesAndCompareEveryRow) {
  InvarianceOptions options{.num_tokens = 48};
  const std::unique_ptr<Engine> engine = load({.types = {TensorType::Q4_1}}, "axes", options);
  std::vector<int64_t> page_sizes;
  std::vector<int64_t> sequences;
  options.on_case = [&](const std::string&, size_t, size_t) {  // called before a case: sees the one before it
    page_sizes.push_back(engine->cache().page_size());
    int64_t count = 0;
    for (SequenceId id = 0; id < 32; ++id) {
      count += engine->cache().contains(id) ? 1 : 0;
    }
    sequences.push_back(count);
  };
  Result<InvarianceReport> report = run_invariance(*engine, some_tokens(48), options);
  ASSERT_TRUE(report.ok()) << report.status().text();
  const std::vector<InvarianceCase>& cases = report.value().cases;
  ASSERT_EQ(page_sizes.size(), cases.size());
  for (size_t i = 0; i + 1 < cases.size(); ++i) {
    const InvarianceCase& c = cases[i];
    SCOPED_TRACE(c.axis + ", " + c.variant);
    EXPECT_EQ(c.rows, c.axis == "kernel" ? 40 : 48);
    EXPECT_EQ(page_sizes[i + 1], c.axis == "page size" ? std::stoll(c.variant) : 16);
    EXPECT_EQ(c.threads, c.axis == "threads" ? std::stoi(c.variant) : engine->threads());
    EXPECT_EQ(c.forced_kernel, c.axis == "kernel" ? c.variant : "");
    if (c.axis == "batch") {
      EXPECT_EQ(sequences[i + 1], std::stoll(c.variant));
    }
  }
  EXPECT_EQ(cases.back().rows, 48);
  EXPECT_GT(cases.back().rows_differing, 12) << "most of the 24 rows behind the damage";
}

TEST(InvarianceGate, NoticesADifferenceInTheLastLogitAlone) {
  const InvarianceOptions options{.num_tokens = 48};
  testing::GgufWriter model = testing::toy_model({.tied = false});
  for (testing::TensorSpec& t : model.tensors) {
    if (t.name == "output.weight") {
      const size_t row = testing::kToyHidden * sizeof(float);
      std::fill(t.data.begin(), t.data.end() - static_cast<std::ptrdiff_t>(row), '\0');
    }
  }
  const std::string path = testing::write_file("invariance_last.gguf", model.build());
  Result<std::unique_ptr<Engine>> engine =
      Engine::load(path, {.threads = 2, .cache_tokens = invariance_cache_tokens(options)});
  ASSERT_TRUE(engine.ok()) << engine.status().text();
  Result<InvarianceReport> report = run_invariance(*engine.value(), some_tokens(48), options);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_GT(report.value().cases.back().rows_differing, 0);
  EXPECT_EQ(report.value().cases.back().first_token, testing::kToyVocab - 1);
}

TEST(InvarianceGate, AReportWithoutCasesHasNotPassed) {
  EXPECT_FALSE(InvarianceReport().passed());
}

TEST(InvarianceGate, ACaseThatComparedNothingHasNotPassed) {
  EXPECT_FALSE(InvarianceCase().passed());
}

TEST(InvarianceGate, RefusesTokensThatAreTooFew) {
  const InvarianceOptions options{.num_tokens = 96};
  const std::unique_ptr<Engine> engine = load({}, "few", options);
  EXPECT_FALSE(run_invariance(*engine, some_tokens(5), options).ok());
}

}  // namespace
}  // namespace tessera
