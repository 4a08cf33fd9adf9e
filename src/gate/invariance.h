// The invariance gate: one sequence of tokens is evaluated under many schedules, and every logits row must keep its
// bytes. A control that changes one bit of the cache must be noticed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace tessera {

struct InvarianceOptions {
  int64_t num_tokens = 576;       // length of the sequence, >= 8
  uint64_t seed = 1;              // of the neighbours and of the order in the batch
  bool negative_control = false;  // damage the cache in every schedule: the gate must then fail
  // Name of the schedule about to run, its index and the number of schedules. May be empty.
  std::function<void(const std::string&, size_t, size_t)> on_case = {};
};

struct InvarianceCase {
  std::string axis;          // "prefill chunk", "batch", ...
  std::string variant;       // "7 tokens"
  bool must_differ = false;  // the control
  int64_t rows = 0;          // logits rows compared
  int64_t rows_differing = 0;
  int64_t first_position = -1;  // of the first row that differs, and where in it
  int64_t first_token = -1;
  uint32_t reference_bits = 0;
  uint32_t other_bits = 0;
  double seconds = 0;
  int32_t threads = 0;             // what the engine said it runs with
  std::string forced_kernel = {};  // of attention or matrix products; empty: the registry's choice

  bool passed() const { return must_differ ? rows_differing > 0 : rows > 0 && rows_differing == 0; }
};

struct InvarianceReport {
  std::string contract_id;
  std::string reference_sha256;  // of the reference logits
  int64_t num_tokens = 0;
  std::vector<InvarianceCase> cases;

  // No case compared, or any failed: not passed.
  bool passed() const;
};

// Tokens that the engine must be able to hold: EngineOptions::cache_tokens.
int64_t invariance_cache_tokens(const InvarianceOptions& options);

// Runs every schedule on `tokens` (num_tokens of them). Leaves the engine with its cache reset.
Result<InvarianceReport> run_invariance(Engine& engine, std::span<const int32_t> tokens,
                                        const InvarianceOptions& options);

}  // namespace tessera
