// The identity gate: greedy tokens and the raw bits of every logits row, against a record. For changes that must not
// move a bit.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "gate/record.h"
#include "gate/verdict.h"

namespace tessera {

inline constexpr int64_t kGreedyTokens = 32;
inline constexpr size_t kFewestPrompts = 8;  // below, a record of the engine is refused

struct Prompt {
  std::string name;
  std::string text;
};

// A word, prose, code, CJK, numbers, repetition, a list, a dialogue.
const std::vector<Prompt>& built_in_prompts();

// Name of the prompt about to run, its index and the number of prompts. May be empty.
using OnPrompt = std::function<void(const std::string&, size_t, size_t)>;

// Evaluates the prompts and continues each greedily by kGreedyTokens. `on_row` (may be empty) also sees every row.
using OnPromptRow = std::function<Status(size_t prompt, int64_t position, std::span<const float> logits)>;
Result<GateRecord> make_gate_record(Engine& engine, std::span<const Prompt> prompts, const OnPrompt& on_prompt,
                                    const OnPromptRow& on_row = {});

struct PromptIdentity {
  std::string name;
  int64_t rows = 0;  // that the record has
  int64_t rows_equal = 0;
  int64_t tokens = 0;  // generated, of the record
  int64_t tokens_equal = 0;
  bool same_tokenization = true;
  bool finite = true;
  int64_t first_position = -1;  // of the first row that differs; and its hashes
  std::string wanted_sha256;
  std::string got_sha256;
  int64_t first_step = -1;  // of the first generated token that differs; and the tokens
  int64_t wanted_token = -1;
  int64_t got_token = -1;

  bool equal() const { return same_tokenization && finite && rows > 0 && rows_equal == rows && tokens_equal == tokens; }
};

struct IdentityReport {
  Verdict verdict = Verdict::kError;
  std::string summary;
  std::string record_contract_id;
  std::string contract_id;
  std::vector<PromptIdentity> prompts;

  Metrics metrics() const;
};

// Rows are compared up to the first generated token that differs: behind it, the two sequences are different ones.
// A record under another contract identity fails without an evaluation: equal bits are not promised then.
Result<IdentityReport> check_identity(Engine& engine, const GateRecord& record, const OnPrompt& on_prompt);

}  // namespace tessera
