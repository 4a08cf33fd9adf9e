// libFuzzer target of the lab: what a gate prints, and what stands in a record's file.
//
// The first two bytes choose the gate and its exit code; the rest is the gate's output. Whatever it is: a pass needs
// exit code 0 and a JSON that says so, the record holds it and reads back, and the reports show it as text.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lab/gate_run.h"
#include "lab/report.h"
#include "records/canonical_json.h"

namespace {

using namespace tessera::lab;  // NOLINT(google-build-using-namespace)
using tessera::Json;

void require(bool holds, const char* property) {
  if (!holds) {
    std::fprintf(stderr, "violated: %s\n", property);
    std::abort();
  }
}

Record record_with(const GateRun& run) {
  const Json at = "2026-11-30T10:00:00Z";
  Record record;
  append_event(&record, {{"type", kFirstType},
                         {"at", at},
                         {"number", 1},
                         {"title", "t"},
                         {"hypothesis", "h"},
                         {"expected_gain_percent", 1.5},
                         {"change_class", kOrderChanging},
                         {"program", "p"},
                         {"gates", {{run.gate, run.command}}},
                         {"references", Json::array()},
                         {"subjects", Json::array()}});
  append_event(&record, {{"type", "attempt-started"},
                         {"at", at},
                         {"attempt", 1},
                         {"change", "c"},
                         {"commit", ""},
                         {"subjects", Json::array()}});
  append_event(&record, {{"type", "gate-finished"}, {"at", at}, {"attempt", 1}, {"run", to_json(run)}});
  return record;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) {
    return 0;
  }
  const char* const gates[] = {kIdentity, kTolerance, kPerf};
  CommandResult result;
  result.exit_code = data[1] % 5;
  result.output.assign(reinterpret_cast<const char*>(data) + 2, size - 2);
  result.stderr_tail = result.output.substr(0, 4096);
  const GateRun run = judge(gates[data[0] % 3], "command", result);
  require(run.verdict != Verdict::kPass || (result.exit_code == 0 && run.report["verdict"] == "pass"),
          "a pass without exit code 0 or without the JSON that says so");
  require(run.problem.empty() == (run.verdict != Verdict::kError), "an error without a reason");

  const Record record = record_with(run);
  const std::string text = record_text(record);
  const tessera::Result<Record> again = parse_record(text, "file");
  require(again.ok() && record_text(again.value()) == text, "a record that does not read back");
  const tessera::Result<Experiment> experiment = experiment_of(again.value(), "0001-t", "file");
  require(experiment.ok(), "a record that is no experiment");
  require(experiment.value().attempts[0].runs[0].verdict == run.verdict, "another verdict after reading back");
  const std::string html = report_html(experiment.value(), {});
  require(html.find("<script") == std::string::npos && html.find("<img") == std::string::npos, "HTML from a gate");
  (void)report_markdown(experiment.value(), {});

  (void)parse_record(result.output, "file");
  return 0;
}
