// tessera gate invariance: do the logits of a model keep their bytes under every schedule?
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/gate_checks.h"
#include "cli/gate_commands.h"
#include "cli/gate_kernels.h"
#include "cli/model_options.h"
#include "cli/option_checks.h"
#include "gate/invariance.h"
#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

// What the gate reads when no text is given; repeated until there are enough tokens.
constexpr const char* kText =
    "A small tile is called a tessera. Laid one beside the other, tiles make a picture that does not depend on who "
    "laid "
    "them, in which order, or how many hands there were. 1, 2, 3, 8 and 17 workers; the same floor. def f(x): return "
    "x*2\n"
    "Caf\xc3\xa9, \xe6\x97\xa5\xe6\x9c\xac, 3.14159!\n";

struct GateOptions {
  ModelOptions model;
  KernelOptions kernels;
  InvarianceOptions gate;
  std::string text_file;
};

Result<std::vector<TokenId>> gate_tokens(const Tokenizer& tokenizer, const GateOptions& o) {
  std::string text = kText;
  if (!o.text_file.empty()) {
    Result<std::string> file = read_text_file(o.text_file);
    TESSERA_RETURN_IF_ERROR(file.status());
    text = std::move(file).value();
  }
  Result<std::vector<TokenId>> once = tokenizer.encode(text, {.add_special = true, .parse_special = false});
  TESSERA_RETURN_IF_ERROR(once.status());
  if (once.value().empty()) {
    return Status(Code::kInvalidArgument, "text: got no token of this vocabulary; give another text with --text-file");
  }
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < o.gate.num_tokens; ++i) {
    tokens.push_back(once.value()[static_cast<size_t>(i) % once.value().size()]);
  }
  return tokens;
}

nlohmann::ordered_json details(const InvarianceReport& r, const Engine& engine) {
  nlohmann::ordered_json j;
  j["model"] = engine.config().name;
  j["contract_id"] = r.contract_id;
  j["tokens"] = r.num_tokens;
  j["reference_logits_sha256"] = r.reference_sha256;
  for (const InvarianceCase& c : r.cases) {
    nlohmann::ordered_json k;
    k["axis"] = c.axis;
    k["variant"] = c.variant;
    k["must_differ"] = c.must_differ;
    k["rows"] = c.rows;
    k["rows_differing"] = c.rows_differing;
    if (c.rows_differing > 0) {
      k["first"] = {{"position", c.first_position},
                    {"token", c.first_token},
                    {"reference_bits", fmt::format("0x{:08x}", c.reference_bits)},
                    {"other_bits", fmt::format("0x{:08x}", c.other_bits)}};
    }
    k["seconds"] = c.seconds;
    k["verdict"] = c.passed() ? "pass" : "fail";
    j["cases"].push_back(std::move(k));
  }
  return j;
}

GateOutput output_of(const InvarianceReport& r, const Engine& engine) {
  size_t passed = 0;
  int64_t rows = 0;
  int64_t differing = 0;
  for (const InvarianceCase& c : r.cases) {
    passed += c.passed() ? 1 : 0;
    rows += c.must_differ ? 0 : c.rows;
    differing += c.must_differ ? 0 : c.rows_differing;
  }
  return {.gate = "invariance",
          .verdict = r.passed() ? Verdict::kPass : Verdict::kFail,
          .summary = r.passed() ? "every logits row kept its bytes under every schedule"
                                : fmt::format("{} of {} schedules did not do what they must; {} of {} rows differ",
                                              r.cases.size() - passed, r.cases.size(), differing, rows),
          .metrics = {{"schedules", static_cast<double>(r.cases.size())},
                      {"schedules_passed", static_cast<double>(passed)},
                      {"rows", static_cast<double>(rows)},
                      {"rows_differing", static_cast<double>(differing)}},
          .details = details(r, engine)};
}

void print_text(const InvarianceReport& r) {
  fmt::print("{:<14} {:<40} {:>6} {:>10}  {}\n", "axis", "schedule", "rows", "differing", "verdict");
  for (const InvarianceCase& c : r.cases) {
    fmt::print("{:<14} {:<40} {:>6} {:>10}  {}\n", c.axis, c.variant, c.rows, c.rows_differing,
               c.passed() ? (c.must_differ ? "pass (noticed)" : "pass") : "FAIL");
    if (!c.passed() && c.rows_differing > 0) {
      fmt::print("{:<14} first at position {}, token {}: reference 0x{:08x}, here 0x{:08x}\n", "", c.first_position,
                 c.first_token, c.reference_bits, c.other_bits);
    }
  }
  fmt::print("\n{} | {} tokens | reference logits sha256 {}\n", r.contract_id, r.num_tokens, r.reference_sha256);
}

int run(GateOptions& o) {
  double load_seconds = 0;
  const int64_t needed = invariance_cache_tokens(o.gate);
  Result<std::unique_ptr<Engine>> engine = load_engine(o.model, needed, &load_seconds);
  if (!engine.ok()) {
    return gate_error("invariance", engine.status(), o.model.json);
  }
  Result<std::vector<TokenId>> tokens = gate_tokens(engine.value()->tokenizer(), o);
  if (!tokens.ok()) {
    return gate_error("invariance", tokens.status(), o.model.json);
  }
  ProgressLine line("gate", !o.model.json);
  o.gate.on_case = [&line](const std::string& name, size_t index, size_t count) {
    line.update(static_cast<double>(index) / static_cast<double>(count), name);
  };
  Result<InvarianceReport> report = run_invariance(*engine.value(), tokens.value(), o.gate);
  line.clear();
  if (!report.ok()) {
    return gate_error("invariance", report.status(), o.model.json);
  }
  if (!o.model.json) {
    print_text(report.value());
  }
  return emit(output_of(report.value(), *engine.value()), o.model.json);
}

}  // namespace

void add_gate_invariance(CLI::App& gate, int* exit_code) {
  auto o = std::make_shared<GateOptions>();
  CLI::App* command = gate.add_subcommand("invariance", "Logits must keep their bytes under every schedule");
  o->model.add_to(*command);
  command->add_option("--tokens", o->gate.num_tokens, "length of the sequence")
      ->capture_default_str()
      ->check(CLI::Range(48, 4096));
  command->add_option("--gate-seed", o->gate.seed, "seed of the random neighbours")
      ->capture_default_str()
      ->check(whole_number<uint64_t>(0));
  command->add_option("--text-file", o->text_file, "text to evaluate instead of the built-in one");
  command->add_flag("--negative-control", o->gate.negative_control,
                    "flip one bit of the cache in every schedule: the gate must then fail");
  command->get_option("--model")->required(false);
  o->kernels.add_to(*command, false);
  command->callback([o, exit_code, command] {
    if (const Status s = check_gate_options(*command, Pair::kAlone); !s.ok()) {
      *exit_code = gate_error("invariance", s, o->model.json);
      return;
    }
    *exit_code = o->model.model.empty() ? run_kernel_gate("invariance", o->kernels, o->model.json) : run(*o);
  });
}

}  // namespace tessera::cli
