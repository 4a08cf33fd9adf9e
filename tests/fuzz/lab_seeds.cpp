// First inputs of lab_fuzz: what each gate prints when it answers.  lab_seeds DIRECTORY
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("lab_seeds DIRECTORY\n", stderr);
    return 3;
  }
  const struct {
    char gate;
    char exit_code;
    const char* output;
  } seeds[] = {
      {0, 0, R"({"gate": "identity", "verdict": "pass", "summary": "same", "metrics": {"rows": 264, "nan": null}})"},
      {0, 1, R"({"gate": "identity", "verdict": "fail", "summary": "<script>\u001b[2J", "metrics": {"<b>": 1e-9}})"},
      {1, 0, R"({"gate": "tolerance", "verdict": "pass", "summary": "2 flips", "metrics": {"knife_edge": 0.01},
                 "checks": [{"name": "max", "value": 0.1, "at_most": 0.2, "verdict": "pass"}, {"name": "p", "at_least": 1}],
                 "flips": [{"position": 19, "token_a": {"token": 5, "text": " a"}, "token_b": 7, "margin": 0.004,
                            "class": "sampler knife-edge"},
                           {"position": 20, "token_a": "x", "margin": 0.5, "class": "kernel drift"}]})"},
      {2, 0, R"({"gate": "perf", "verdict": "pass", "summary": "faster", "ratio": 1.03, "interval": [1.02, 1.04],
                 "noise_floor": 0.005, "samples_a": [1, 1.5, 2e-3], "samples_b": [1.1, -0.0, 5e300], "unit": "s"})"},
      {2, 2, R"({"gate": "perf", "verdict": "inconclusive", "summary": "noisy"})"},
      {2, 3, R"({"gate": "perf", "verdict": "error", "summary": "no GPU"})"},
      {0, 0,
       R"({"schema": "tessera-lab-1", "events": [{"type": "opened", "previous": "", "digest": ""}], "head": ""})"},
  };
  int number = 0;
  for (const auto& seed : seeds) {
    std::ofstream file(std::filesystem::path(argv[1]) / ("seed_" + std::to_string(number++)), std::ios::binary);
    file << seed.gate << seed.exit_code << seed.output;
    if (!file.flush()) {
      std::fputs("lab_seeds: cannot write there\n", stderr);
      return 3;
    }
  }
  return 0;
}
