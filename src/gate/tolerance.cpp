#include "gate/tolerance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "gate/control_attention.h"
#include "gate/rows.h"
#include "gate/rows_file.h"
#include "gate/statistics.h"

namespace tessera {
namespace {

constexpr double kFactor = 1.5;           // thresholds over the largest control figure
constexpr double kLayerFactor = 4;        // a layer drifts when its error is this many times the controls'
constexpr double kKnifeEdgeShare = 0.99;  // of the controls' pairwise deltas
constexpr size_t kPairwiseQuantiles = 256;
constexpr double kRarest = 0.01;             // a count that is less probable than this fails
constexpr int64_t kFewestDecidedRows = 100;  // fewer rows with a clear winner say too little for a pass

// Collects every layer's output of the rows of the call in flight.
class LayerTap {
 public:
  explicit LayerTap(Engine& engine) : engine_(engine), hidden_(engine.config().hidden) {
    rows_.resize(static_cast<size_t>(engine.config().n_layers));
    engine.set_layer_observer([this](int64_t layer, std::span<const float> x) {
      if (layer == 0) {
        first_ = next_;
        next_ += static_cast<int64_t>(x.size()) / hidden_;
      }
      rows_[static_cast<size_t>(layer)].assign(x.begin(), x.end());
    });
  }
  ~LayerTap() { engine_.set_layer_observer({}); }
  LayerTap(const LayerTap&) = delete;
  LayerTap& operator=(const LayerTap&) = delete;

  void start_sequence() { next_ = 0; }

  std::span<const float> row(int64_t layer, int64_t position) const {
    return std::span<const float>(rows_[static_cast<size_t>(layer)])
        .subspan(static_cast<size_t>((position - first_) * hidden_), static_cast<size_t>(hidden_));
  }

 private:
  Engine& engine_;
  int64_t hidden_;
  int64_t first_ = 0;  // position of the first row held
  int64_t next_ = 0;
  std::vector<std::vector<float>> rows_;  // [layer] (rows, hidden)
};

// Evaluates the record's tokens and compares every row with the file's.
Result<Drift> measure(Engine& engine, const GateRecord& record, const RowsFile& rows, const std::string& what,
                      const OnPrompt& on_prompt) {
  const int64_t layers = engine.config().n_layers;
  LayerTap tap(engine);
  DriftMeter meter(layers);
  int64_t first_row = 0;
  for (size_t i = 0; i < record.prompts.size(); ++i) {
    const PromptRecord& p = record.prompts[i];
    if (on_prompt) {
      on_prompt(what + p.name, i, record.prompts.size());
    }
    tap.start_sequence();
    Status status;
    const auto on_row = [&](int64_t position, std::span<const float> logits) {
      const int64_t row = first_row + position;
      status = meter.add(static_cast<int64_t>(i), position, rows.logits(row), logits);
      for (int64_t layer = 0; layer < layers; ++layer) {
        meter.add_layer(layer, rows.layer(row, layer), tap.row(layer, position));
      }
      return status.ok();
    };
    TESSERA_RETURN_IF_ERROR(evaluate_rows(engine, {p.tokens, p.generated}, on_row));
    TESSERA_RETURN_IF_ERROR(status);
    first_row += static_cast<int64_t>(p.logits_sha256.size());
  }
  return meter.finish();
}

void raise(DriftFigures* to, const DriftFigures& by, double factor) {
  to->max_all = std::max(to->max_all, by.max_all * factor);
  to->max_top = std::max(to->max_top, by.max_top * factor);
  to->rms = std::max(to->rms, by.rms * factor);
  to->p999 = std::max(to->p999, by.p999 * factor);
  to->kl_mean = std::max(to->kl_mean, by.kl_mean * factor);
  to->kl_max = std::max(to->kl_max, by.kl_max * factor);
}

Status calibrate(Engine& engine, const GateRecord& record, const RowsFile& rows, const OnPrompt& on_prompt,
                 ToleranceRecord* t) {
  const std::pair<const char*, AttentionCalls> controls[] = {{"ascending fp32", control_attention_ascending()},
                                                             {"descending fp32", control_attention_descending()}};
  const AttentionCalls own = engine.attention();
  std::vector<double> pairwise;
  t->factor = kFactor;
  t->layers.assign(static_cast<size_t>(engine.config().n_layers), 0);
  for (const auto& [name, calls] : controls) {
    engine.set_attention(calls);
    Result<Drift> drift = measure(engine, record, rows, fmt::format("control {}: ", name), on_prompt);
    engine.set_attention(own);
    TESSERA_RETURN_IF_ERROR(drift.status());
    const Drift& d = drift.value();
    if (d.rows_not_finite > 0 || d.rows_equal == d.rows || d.pairwise.empty()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("control {}: got {} of {} rows equal and {} not finite; allowed rows that differ by "
                                "rounding; give prompts with more than one token",
                                name, d.rows_equal, d.rows, d.rows_not_finite));
    }
    t->control_names.emplace_back(name);
    t->controls.push_back(d.figures);
    raise(&t->limits, d.figures, kFactor);
    pairwise.insert(pairwise.end(), d.pairwise.begin(), d.pairwise.end());
    for (size_t i = 0; i < t->layers.size(); ++i) {
      t->layers[i] = std::max(t->layers[i], d.layers[i]);
    }
    t->draws += d.draws;
    t->disagreements += d.disagreements;
  }
  std::sort(pairwise.begin(), pairwise.end());
  t->knife_edge = quantile(pairwise, kKnifeEdgeShare);
  for (size_t i = 0; i < kPairwiseQuantiles; ++i) {
    const double q = (static_cast<double>(i) + 0.5) / static_cast<double>(kPairwiseQuantiles);
    t->pairwise.push_back(quantile(pairwise, q));
  }
  return {};
}

// P(K >= k) when the k + control disagreements fall on the draws of both arms alike: small when the new arm has more
// than its share.
double disagreement_tail(const ToleranceRecord& t, const Drift& d) {
  if (d.draws + t.draws == 0) {
    return 1;
  }
  return binomial_upper_tail(d.disagreements, d.disagreements + t.disagreements,
                             static_cast<double>(d.draws) / static_cast<double>(d.draws + t.draws));
}

void judge_flips(const ToleranceRecord& t, ToleranceReport* r) {
  r->knife_edge = t.knife_edge;
  for (const double margin : r->drift.margins) {
    r->decided_rows += margin > t.knife_edge ? 1 : 0;
    const auto above = t.pairwise.end() - std::upper_bound(t.pairwise.begin(), t.pairwise.end(), margin);
    r->expected_flips += static_cast<double>(above) / static_cast<double>(std::max<size_t>(t.pairwise.size(), 1));
  }
  for (const Flip& f : r->drift.flips) {
    r->flips.push_back({f, f.margin <= t.knife_edge ? FlipKind::kKnifeEdge : FlipKind::kKernelDrift});
  }
}

void find_layer(const ToleranceRecord& t, ToleranceReport* r) {
  for (size_t i = 0; i < r->drift.layers.size() && i < t.layers.size(); ++i) {
    const double limit = kLayerFactor * t.layers[i];
    if (!(r->drift.layers[i] <= limit)) {
      r->first_drifting_layer = static_cast<int64_t>(i);
      r->layer_error = r->drift.layers[i];
      r->layer_limit = limit;
      return;
    }
  }
}

std::string summarize(const ToleranceReport& r) {
  const DriftFigures& f = r.drift.figures;
  if (r.drift.rows_not_finite > 0) {
    return fmt::format("{} of {} rows have NaN or infinite logits", r.drift.rows_not_finite, r.drift.rows);
  }
  const auto drifts = std::count_if(r.flips.begin(), r.flips.end(),
                                    [](const JudgedFlip& j) { return j.kind == FlipKind::kKernelDrift; });
  const std::string flips =
      fmt::format("{} flips ({} knife-edge, {} kernel drift) where {:.2f} were expected", r.flips.size(),
                  static_cast<int64_t>(r.flips.size()) - drifts, drifts, r.expected_flips);
  if (r.verdict == Verdict::kInconclusive) {
    return fmt::format(
        "within the controls' limits, but only {} of {} rows have a winner above the knife-edge; at least "
        "{} are needed: give more or longer prompts",
        r.decided_rows, r.drift.rows, kFewestDecidedRows);
  }
  std::string text = fmt::format("{} of {} rows are equal, max |D| {:.3g} (top 64: {:.3g}), {}", r.drift.rows_equal,
                                 r.drift.rows, f.max_all, f.max_top, flips);
  for (const ToleranceCheck& c : r.checks) {
    if (!c.passed()) {
      text += fmt::format("; {} {:.3g} is {} {:.3g}", c.name, c.value, c.at_most ? "above" : "below", c.limit);
      break;
    }
  }
  if (r.first_drifting_layer >= 0 && r.verdict == Verdict::kFail) {
    text += fmt::format("; first drifting layer {}", r.first_drifting_layer);
  }
  return text;
}

}  // namespace

Result<GateRecord> make_tolerance_record(Engine& engine, std::span<const Prompt> prompts, const std::string& rows_path,
                                         const OnPrompt& on_prompt) {
  const ModelConfig& c = engine.config();
  ToleranceRecord t;
  RowsWriter writer;
  TESSERA_RETURN_IF_ERROR(writer.open(rows_path, c.vocab_size, c.n_layers, c.hidden));
  Result<GateRecord> made = Status(Code::kInternal, "no record");
  {
    LayerTap tap(engine);
    std::vector<float> layers;
    const auto start = [&](const std::string& name, size_t index, size_t count) {
      tap.start_sequence();
      if (on_prompt) {
        on_prompt(name, index, count);
      }
    };
    made = make_gate_record(engine, prompts, start, [&](size_t, int64_t position, std::span<const float> logits) {
      layers.clear();
      for (int64_t layer = 0; layer < c.n_layers; ++layer) {
        const std::span<const float> row = tap.row(layer, position);
        layers.insert(layers.end(), row.begin(), row.end());
      }
      return writer.append(logits, layers);
    });
  }
  TESSERA_RETURN_IF_ERROR(made.status());
  TESSERA_RETURN_IF_ERROR(writer.finish(&t.rows_sha256, &t.rows));
  GateRecord record = std::move(made).value();
  Result<RowsFile> rows = RowsFile::open(rows_path, t.rows_sha256, t.rows, c.vocab_size, c.n_layers, c.hidden);
  TESSERA_RETURN_IF_ERROR(rows.status());
  TESSERA_RETURN_IF_ERROR(calibrate(engine, record, rows.value(), on_prompt, &t));
  record.tolerance = std::move(t);
  return record;
}

Metrics ToleranceReport::metrics() const {
  Metrics m = {{"rows", static_cast<double>(drift.rows)},
               {"rows_equal", static_cast<double>(drift.rows_equal)},
               {"rows_not_finite", static_cast<double>(drift.rows_not_finite)},
               {"max_all", drift.figures.max_all},
               {"max_top64", drift.figures.max_top},
               {"rms", drift.figures.rms},
               {"p999", drift.figures.p999},
               {"kl_mean", drift.figures.kl_mean},
               {"kl_p99", drift.kl_p99},
               {"kl_max", drift.figures.kl_max},
               {"bias", drift.bias},
               {"knife_edge", knife_edge},
               {"decided_rows", static_cast<double>(decided_rows)},
               {"flips", static_cast<double>(flips.size())},
               {"expected_flips", expected_flips},
               {"disagreements_t08", static_cast<double>(drift.disagreements)},
               {"draws_t08", static_cast<double>(drift.draws)}};
  const int64_t same = drift.rows - drift.rows_not_finite - static_cast<int64_t>(flips.size());
  const Interval share = wilson(same, drift.rows);
  m.emplace_back("same_best_token_low", share.low);
  m.emplace_back("same_best_token_high", share.high);
  return m;
}

void judge_tolerance(const ToleranceRecord& t, ToleranceReport* r) {
  judge_flips(t, r);
  find_layer(t, r);
  const Drift& d = r->drift;
  const auto drifts = std::count_if(r->flips.begin(), r->flips.end(),
                                    [](const JudgedFlip& j) { return j.kind == FlipKind::kKernelDrift; });
  r->checks = {
      {"rows not finite", static_cast<double>(d.rows_not_finite), 0},
      {"flips above the knife-edge", static_cast<double>(drifts), 0},
      {"max |D|, top 64", d.figures.max_top, t.limits.max_top},
      {"max |D|, all", d.figures.max_all, t.limits.max_all},
      {"RMS of D", d.figures.rms, t.limits.rms},
      {"99.9 % of |D|", d.figures.p999, t.limits.p999},
      {"KL, mean", d.figures.kl_mean, t.limits.kl_mean},
      {"KL, largest", d.figures.kl_max, t.limits.kl_max},
      {"P(so many flips)", poisson_upper_tail(static_cast<int64_t>(d.flips.size()), r->expected_flips), kRarest, false},
      {"P(so many other draws at T = 0.8)", disagreement_tail(t, d), kRarest, false},
  };
  const bool good =
      d.rows > 0 && std::all_of(r->checks.begin(), r->checks.end(), [](const ToleranceCheck& c) { return c.passed(); });
  r->verdict = !good ? Verdict::kFail : r->decided_rows < kFewestDecidedRows ? Verdict::kInconclusive : Verdict::kPass;
  r->summary = summarize(*r);
}

Result<ToleranceReport> check_tolerance(Engine& engine, const GateRecord& record, const std::string& rows_path,
                                        const OnPrompt& on_prompt) {
  if (!record.tolerance.has_value()) {
    return Status(Code::kInvalidArgument,
                  "record: got one without thresholds; allowed one that `tessera gate tolerance --write` made");
  }
  Result<std::string> model = hash_model(engine);
  TESSERA_RETURN_IF_ERROR(model.status());
  TESSERA_RETURN_IF_ERROR(check_same_model(record, engine, model.value()));
  const ModelConfig& c = engine.config();
  Result<RowsFile> rows = RowsFile::open(rows_path, record.tolerance->rows_sha256, record.tolerance->rows, c.vocab_size,
                                         c.n_layers, c.hidden);
  TESSERA_RETURN_IF_ERROR(rows.status());
  ToleranceReport report;
  report.record_contract_id = record.contract_id;
  Result<std::string> id = engine.contract_id();
  TESSERA_RETURN_IF_ERROR(id.status());
  report.contract_id = id.value();
  Result<Drift> drift = measure(engine, record, rows.value(), "", on_prompt);
  TESSERA_RETURN_IF_ERROR(drift.status());
  report.drift = std::move(drift).value();
  judge_tolerance(*record.tolerance, &report);
  return report;
}

}  // namespace tessera
