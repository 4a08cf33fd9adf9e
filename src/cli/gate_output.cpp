#include <fmt/format.h>

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

}  // namespace tessera::cli
