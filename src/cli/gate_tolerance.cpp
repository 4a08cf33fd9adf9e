// tessera gate tolerance: is what moved rounding, or a fault?
#include "gate/tolerance.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/gate_commands.h"
#include "cli/gate_model.h"

namespace tessera::cli {
namespace {

constexpr const char* kGate = "tolerance";

const char* kind_name(FlipKind kind) {
  return kind == FlipKind::kKnifeEdge ? "sampler knife-edge" : "kernel drift";
}

std::string token_text(const Tokenizer& tokenizer, int64_t token) {
  return std::string(tokenizer.token_text(static_cast<TokenId>(token)));
}

nlohmann::ordered_json details(const ToleranceReport& r, const GateRecord& record, const Tokenizer& tokenizer) {
  nlohmann::ordered_json j;
  j["model"] = record.model_name;
  j["record_contract_id"] = r.record_contract_id;
  j["contract_id"] = r.contract_id;
  j["checks"] = nlohmann::ordered_json::array();
  for (const ToleranceCheck& c : r.checks) {
    j["checks"].push_back({{"name", c.name},
                           {"value", c.value},
                           {c.at_most ? "at_most" : "at_least", c.limit},
                           {"verdict", c.passed() ? "pass" : "fail"}});
  }
  j["flips"] = nlohmann::ordered_json::array();
  for (const JudgedFlip& f : r.flips) {
    j["flips"].push_back({{"prompt", record.prompts[static_cast<size_t>(f.flip.prompt)].name},
                          {"position", f.flip.position},
                          {"token_a", {{"token", f.flip.from}, {"text", token_text(tokenizer, f.flip.from)}}},
                          {"token_b", {{"token", f.flip.to}, {"text", token_text(tokenizer, f.flip.to)}}},
                          {"margin", f.flip.margin},
                          {"delta", f.flip.delta},
                          {"knife_edge", r.knife_edge},
                          {"class", kind_name(f.kind)}});
  }
  j["layers"] = r.drift.layers;
  if (r.first_drifting_layer >= 0) {
    j["first_drifting_layer"] = {
        {"layer", r.first_drifting_layer}, {"relative_error", r.layer_error}, {"at_most", r.layer_limit}};
  }
  return j;
}

void print_text(const ToleranceReport& r, const GateRecord& record, const Tokenizer& tokenizer) {
  constexpr size_t kMostFlips = 20;
  fmt::print("{:<36} {:>12}    {:>12}  {}\n", "check", "value", "limit", "verdict");
  for (const ToleranceCheck& c : r.checks) {
    fmt::print("{:<36} {:>12.4g} {} {:>12.4g}  {}\n", c.name, c.value, c.at_most ? "<=" : ">=", c.limit,
               c.passed() ? "pass" : "FAIL");
  }
  fmt::print("\n{} rows, {} of them equal byte for byte; {} have a margin above the knife-edge {:.3g}\n", r.drift.rows,
             r.drift.rows_equal, r.decided_rows, r.knife_edge);
  fmt::print("flips: {} seen, {:.2f} expected; at T = 0.8 {} of {} draws are others\n", r.flips.size(),
             r.expected_flips, r.drift.disagreements, r.drift.draws);
  for (size_t i = 0; i < r.flips.size() && i < kMostFlips; ++i) {
    const JudgedFlip& f = r.flips[i];
    fmt::print("  {} {}: {} '{}' -> {} '{}', margin {:.3g}, moved by {:.3g}: {}\n",
               record.prompts[static_cast<size_t>(f.flip.prompt)].name, f.flip.position, f.flip.from,
               token_text(tokenizer, f.flip.from), f.flip.to, token_text(tokenizer, f.flip.to), f.flip.margin,
               f.flip.delta, kind_name(f.kind));
  }
  if (r.flips.size() > kMostFlips) {
    fmt::print("  and {} more (--json prints all)\n", r.flips.size() - kMostFlips);
  }
  if (r.first_drifting_layer >= 0) {
    fmt::print("first drifting layer: {} (relative error {:.3g}, four times the controls' is {:.3g})\n",
               r.first_drifting_layer, r.layer_error, r.layer_limit);
  }
  fmt::print("\ncontract of the record {}\ncontract here          {}\n", r.record_contract_id, r.contract_id);
}

int write(const RecordGateOptions& o) {
  const bool json = o.model.model.json;
  GateModel gate(kGate, o.model);
  if (const Status s = gate.load(); !s.ok()) {
    return gate_error(kGate, s, json);
  }
  Result<std::vector<Prompt>> prompts = gate.prompts();
  if (!prompts.ok()) {
    return gate_error(kGate, prompts.status(), json);
  }
  const std::string rows_path = rows_path_of(o.model.record);
  Result<GateRecord> record = make_tolerance_record(gate.engine(), prompts.value(), rows_path, gate.on_prompt());
  gate.clear_progress();
  const Status status = record.ok() ? write_gate_record(o.model.record, record.value()) : record.status();
  if (!status.ok()) {
    return gate_error(kGate, status, json);
  }
  const ToleranceRecord& t = *record.value().tolerance;
  return emit(
      {.gate = kGate,
       .verdict = Verdict::kPass,
       .summary = fmt::format("wrote {} and {}: {} rows of {}; the controls move logits by up to {:.3g} (top 64), "
                              "the limit is {:.3g}; knife-edge {:.3g}",
                              o.model.record, rows_path, t.rows, record.value().model_name, t.limits.max_top / t.factor,
                              t.limits.max_top, t.knife_edge),
       .metrics = {{"rows", static_cast<double>(t.rows)},
                   {"limit_max_top64", t.limits.max_top},
                   {"limit_max_all", t.limits.max_all},
                   {"knife_edge", t.knife_edge}},
       .details = {{"record", o.model.record}, {"wrote", true}}},
      json);
}

int check(const RecordGateOptions& o) {
  const bool json = o.model.model.json;
  Result<GateRecord> record = read_gate_record(o.model.record);
  if (!record.ok()) {
    return gate_error(kGate, record.status(), json);
  }
  GateModel gate(kGate, o.model);
  if (const Status s = gate.load(); !s.ok()) {
    return gate_error(kGate, s, json);
  }
  Result<ToleranceReport> report =
      check_tolerance(gate.engine(), record.value(), rows_path_of(o.model.record), gate.on_prompt());
  gate.clear_progress();
  if (!report.ok()) {
    return gate_error(kGate, report.status(), json);
  }
  const ToleranceReport& r = report.value();
  if (!json) {
    print_text(r, record.value(), gate.engine().tokenizer());
  }
  return emit({.gate = kGate,
               .verdict = r.verdict,
               .summary = r.summary,
               .metrics = r.metrics(),
               .details = details(r, record.value(), gate.engine().tokenizer())},
              json);
}

}  // namespace

void add_gate_tolerance(CLI::App& gate, int* exit_code) {
  add_record_gate(gate, exit_code,
                  {.name = kGate,
                   .description = "For changes of the order of sums: rounding, or a fault? Limits from controls",
                   .write_help = "make the record, FILE and FILE.rows (all logits), instead of checking it",
                   .write = write,
                   .check = check});
}

}  // namespace tessera::cli
