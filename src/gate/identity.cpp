#include "gate/identity.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sha256.h"
#include "gate/rows.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

std::string hash_row(std::span<const float> logits) {
  return sha256_hex(std::as_bytes(logits));
}

Result<std::vector<int32_t>> tokenize(const Engine& engine, const Prompt& prompt) {
  Result<std::vector<TokenId>> tokens =
      engine.tokenizer().encode(prompt.text, {.add_special = true, .parse_special = false});
  TESSERA_RETURN_IF_ERROR(tokens.status());
  if (tokens.value().empty()) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("prompt '{}': got no token of this vocabulary; give a text that is not empty", prompt.name));
  }
  const auto needed = static_cast<int64_t>(tokens.value().size()) + kGreedyTokens;
  if (needed > engine.context()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("prompt '{}': got {} tokens with the generated ones; allowed the context's {}; give a "
                              "shorter text or a larger --context",
                              prompt.name, needed, engine.context()));
  }
  return std::vector<int32_t>(tokens.value().begin(), tokens.value().end());
}

Status check_prompt(Engine& engine, const PromptRecord& record, PromptIdentity* result) {
  result->name = record.name;
  result->rows = static_cast<int64_t>(record.logits_sha256.size());
  result->tokens = static_cast<int64_t>(record.generated.size());
  Result<std::vector<int32_t>> tokens = tokenize(engine, {record.name, record.text});
  TESSERA_RETURN_IF_ERROR(tokens.status());
  result->same_tokenization = tokens.value() == record.tokens;
  const auto prompt_rows = static_cast<int64_t>(record.tokens.size());
  const auto on_row = [&](int64_t position, std::span<const float> logits) {
    const int64_t token = greedy_token(logits);
    if (token < 0) {
      result->finite = false;
      result->first_position = result->first_position < 0 ? position : result->first_position;
      return false;
    }
    const std::string& wanted = record.logits_sha256[static_cast<size_t>(position)];
    const std::string got = hash_row(logits);
    if (got == wanted) {
      ++result->rows_equal;
    } else if (result->first_position < 0) {
      result->first_position = position;
      result->wanted_sha256 = wanted;
      result->got_sha256 = got;
    }
    const int64_t step = position - (prompt_rows - 1);
    if (step < 0 || step >= result->tokens) {
      return true;
    }
    const int64_t wanted_token = record.generated[static_cast<size_t>(step)];
    if (token != wanted_token) {
      result->first_step = step;
      result->wanted_token = wanted_token;
      result->got_token = token;
      return false;
    }
    ++result->tokens_equal;
    return true;
  };
  return evaluate_rows(engine, {record.tokens, record.generated}, on_row);
}

std::string summarize(const IdentityReport& r) {
  int64_t rows = 0;
  int64_t rows_equal = 0;
  int64_t tokens = 0;
  int64_t tokens_equal = 0;
  const PromptIdentity* first = nullptr;
  for (const PromptIdentity& p : r.prompts) {
    rows += p.rows;
    rows_equal += p.rows_equal;
    tokens += p.tokens;
    tokens_equal += p.tokens_equal;
    first = first == nullptr && !p.equal() ? &p : first;
  }
  std::string counts = fmt::format("{} of {} logits rows and {} of {} greedy tokens are the record's", rows_equal, rows,
                                   tokens_equal, tokens);
  if (first == nullptr) {
    return counts;
  }
  const char* what = !first->finite               ? "NaN or infinite logits"
                     : !first->same_tokenization  ? "the text has other tokens than in the record"
                     : first->first_position >= 0 ? "other bits"
                                                  : "another greedy token";
  return fmt::format("{}; first difference: prompt '{}'{}, {}", counts, first->name,
                     first->first_position >= 0 ? fmt::format(", position {}", first->first_position) : "", what);
}

}  // namespace

const std::vector<Prompt>& built_in_prompts() {
  static const std::vector<Prompt> prompts = {
      {"word", "Once"},
      {"sentence", "The river was low that summer, and the old bridge stood on dry stones."},
      {"code",
       "def merge(a, b):\n    out = []\n    while a and b:\n        out.append(a.pop(0) if a[0] < b[0] else b.pop(0))\n"
       "    return out + a + b\n\n\ndef sort(x):\n    if len(x) < 2:\n        return x\n    half = len(x) // 2\n    "
       "return"},
      {"cjk",
       "\xe4\xbb\x8a\xe6\x97\xa5\xe3\x81\xaf\xe5\xa4\xa9\xe6\xb0\x97\xe3\x81\x8c\xe8\x89\xaf\xe3\x81\x84\xe3\x80\x82"
       "\xe6\x98\x8e\xe5\xa4\xa9\xe4\xbc\x9a\xe4\xb8\x8b\xe9\x9b\xa8\xe5\x90\x97\xef\xbc\x9f"},
      {"numbers", "3.14159, 2.71828, 1.41421, 1.61803, 0.57721, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55,"},
      {"repetition", "tick tock tick tock tick tock tick tock tick tock tick tock tick tock tick tock tick tock"},
      {"list", "Things to carry up the hill:\n1. a rope\n2. two lamps\n3. bread and cheese\n4."},
      {"dialogue",
       "\"Did you see who laid the last tile?\" asked the mason.\n\"No,\" said the boy. \"There were many of them, and "
       "nobody kept count. When I came back after lunch the floor was whole, and I could not tell the first stone from "
       "the last.\"\n\"Good,\" said the mason. \"Then it is done as it should be. A floor that shows who worked on it, "
       "or in which order, or how many hands there were, has to be laid again.\"\nThe boy thought about this for a "
       "while. \"And if one stone is wrong?\"\n\""},
  };
  return prompts;
}

Result<GateRecord> make_gate_record(Engine& engine, std::span<const Prompt> prompts, const OnPrompt& on_prompt,
                                    const OnPromptRow& on_row) {
  if (prompts.size() < kFewestPrompts) {
    return Status(Code::kInvalidArgument, fmt::format("prompts: got {}; allowed at least {}; add some to the file",
                                                      prompts.size(), kFewestPrompts));
  }
  GateRecord record;
  record.tessera_version = tessera_version();
  record.model_name = engine.config().name;
  record.kv_type = kv_type_name(engine.cache().dtype());
  Result<std::string> id = engine.contract_id();
  TESSERA_RETURN_IF_ERROR(id.status());
  record.contract_id = id.value();
  Result<std::string> model = hash_model(engine);
  TESSERA_RETURN_IF_ERROR(model.status());
  record.model_sha256 = model.value();
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (on_prompt) {
      on_prompt(prompts[i].name, i, prompts.size());
    }
    PromptRecord p{
        .name = prompts[i].name, .text = prompts[i].text, .tokens = {}, .generated = {}, .logits_sha256 = {}};
    Result<std::vector<int32_t>> tokens = tokenize(engine, prompts[i]);
    TESSERA_RETURN_IF_ERROR(tokens.status());
    p.tokens = std::move(tokens).value();
    Status row_status;
    const auto remember = [&](int64_t position, std::span<const float> logits) {
      p.logits_sha256.push_back(hash_row(logits));
      row_status = on_row ? on_row(i, position, logits) : Status();
      return row_status.ok();
    };
    TESSERA_RETURN_IF_ERROR(generate_rows(engine, p.tokens, kGreedyTokens, &p.generated, remember));
    TESSERA_RETURN_IF_ERROR(row_status);
    record.prompts.push_back(std::move(p));
  }
  return record;
}

Metrics IdentityReport::metrics() const {
  int64_t rows = 0;
  int64_t rows_equal = 0;
  int64_t tokens = 0;
  int64_t tokens_equal = 0;
  for (const PromptIdentity& p : prompts) {
    rows += p.rows;
    rows_equal += p.rows_equal;
    tokens += p.tokens;
    tokens_equal += p.tokens_equal;
  }
  const auto equal = std::count_if(prompts.begin(), prompts.end(), [](const PromptIdentity& p) { return p.equal(); });
  return {{"prompts", static_cast<double>(prompts.size())},
          {"prompts_equal", static_cast<double>(equal)},
          {"rows", static_cast<double>(rows)},
          {"rows_equal", static_cast<double>(rows_equal)},
          {"tokens", static_cast<double>(tokens)},
          {"tokens_equal", static_cast<double>(tokens_equal)}};
}

Result<IdentityReport> check_identity(Engine& engine, const GateRecord& record, const OnPrompt& on_prompt) {
  Result<std::string> model = hash_model(engine);
  TESSERA_RETURN_IF_ERROR(model.status());
  TESSERA_RETURN_IF_ERROR(check_same_model(record, engine, model.value()));
  IdentityReport report;
  report.record_contract_id = record.contract_id;
  Result<std::string> id = engine.contract_id();
  TESSERA_RETURN_IF_ERROR(id.status());
  report.contract_id = id.value();
  if (report.contract_id != record.contract_id) {
    report.verdict = Verdict::kFail;
    report.summary = fmt::format("the contract is another one ({} in the record, {} here): no bit was compared",
                                 record.contract_id, report.contract_id);
    return report;
  }
  for (size_t i = 0; i < record.prompts.size(); ++i) {
    if (on_prompt) {
      on_prompt(record.prompts[i].name, i, record.prompts.size());
    }
    report.prompts.emplace_back();
    TESSERA_RETURN_IF_ERROR(check_prompt(engine, record.prompts[i], &report.prompts.back()));
  }
  const bool equal = !report.prompts.empty() && std::all_of(report.prompts.begin(), report.prompts.end(),
                                                            [](const PromptIdentity& p) { return p.equal(); });
  report.verdict = equal ? Verdict::kPass : Verdict::kFail;
  report.summary = summarize(report);
  return report;
}

}  // namespace tessera
