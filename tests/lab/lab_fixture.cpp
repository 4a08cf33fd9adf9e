#include "lab/lab_fixture.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

namespace tessera::lab {

LabTest::LabTest() {
  Settings settings;
  for (const char* gate : {kIdentity, kTolerance, kPerf}) {
    settings.gates[gate] = fmt::format("sh ./{}.sh", gate);
  }
  set_gate(kIdentity, Verdict::kPass);
  set_gate(kTolerance, Verdict::kPass, R"(, "flips": [])");
  set_perf(1.03, 1.02, 1.04);
  EXPECT_TRUE(Lab::init(folder(), settings).ok());
  Result<Lab> opened = Lab::open(folder(), "test", "/no/such/tessera");
  EXPECT_TRUE(opened.ok()) << opened.status().text();
  lab_.push_back(opened.value());
}

void LabTest::write(const std::filesystem::path& path, const std::string& text) const {
  std::ofstream(path, std::ios::binary) << text;
}

void LabTest::set_script(const std::string& gate, const std::string& script) const {
  write(root() / (gate + ".sh"), fmt::format("echo {} >> calls\n{}\n", gate, script));
}

void LabTest::set_gate(const std::string& gate, Verdict verdict, const std::string& more) const {
  set_script(gate,
             fmt::format(
                 R"(echo '{{"gate": "{}", "verdict": "{}", "summary": "as told", "metrics": {{"n": 33}}{}}}'; exit {})",
                 gate, verdict_name(verdict), more, static_cast<int>(verdict)));
}

void LabTest::set_perf(double ratio, double low, double high, double noise_floor) const {
  const bool faster = low > 1 + noise_floor;
  set_gate(
      kPerf, faster ? Verdict::kPass : Verdict::kFail,
      fmt::format(
          R"(, "ratio": {}, "interval": [{}, {}], "noise_floor": {}, "samples_a": [1, 1.01], "samples_b": [1.03, 1.04])",
          ratio, low, high, noise_floor));
}

std::string LabTest::calls() const {
  std::ifstream file(root() / "calls");
  std::string all;
  for (std::string line; std::getline(file, line);) {
    all += (all.empty() ? "" : " ") + line;
  }
  return all;
}

NewExperiment LabTest::question(const std::string& change_class) const {
  NewExperiment what;
  what.title = "KV staging: double buffering";
  what.hypothesis = "The next tile's copy hides behind this tile's products.";
  what.expected_gain_percent = 3;
  what.change_class = change_class;
  return what;
}

std::string LabTest::open(const std::string& change_class) const {
  const Result<Experiment> e = lab().create(question(change_class));
  EXPECT_TRUE(e.ok()) << e.status().text();
  return e.ok() ? e.value().name : "";
}

Attempt LabTest::attempt(const std::string& name) const {
  const Result<Experiment> e = lab().attempt(name, "Two buffers for K and V.", GateWatch{});
  EXPECT_TRUE(e.ok()) << e.status().text();
  return e.ok() ? e.value().attempts.back() : Attempt{};
}

}  // namespace tessera::lab
