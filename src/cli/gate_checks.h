// Which options of a gate go together: an option without effect would let a gate pass on something else than was meant.
#pragma once

#include <CLI/CLI.hpp>

#include "base/status.h"

namespace tessera::cli {

// What --a and --b are for: --a alone, without a model; two attention kernels without a model, one of which has to be
// named; two configurations, with or without a model, which may be one (that measures noise).
enum class Pair { kAlone, kOfKernels, kAny };

// Of a parsed subcommand: no empty texts, nothing that only works with a model (--record, --write, ..) without one, or
// the other way round.
Status check_gate_options(const CLI::App& command, Pair pair);

}  // namespace tessera::cli
