// What the performance gate times: a model's prefill and decoding, or attention kernels over a grid.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "gate/configuration.h"
#include "gate/kernel_run.h"
#include "gate/perf.h"

namespace tessera {

// "prefill" of `tokens` in one call, and "decode" of `decode_tokens` behind them, one call each; 0 leaves a work out.
// The engine and the configurations outlive the works.
std::vector<PerfWork> engine_works(Engine& engine, const Configuration& a, const Configuration& b,
                                   std::span<const int32_t> tokens, int64_t decode_tokens);

// A case per work, called as often as makes a sample of at least min_seconds. Cases that a configuration refuses are
// named in *refused instead. The works keep their memory; runners outlive them.
Result<std::vector<PerfWork>> kernel_works(KernelRunner& a, KernelRunner& b, std::span<const KernelCase> grid,
                                           double min_seconds, std::vector<std::string>* refused);

// Problems that are worth timing: prefill and decode at head dims 64 and 128.
std::vector<KernelCase> perf_grid(tessera_device device);

}  // namespace tessera
