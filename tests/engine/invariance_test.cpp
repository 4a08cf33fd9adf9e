// The gate itself: it passes where the contract holds, and one flipped bit makes it fail.
#include "gate/invariance.h"

#include <gtest/gtest.h>

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
