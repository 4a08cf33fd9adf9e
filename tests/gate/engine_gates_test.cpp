// Identity and tolerance of a toy model: records, faults, harmless orders, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "engine/toy_model.h"
#include "gate/faulty.h"
#include "gate/identity.h"
#include "gate/tolerance.h"

namespace tessera {
namespace {

std::unique_ptr<Engine> load(const std::string& path, const EngineOptions& options = {.threads = 1}) {
  Result<std::unique_ptr<Engine>> engine = Engine::load(path, options);
  EXPECT_TRUE(engine.ok()) << engine.status().text();
  return std::move(engine).value();
}

std::string file_bytes(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The first bytes of the built-in prompts: enough for rows behind key 64, and quick.
std::vector<Prompt> short_prompts() {
  constexpr size_t kBytes = 80;
  std::vector<Prompt> prompts = built_in_prompts();
  for (Prompt& p : prompts) {
    p.text.resize(std::min(p.text.size(), kBytes));
  }
  return prompts;
}

// A model, its engine and the records that this process' tests share: they are made once.
struct Fixture {
  std::string model = testing::write_file("gate.gguf", testing::toy_model({.types = {TensorType::Q8_0}}).build());
  std::string record_path = model + ".record.json";
  std::string rows_path = rows_path_of(record_path);
  std::unique_ptr<Engine> engine = load(model);
  GateRecord record = make();

  GateRecord make() {
    Result<GateRecord> r = make_tolerance_record(*engine, short_prompts(), rows_path, {});
    EXPECT_TRUE(r.ok()) << r.status().text();
    EXPECT_TRUE(write_gate_record(record_path, r.value()).ok());
    return r.value();
  }

  void run_with(Configuration c) {
    c.threads = std::max(1, c.threads);
    EXPECT_TRUE(apply(c, *engine).ok());
  }
};

Fixture& fixture() {
  static Fixture f;
  f.run_with({});
  return f;
}

Verdict identity_with(const Configuration& c) {
  Fixture& f = fixture();
  f.run_with(c);
  const Result<IdentityReport> r = check_identity(*f.engine, f.record, {});
  f.run_with({});
  EXPECT_TRUE(r.ok()) << r.status().text();
  return r.ok() ? r.value().verdict : Verdict::kError;
}

ToleranceReport tolerance_with(const Configuration& c) {
  Fixture& f = fixture();
  f.run_with(c);
  const Result<ToleranceReport> r = check_tolerance(*f.engine, f.record, f.rows_path, {});
  f.run_with({});
  EXPECT_TRUE(r.ok()) << r.status().text();
  return r.ok() ? r.value() : ToleranceReport{};
}

TEST(IdentityGate, GivesNoFalseAlarmInTwentyRunsOfAgainstItself) {
  Fixture& f = fixture();
  for (int run = 0; run < 20; ++run) {
    EXPECT_EQ(identity_with({.kernel = run == 7 ? "cpu_fmha_portable" : "", .threads = run < 2 ? 3 - run : 1}),
              Verdict::kPass);
  }
  const Result<IdentityReport> r = check_identity(*f.engine, f.record, {});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.value().prompts.size(), built_in_prompts().size());
  for (const PromptIdentity& p : r.value().prompts) {
    EXPECT_EQ(p.tokens, kGreedyTokens);
    EXPECT_EQ(p.rows_equal, p.rows);
    EXPECT_GT(p.rows, kGreedyTokens);
  }
}

TEST(IdentityGate, FailsForFaultsAndForHarmlessOrders) {
  for (const char* behaviour : {"swapped_merge", "atomic", "bf16", "lane", "mask_edge", "tile", "group", "reverse"}) {
    EXPECT_EQ(identity_with(testing::faulty(behaviour)), Verdict::kFail) << behaviour;
  }
}

TEST(IdentityGate, NamesTheFirstRowThatDiffers) {
  Fixture& f = fixture();
  GateRecord record = f.record;
  record.prompts[3].logits_sha256[5] = std::string(64, '0');
  const Result<IdentityReport> r = check_identity(*f.engine, record, {});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.value().verdict, Verdict::kFail);
  EXPECT_EQ(r.value().prompts[3].first_position, 5);
  EXPECT_NE(r.value().summary.find("'cjk', position 5"), std::string::npos) << r.value().summary;
  EXPECT_TRUE(r.value().prompts[2].equal());
}

TEST(IdentityGate, FailsWithoutAnEvaluationUnderAnotherContract) {
  Fixture& f = fixture();
  GateRecord record = f.record;
  record.contract_id = "tessera-2/cpu-fma32/f32/d64";
  const Result<IdentityReport> r = check_identity(*f.engine, record, {});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.value().verdict, Verdict::kFail);
  EXPECT_TRUE(r.value().prompts.empty());
}

TEST(IdentityGate, RefusesAnotherModelOrKvTypeAndTooFewPrompts) {
  Fixture& f = fixture();
  const std::string other = testing::write_file("other.gguf", testing::toy_model({.seed = 2}).build());
  EXPECT_FALSE(check_identity(*load(other), f.record, {}).ok());
  EXPECT_FALSE(check_identity(*load(f.model, {.threads = 1, .kv_dtype = TESSERA_F16}), f.record, {}).ok());
  const std::vector<Prompt> seven(7, Prompt{"a", "a"});
  EXPECT_FALSE(make_gate_record(*f.engine, seven, {}).ok());
}

TEST(ToleranceGate, GivesNoFalseAlarmInTwentyRunsOfAgainstItself) {
  for (int run = 0; run < 20; ++run) {
    const ToleranceReport r = tolerance_with({.threads = run < 2 ? 3 - run : 1});
    EXPECT_EQ(r.verdict, Verdict::kPass) << r.summary;
    EXPECT_EQ(r.drift.rows_equal, r.drift.rows);
  }
}

TEST(ToleranceGate, PassesHarmlessOrders) {
  for (const char* behaviour : {"tile", "group", "reverse"}) {
    const ToleranceReport r = tolerance_with(testing::faulty(behaviour));
    EXPECT_EQ(r.verdict, Verdict::kPass) << behaviour << ": " << r.summary;
    EXPECT_LT(r.drift.rows_equal, r.drift.rows / 2);
    EXPECT_EQ(r.first_drifting_layer, -1);
  }
}

TEST(ToleranceGate, FailsForFaultsAndNamesTheFirstLayer) {
  for (const char* behaviour : {"bf16", "lane", "mask_edge", "stale_tail"}) {
    const ToleranceReport r = tolerance_with(testing::faulty(behaviour));
    EXPECT_EQ(r.verdict, Verdict::kFail) << behaviour << ": " << r.summary;
    EXPECT_EQ(r.first_drifting_layer, 0) << behaviour;
  }
}

TEST(ToleranceGate, LimitsComeFromTheControlsAndLiveInTheRecord) {
  const Result<GateRecord> read = read_gate_record(fixture().record_path);
  ASSERT_TRUE(read.ok()) << read.status().text();
  const ToleranceRecord& t = *read.value().tolerance;
  ASSERT_EQ(t.controls.size(), 2U);
  EXPECT_EQ(t.limits.max_all, 1.5 * std::max(t.controls[0].max_all, t.controls[1].max_all));
  EXPECT_GT(t.limits.rms, 0);
  EXPECT_GT(t.knife_edge, 0);
  EXPECT_EQ(t.layers.size(), static_cast<size_t>(testing::kToyLayers));
  EXPECT_EQ(t.limits.kl_max, fixture().record.tolerance->limits.kl_max) << "numbers survive the file exactly";
}

// A judge with hand-made figures: 200 rows, margins 1, a control whose deltas reach 0.01.
ToleranceReport judged(const std::function<void(Drift*)>& change) {
  ToleranceRecord t;
  t.limits = {.max_all = 1, .max_top = 1, .rms = 1, .p999 = 1, .kl_mean = 1, .kl_max = 1};
  t.knife_edge = 0.01;
  t.pairwise = {0.001, 0.002, 0.005, 0.01};
  t.layers = {1e-6, 1e-6};
  t.draws = 800;
  t.disagreements = 4;
  ToleranceReport r;
  r.drift.rows = 200;
  r.drift.margins.assign(200, 1.0);
  r.drift.draws = 800;
  r.drift.disagreements = 5;
  r.drift.layers = {1e-6, 1e-6};
  change(&r.drift);
  judge_tolerance(t, &r);
  return r;
}

TEST(ToleranceGate, ClassifiesFlipsByTheirMargin) {
  EXPECT_EQ(judged([](Drift*) {}).verdict, Verdict::kPass);
  const ToleranceReport edge = judged([](Drift* d) {
    d->margins[0] = 0.004;
    d->flips = {{.from = 1, .to = 2, .margin = 0.004, .delta = 0.005}};
  });
  EXPECT_EQ(edge.flips[0].kind, FlipKind::kKnifeEdge);
  EXPECT_DOUBLE_EQ(edge.expected_flips, 0.5);
  EXPECT_EQ(edge.verdict, Verdict::kPass) << edge.summary;
  const ToleranceReport drift =
      judged([](Drift* d) { d->flips = {{.from = 1, .to = 2, .margin = 0.02, .delta = 0.03}}; });
  EXPECT_EQ(drift.flips[0].kind, FlipKind::kKernelDrift);
  EXPECT_EQ(drift.verdict, Verdict::kFail);
}

TEST(ToleranceGate, FailsWhenTooManyKnifeEdgesFlip) {
  const ToleranceReport r = judged([](Drift* d) {
    d->flips.assign(6, {.from = 1, .to = 2, .margin = 0.009, .delta = 0.01});
    std::fill_n(d->margins.begin(), 6, 0.009);  // each flips with probability 1/4: 1.5 expected, P(>= 6) = 0.0045
  });
  EXPECT_EQ(r.verdict, Verdict::kFail) << r.summary;
}

TEST(ToleranceGate, FailsWhenSamplingDisagreesMoreThanTheControls) {
  EXPECT_EQ(judged([](Drift* d) { d->disagreements = 8; }).verdict, Verdict::kPass);
  EXPECT_EQ(judged([](Drift* d) { d->disagreements = 40; }).verdict, Verdict::kFail);
}

TEST(ToleranceGate, FailsClosed) {
  EXPECT_EQ(judged([](Drift* d) { d->rows_not_finite = 1; }).verdict, Verdict::kFail);
  EXPECT_EQ(judged([](Drift* d) { d->figures.rms = std::nan(""); }).verdict, Verdict::kFail);
  EXPECT_EQ(judged([](Drift* d) { d->rows = 0; }).verdict, Verdict::kFail);
  EXPECT_EQ(judged([](Drift* d) { d->margins.assign(200, 0.001); }).verdict, Verdict::kInconclusive);
}

TEST(EngineGates, NaNIsNeverAPassAndNeverARecord) {
  Fixture& f = fixture();
  f.run_with(testing::faulty("nan"));
  const Result<IdentityReport> identity = check_identity(*f.engine, f.record, {});
  const Result<ToleranceReport> tolerance = check_tolerance(*f.engine, f.record, f.rows_path, {});
  const Result<GateRecord> record = make_gate_record(*f.engine, short_prompts(), {});
  f.run_with({});
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(identity.value().verdict, Verdict::kFail);
  EXPECT_FALSE(identity.value().prompts[0].finite);
  ASSERT_TRUE(tolerance.ok());
  EXPECT_EQ(tolerance.value().verdict, Verdict::kFail);
  EXPECT_EQ(tolerance.value().drift.rows_not_finite, tolerance.value().drift.rows);
  EXPECT_FALSE(record.ok());
}

TEST(ToleranceGate, SeesNaNInOneLogitOfARow) {
  DriftMeter meter(0);
  const std::vector<float> good = {1, 2, 3};
  std::vector<float> bad = good;
  bad[0] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(meter.add(0, 0, good, bad).ok());
  EXPECT_EQ(meter.finish().rows_not_finite, 1);
}

TEST(ToleranceGate, MeasuresKnownDifferences) {
  DriftMeter meter(1);
  const std::vector<float> record = {0, 1, 2, 1};
  const std::vector<float> shifted = {5, 6, 7, 6};  // a constant: no difference at all
  ASSERT_TRUE(meter.add(0, 0, record, shifted).ok());
  const std::vector<float> other = {0, 1, 2, 5};  // D = (-1, -1, -1, 3); token 3 wins
  ASSERT_TRUE(meter.add(0, 1, record, other).ok());
  const std::vector<float> x = {3, 4};
  const std::vector<float> y = {3, 4.5};
  meter.add_layer(0, x, y);
  const Drift d = meter.finish();
  EXPECT_DOUBLE_EQ(d.figures.max_all, 3);
  EXPECT_DOUBLE_EQ(d.figures.rms, std::sqrt(12.0 / 8));
  EXPECT_DOUBLE_EQ(d.bias, -0.5);
  ASSERT_EQ(d.flips.size(), 1U);
  EXPECT_EQ(d.flips[0].from, 2);
  EXPECT_EQ(d.flips[0].to, 3);
  EXPECT_DOUBLE_EQ(d.flips[0].margin, 1);
  EXPECT_DOUBLE_EQ(d.flips[0].delta, 4);
  EXPECT_DOUBLE_EQ(d.layers[0], 0.1);
  EXPECT_DOUBLE_EQ(d.margins[0], 1);
  EXPECT_EQ(d.pairwise, std::vector<double>{0});
  // KL of softmax(0,1,2,1) from softmax(0,1,2,5): sum p (log p - log q) with the normalisers written out.
  const double zr = 1 + 2 * std::exp(1.0) + std::exp(2.0);
  const double zn = 1 + std::exp(1.0) + std::exp(2.0) + std::exp(5.0);
  EXPECT_NEAR(d.figures.kl_max, std::log(zn / zr) - 4 * std::exp(1.0) / zr, 1e-12);
}

TEST(GateRecord, IsRefusedWhenItWasTouched) {
  Fixture& f = fixture();
  const std::string bytes = file_bytes(f.record_path);
  const std::string path = testing::write_file("touched.json", bytes);
  EXPECT_TRUE(read_gate_record(path).ok());
  const auto write = [&](const std::string& text) { std::ofstream(path, std::ios::binary) << text; };
  for (const size_t at :
       {bytes.find("knife_edge") + 13, bytes.find("generated"), bytes.find("sha256") + 10, bytes.size() - 2}) {
    std::string other = bytes;
    other[at] = other[at] == '1' ? '2' : '1';
    write(other);
    EXPECT_FALSE(read_gate_record(path).ok()) << at;
  }
  for (const size_t length : {size_t{0}, size_t{1}, bytes.size() / 2, bytes.size() - 1}) {
    write(bytes.substr(0, length));
    EXPECT_FALSE(read_gate_record(path).ok()) << length;
  }
  write(bytes + " ");
  EXPECT_FALSE(read_gate_record(path).ok());
  EXPECT_FALSE(read_gate_record("/no/such/record").ok());
}

TEST(GateRecord, HasTheSameBytesWhenItIsMadeAgain) {
  Fixture& f = fixture();
  const std::string first = file_bytes(f.record_path);
  ASSERT_TRUE(write_gate_record(f.record_path, f.make()).ok());
  EXPECT_EQ(file_bytes(f.record_path), first);
}

TEST(GateRecord, TheRowsBesideItAreChecked) {
  Fixture& f = fixture();
  const std::string path = f.rows_path + ".damaged";
  std::string bytes = file_bytes(f.rows_path);
  const auto check = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return check_tolerance(*f.engine, f.record, path, {}).ok();
  };
  EXPECT_TRUE(check(bytes));
  EXPECT_FALSE(check(bytes.substr(0, bytes.size() - 4)));
  bytes[bytes.size() / 2] ^= 1;
  EXPECT_FALSE(check(bytes));
  std::filesystem::remove(path);
  EXPECT_FALSE(check_tolerance(*f.engine, f.record, path, {}).ok());
  GateRecord without = f.record;
  without.tolerance.reset();
  EXPECT_FALSE(check_tolerance(*f.engine, without, f.rows_path, {}).ok());
}

TEST(GateRecord, LeavesNothingBehindWhereItCannotBeWritten) {
  EXPECT_FALSE(write_gate_record("/no/such/folder/record.json", fixture().record).ok());
  EXPECT_FALSE(make_tolerance_record(*fixture().engine, built_in_prompts(), "/no/such/folder/rows", {}).ok());
}

}  // namespace
}  // namespace tessera
