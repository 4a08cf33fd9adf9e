#include "gate/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

constexpr int64_t kTokensPerCall = 61;  // a prime: a fault at the edge of a tile must not hide at the edge of a call

// A sequence that lives for one evaluation.
class Scratch {
 public:
  explicit Scratch(Engine& engine) : engine_(engine), id_(engine.new_sequence()) {}
  ~Scratch() { engine_.free_sequence(id_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  SequenceId id() const { return id_; }

 private:
  Engine& engine_;
  SequenceId id_;
};

// *go_on becomes false when on_row wants no more rows.
Status evaluate(Engine& engine, SequenceId id, std::span<const int32_t> tokens, const OnRow& on_row, bool* go_on) {
  const auto vocab = static_cast<size_t>(engine.config().vocab_size);
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size() && *go_on;) {
    const size_t n = std::min<size_t>(kTokensPerCall, tokens.size() - begin);
    const int64_t first = engine.length(id);
    const BatchItem item{id, tokens.subspan(begin, n), static_cast<int64_t>(n)};
    TESSERA_RETURN_IF_ERROR(engine.evaluate({&item, 1}, &logits));
    for (size_t r = 0; r < n && *go_on; ++r) {
      *go_on = on_row(first + static_cast<int64_t>(r), std::span<const float>(logits).subspan(r * vocab, vocab));
    }
    begin += n;
  }
  return {};
}

}  // namespace

int64_t greedy_token(std::span<const float> logits) {
  int64_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return -1;
    }
    if (best < 0 || logits[i] > logits[static_cast<size_t>(best)]) {
      best = static_cast<int64_t>(i);
    }
  }
  return best;
}

Status evaluate_rows(Engine& engine, const Sequence& tokens, const OnRow& on_row) {
  const Scratch sequence(engine);
  bool go_on = true;
  TESSERA_RETURN_IF_ERROR(evaluate(engine, sequence.id(), tokens.prompt, on_row, &go_on));
  for (size_t i = 0; i < tokens.forced.size() && go_on; ++i) {
    TESSERA_RETURN_IF_ERROR(evaluate(engine, sequence.id(), tokens.forced.subspan(i, 1), on_row, &go_on));
  }
  return {};
}

Status generate_rows(Engine& engine, std::span<const int32_t> prompt, int64_t count, std::vector<int32_t>* generated,
                     const OnRow& on_row) {
  const Scratch sequence(engine);
  generated->clear();
  int64_t next = -1;
  int64_t bad_position = -1;
  const OnRow remember = [&](int64_t position, std::span<const float> logits) {
    next = greedy_token(logits);
    bad_position = next < 0 ? position : -1;
    return next >= 0 && on_row(position, logits);
  };
  bool go_on = true;
  TESSERA_RETURN_IF_ERROR(evaluate(engine, sequence.id(), prompt, remember, &go_on));
  while (go_on && static_cast<int64_t>(generated->size()) < count) {
    generated->push_back(static_cast<int32_t>(next));
    TESSERA_RETURN_IF_ERROR(evaluate(engine, sequence.id(), {&generated->back(), 1}, remember, &go_on));
  }
  if (bad_position >= 0) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("logits: got NaN or infinity at position {}; allowed finite values; the model or a kernel "
                    "is broken (tessera gate identity with --with kernel=NAME tells which)",
                    bad_position));
  }
  return {};
}

}  // namespace tessera
