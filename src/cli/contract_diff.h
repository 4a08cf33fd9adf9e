// tessera contract diff
#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

void add_contract_diff(CLI::App& contract, int* exit_code);

}  // namespace tessera::cli
