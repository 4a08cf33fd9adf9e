// The tolerance gate: for changes that are meant to move bits (another order of summation), teacher-forced on the
// record's tokens so that one flip does not change all that follows. Thresholds come from controls that were run when
// the record was made, never from the run that is judged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "gate/drift.h"
#include "gate/identity.h"
#include "gate/record.h"
#include "gate/verdict.h"

namespace tessera {

// The record of make_gate_record(), the rows beside it, and the thresholds: two controls (control_attention.h) are run
// against the engine as it is. kInvalidArgument when a control moved no bit: there is nothing to calibrate with then.
Result<GateRecord> make_tolerance_record(Engine& engine, std::span<const Prompt> prompts, const std::string& rows_path,
                                         const OnPrompt& on_prompt);

// The rows of `record` live beside it.
inline std::string rows_path_of(const std::string& record_path) {
  return record_path + ".rows";
}

// One condition of the verdict.
struct ToleranceCheck {
  std::string name;
  double value = 0;
  double limit = 0;
  bool at_most = true;  // value <= limit passes; else value >= limit
  bool passed() const { return at_most ? value <= limit : value >= limit; }  // false for NaN
};

enum class FlipKind { kKnifeEdge, kKernelDrift };

struct JudgedFlip {
  Flip flip;
  FlipKind kind = FlipKind::kKernelDrift;
};

struct ToleranceReport {
  Verdict verdict = Verdict::kError;
  std::string summary;
  std::string record_contract_id;
  std::string contract_id;
  Drift drift;
  std::vector<ToleranceCheck> checks;
  std::vector<JudgedFlip> flips;
  double knife_edge = 0;
  int64_t decided_rows = 0;           // margin above the knife-edge: where a flip is never excused
  double expected_flips = 0;          // sum over rows of the share of the controls' pairwise deltas above the margin
  int64_t first_drifting_layer = -1;  // error above 4 times the controls'; -1: none
  double layer_error = 0;
  double layer_limit = 0;

  Metrics metrics() const;
};

// `record.tolerance` must be there (kInvalidArgument). Another contract identity is no obstacle.
Result<ToleranceReport> check_tolerance(Engine& engine, const GateRecord& record, const std::string& rows_path,
                                        const OnPrompt& on_prompt);

// The verdict over figures that are already there; check_tolerance() ends with it.
void judge_tolerance(const ToleranceRecord& limits, ToleranceReport* report);

}  // namespace tessera
