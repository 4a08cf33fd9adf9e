#include <fmt/format.h>

#include <string_view>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/gate_commands.h"
#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

static_assert(kGood == static_cast<int>(Verdict::kPass) && kCheckFailed == static_cast<int>(Verdict::kFail) &&
              kInconclusive == static_cast<int>(Verdict::kInconclusive) &&
              kBadInput == static_cast<int>(Verdict::kError));

void print_json(const GateOutput& o) {
  nlohmann::ordered_json j;
  j["gate"] = o.gate;
  j["verdict"] = verdict_name(o.verdict);
  j["summary"] = o.summary;
  j["metrics"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : o.metrics) {
    j["metrics"][name] = value;
  }
  j["tessera"] = tessera_version();
  j.update(o.details);
  fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

int emit(const GateOutput& output, bool json) {
  if (json) {
    print_json(output);
  } else {
    const char* word = output.verdict == Verdict::kPass   ? "PASS"
                       : output.verdict == Verdict::kFail ? "FAIL"
                                                          : "INCONCLUSIVE";
    fmt::print("{}: {}\n", word, output.summary);
  }
  return static_cast<int>(output.verdict);
}

int gate_error(const std::string& gate, const Status& status, bool json) {
  if (json) {
    print_json({.gate = gate, .verdict = Verdict::kError, .summary = status.text(), .metrics = {}});
  }
  return fail(status);
}

// Reads the words themselves: after a usage error nothing says how far the parser came, --json may stand behind it.
void print_gate_usage_error(int argc, const char* const* argv, const std::string& sentence) {
  bool json = false;
  std::string_view commands[2];
  size_t named = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    json = json || word == "--json";
    if (named < 2 && !word.starts_with('-')) {
      commands[named++] = word;
    }
  }
  if (json && commands[0] == "gate") {
    print_json({.gate = std::string(commands[1]), .verdict = Verdict::kError, .summary = sentence, .metrics = {}});
  }
}

}  // namespace tessera::cli
