// tessera contract: the constants that bits depend on, and whether two contracts give the same bits.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/contract_diff.h"
#include "contract/plan.h"
#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

int show(bool json) {
  const std::vector<ContractConstant> constants = contract_constants();
  if (json) {
    nlohmann::ordered_json j;
    j["contract"] = tessera_contract_version();
    for (const ContractConstant& c : constants) {
      j["constants"].push_back({{"scope", c.scope}, {"name", c.name}, {"value", c.value}});
    }
    fmt::print("{}\n", j.dump(2));
    return kGood;
  }
  fmt::print(
      "contract {}: results with the same identity and the same inputs have the same bytes\n\n{:<28} {:<28} {}\n",
      tessera_contract_version(), "scope", "constant", "value");
  for (const ContractConstant& c : constants) {
    fmt::print("{:<28} {:<28} {}\n", c.scope, c.name, c.value);
  }
  fmt::print("\nThe rules are in docs/contract.md.\n");
  return kGood;
}

}  // namespace

void add_contract(CLI::App& app, int* exit_code) {
  CLI::App* contract = app.add_subcommand("contract", "The numeric contract");
  contract->require_subcommand(1);
  CLI::App* command = contract->add_subcommand("show", "Its constants");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "one JSON object on stdout");
  command->callback([=] { *exit_code = show(*json); });
  add_contract_diff(*contract, exit_code);
}

}  // namespace tessera::cli
