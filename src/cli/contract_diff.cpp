// tessera contract diff A B: the same bits or not, and the rule that differs.
#include "cli/contract_diff.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/contract_identity.h"
#include "records/canonical_json.h"

namespace tessera::cli {
namespace {

struct DiffOptions {
  std::string a;
  std::string b;
  bool json = false;
};

// What `contract show --json` prints, or any JSON with a contract_id: a gate's record or report, `run --json`.
Result<ContractDescription> read_description(const std::string& path) {
  Result<std::string> text = read_text_file(path);
  TESSERA_RETURN_IF_ERROR(text.status());
  Result<Json> parsed = parse_json(text.value(), path);
  TESSERA_RETURN_IF_ERROR(parsed.status());
  const Json& j = parsed.value();
  ContractDescription d;
  d.source = path;
  try {
    if (j.is_object() && j.contains("contract_id")) {
      Result<std::vector<IdentityPart>> parts = parse_contract_id(j.at("contract_id"));
      TESSERA_RETURN_IF_ERROR(parts.status());
      d.parts = std::move(parts).value();
      return d;
    }
    if (j.is_object() && j.contains("constants")) {
      d.version = j.at("contract");
      for (const Json& c : j.at("constants")) {
        d.constants[{c.at("scope"), c.at("name")}] = c.at("value");
      }
      return d;
    }
  } catch (const Json::exception&) {  // falls through to the sentence below
  }
  return Status(Code::kBadFile,
                fmt::format("{}: got something else; allowed what `tessera contract show --json` prints, "
                            "or JSON with a \"contract_id\"",
                            path));
}

Result<ContractDescription> describe(const std::string& text) {
  std::error_code ignored;
  if (std::filesystem::exists(text, ignored)) {
    return read_description(text);
  }
  Result<std::vector<IdentityPart>> parts = parse_contract_id(text);
  TESSERA_RETURN_IF_ERROR(parts.status());
  return ContractDescription{.source = text, .parts = parts.value(), .version = "", .constants = {}};
}

void print_text(const std::vector<ContractDifference>& differences) {
  if (differences.empty()) {
    fmt::print("the same bits: for equal inputs both promise equal bytes\n");
    return;
  }
  fmt::print("not the same bits\n\n{:<16} {:<36} {:<34} {}\n", "rule", "what", "A", "B");
  for (const ContractDifference& d : differences) {
    fmt::print("{:<16} {:<36} {:<34} {}\n", d.rule, d.what, d.a, d.b);
    if (!d.why.empty()) {
      fmt::print("{:<16} {}\n", "", d.why);
    }
  }
  fmt::print("\nThe rules are in docs/contract.md.\n");
}

int diff(const DiffOptions& o) {
  Result<ContractDescription> a = describe(o.a);
  if (!a.ok()) {
    return fail(a.status());
  }
  Result<ContractDescription> b = describe(o.b);
  if (!b.ok()) {
    return fail(b.status());
  }
  Result<std::vector<ContractDifference>> differences = contract_differences(a.value(), b.value());
  if (!differences.ok()) {
    return fail(differences.status());
  }
  const bool same = differences.value().empty();
  if (o.json) {
    nlohmann::ordered_json j;
    j["a"] = o.a;
    j["b"] = o.b;
    j["same_bits"] = same;
    j["differences"] = nlohmann::ordered_json::array();
    for (const ContractDifference& d : differences.value()) {
      j["differences"].push_back({{"rule", d.rule}, {"what", d.what}, {"a", d.a}, {"b", d.b}, {"why", d.why}});
    }
    fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print_text(differences.value());
  }
  return same ? kGood : kCheckFailed;
}

}  // namespace

void add_contract_diff(CLI::App& contract, int* exit_code) {
  auto o = std::make_shared<DiffOptions>();
  CLI::App* command = contract.add_subcommand(
      "diff", "The same bits or not, and the rule that differs; exit code 0 the same, 1 not, 3 bad input");
  command->add_option("A", o->a, "contract identity, or a JSON file with one or from `contract show --json`")
      ->required();
  command->add_option("B", o->b, "the other")->required();
  command->add_flag("--json", o->json, "one JSON object on stdout");
  command->callback([o, exit_code] { *exit_code = diff(*o); });
}

}  // namespace tessera::cli
