// tessera gate identity: the greedy tokens and the bits of every logits row, against a record.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/gate_commands.h"
#include "cli/gate_model.h"
#include "gate/identity.h"

namespace tessera::cli {
namespace {

constexpr const char* kGate = "identity";

nlohmann::ordered_json to_json(const PromptIdentity& p) {
  nlohmann::ordered_json j;
  j["name"] = p.name;
  j["equal"] = p.equal();
  j["rows"] = p.rows;
  j["rows_equal"] = p.rows_equal;
  j["tokens"] = p.tokens;
  j["tokens_equal"] = p.tokens_equal;
  j["same_tokenization"] = p.same_tokenization;
  j["finite"] = p.finite;
  if (p.first_position >= 0) {
    j["first_row"] = {{"position", p.first_position}, {"record_sha256", p.wanted_sha256}, {"sha256", p.got_sha256}};
  }
  if (p.first_step >= 0) {
    j["first_token"] = {{"step", p.first_step}, {"record", p.wanted_token}, {"here", p.got_token}};
  }
  return j;
}

void print_text(const IdentityReport& r) {
  fmt::print("{:<14} {:>12} {:>12}  {}\n", "prompt", "rows equal", "tokens equal", "first difference");
  for (const PromptIdentity& p : r.prompts) {
    std::string first = p.equal() ? "" : !p.same_tokenization ? "text has other tokens than in the record; " : "";
    if (!p.finite) {
      first += fmt::format("NaN or infinity at position {}", p.first_position);
    } else if (p.first_position >= 0) {
      first += fmt::format("row of position {}", p.first_position);
    }
    if (p.first_step >= 0) {
      first +=
          fmt::format("; generated token {}: {} in the record, {} here", p.first_step, p.wanted_token, p.got_token);
    }
    fmt::print("{:<14} {:>12} {:>12}  {}\n", p.name, fmt::format("{}/{}", p.rows_equal, p.rows),
               fmt::format("{}/{}", p.tokens_equal, p.tokens), first);
  }
  fmt::print("\ncontract of the record {}\ncontract here          {}\n", r.record_contract_id, r.contract_id);
}

int write(const RecordGateOptions& o) {
  GateModel gate(kGate, o.model);
  if (const Status s = gate.load(); !s.ok()) {
    return gate_error(kGate, s, o.model.model.json);
  }
  Result<std::vector<Prompt>> prompts = gate.prompts();
  if (!prompts.ok()) {
    return gate_error(kGate, prompts.status(), o.model.model.json);
  }
  Result<GateRecord> record = make_gate_record(gate.engine(), prompts.value(), gate.on_prompt());
  gate.clear_progress();
  const Status status = record.ok() ? write_gate_record(o.model.record, record.value()) : record.status();
  if (!status.ok()) {
    return gate_error(kGate, status, o.model.model.json);
  }
  int64_t rows = 0;
  for (const PromptRecord& p : record.value().prompts) {
    rows += static_cast<int64_t>(p.logits_sha256.size());
  }
  return emit({.gate = kGate,
               .verdict = Verdict::kPass,
               .summary = fmt::format("wrote {}: {} prompts, {} logits rows of {} under {}", o.model.record,
                                      record.value().prompts.size(), rows, record.value().model_name,
                                      record.value().contract_id),
               .metrics = {{"prompts", static_cast<double>(record.value().prompts.size())},
                           {"rows", static_cast<double>(rows)}},
               .details = {{"record", o.model.record}, {"wrote", true}}},
              o.model.model.json);
}

int check(const RecordGateOptions& o) {
  Result<GateRecord> record = read_gate_record(o.model.record);
  if (!record.ok()) {
    return gate_error(kGate, record.status(), o.model.model.json);
  }
  GateModel gate(kGate, o.model);
  if (const Status s = gate.load(); !s.ok()) {
    return gate_error(kGate, s, o.model.model.json);
  }
  Result<IdentityReport> report = check_identity(gate.engine(), record.value(), gate.on_prompt());
  gate.clear_progress();
  if (!report.ok()) {
    return gate_error(kGate, report.status(), o.model.model.json);
  }
  const IdentityReport& r = report.value();
  GateOutput out{.gate = kGate, .verdict = r.verdict, .summary = r.summary, .metrics = r.metrics()};
  out.details["model"] = record.value().model_name;
  out.details["record"] = o.model.record;
  out.details["record_contract_id"] = r.record_contract_id;
  out.details["contract_id"] = r.contract_id;
  for (const PromptIdentity& p : r.prompts) {
    out.details["prompts"].push_back(to_json(p));
  }
  if (!o.model.model.json) {
    print_text(r);
  }
  return emit(out, o.model.model.json);
}

}  // namespace

void add_gate_identity(CLI::App& gate, int* exit_code) {
  add_record_gate(gate, exit_code,
                  {.name = kGate,
                   .description = "Greedy tokens and raw logits must have the record's bits",
                   .write_help = "make the record instead of checking it",
                   .write = write,
                   .check = check});
}

}  // namespace tessera::cli
