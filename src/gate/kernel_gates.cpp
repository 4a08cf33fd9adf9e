#include "gate/kernel_gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/numeric_types.h"
#include "gate/case_reference.h"

namespace tessera {
namespace {

constexpr int kRepeats = 3;
constexpr double kRmsFactor = 1.5;
constexpr double kMaxFactor = 3;

// What is wrong with running this case at all: kOk, kUnsupported (the case is skipped and counted), or an error.
bool refused(const Status& status, KernelGateCase* result) {
  if (status.code() != Code::kUnsupported) {
    return false;
  }
  result->refused = status.text();
  result->verdict = Verdict::kInconclusive;
  return true;
}

// Rows [sequence, token] of `part`, which is a view of the case whose whole output is `whole`.
void compare(const KernelCase& c, const KernelOutput& whole, const KernelOutput& part, const CaseTensors& view,
             KernelGateCase* result) {
  const size_t row_bytes = whole.o.size() / static_cast<size_t>(c.rows());
  for (int64_t b = 0; b < view.sequences(); ++b) {
    for (int64_t t = 0; t < view.tokens(); ++t) {
      for (int64_t h = 0; h < c.heads_q; ++h) {
        const auto mine = static_cast<size_t>((b * view.tokens() + t) * c.heads_q + h);
        const auto wanted =
            static_cast<size_t>(((view.first_sequence() + b) * c.seqlen_q + view.first_token() + t) * c.heads_q + h);
        ++result->rows;
        if (std::memcmp(whole.o.data() + wanted * row_bytes, part.o.data() + mine * row_bytes, row_bytes) == 0 &&
            std::memcmp(&whole.lse[wanted], &part.lse[mine], sizeof(float)) == 0) {
          continue;
        }
        if (result->rows_differing++ == 0) {
          result->first_sequence = view.first_sequence() + b;
          result->first_token = view.first_token() + t;
          result->first_head = h;
        }
      }
    }
  }
}

void finish(const std::string& good, KernelGateReport* r) {
  size_t judged = 0;
  size_t failed = 0;
  const KernelGateCase* first = nullptr;
  for (const KernelGateCase& c : r->cases) {
    judged += c.refused.empty() ? 1 : 0;
    failed += c.verdict == Verdict::kFail ? 1 : 0;
    first = first == nullptr && c.verdict == Verdict::kFail ? &c : first;
  }
  const size_t skipped = r->cases.size() - judged;
  const std::string note = skipped > 0 ? fmt::format("; {} of {} problems were refused", skipped, r->cases.size()) : "";
  r->verdict = failed > 0 ? Verdict::kFail : judged == 0 ? Verdict::kInconclusive : Verdict::kPass;
  if (judged == 0) {
    r->summary = fmt::format("no kernel took any of the {} problems: {}", r->cases.size(),
                             r->cases.empty() ? "the grid is empty" : r->cases.front().refused);
  } else if (failed > 0) {
    r->summary = fmt::format("{} of {} comparisons failed, first: {}{}", failed, judged, first->name, note);
  } else {
    r->summary = fmt::format("{} in all {} comparisons{}", good, judged, note);
  }
}

Status describe(KernelRunner& runner, const KernelCase& c, std::string* id) {
  if (id->empty()) {
    Result<std::string> text = runner.contract_id(c);
    TESSERA_RETURN_IF_ERROR(text.status());
    *id = text.value();
  }
  return {};
}

double widen(tessera_dtype dtype, const std::vector<std::byte>& bytes, size_t i) {
  if (dtype == TESSERA_F32) {
    float value = 0;
    std::memcpy(&value, bytes.data() + 4 * i, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
  return dtype == TESSERA_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

struct Errors {
  double max = 0;
  double rms = 0;
  double lse = 0;
};

Errors errors_of(const CaseRows& exact, const std::vector<double>& o, const std::vector<double>& lse) {
  Errors e;
  double squares = 0;
  const size_t dim = o.size() / lse.size();
  for (size_t i = 0; i < o.size(); ++i) {
    const double error = std::fabs(o[i] - exact.o[i]) / exact.scale[i / dim];
    // NaN is an error without bound; std::max would lose it.
    e.max = error <= e.max ? e.max : std::isnan(error) ? HUGE_VAL : error;
    squares += error * error;
  }
  for (size_t i = 0; i < lse.size(); ++i) {
    const double error = lse[i] == exact.lse[i] ? 0 : std::fabs(lse[i] - exact.lse[i]);
    e.lse = error <= e.lse ? e.lse : std::isnan(error) ? HUGE_VAL : error;
  }
  e.rms = std::isnan(squares) ? HUGE_VAL : std::sqrt(squares / static_cast<double>(o.size()));
  return e;
}

Errors errors_of(const CaseRows& exact, const KernelCase& c, const KernelOutput& out) {
  std::vector<double> o(exact.o.size());
  for (size_t i = 0; i < o.size(); ++i) {
    o[i] = widen(c.o_dtype(), out.o, i);
  }
  return errors_of(exact, o, {out.lse.begin(), out.lse.end()});
}

void judge_errors(const KernelCase& c, const KernelOutput& a, const KernelOutput& b, KernelGateCase* result) {
  const CaseRows exact = reference_rows(c, SumOrder::kExact);
  Errors control = errors_of(exact, c, a);
  for (const SumOrder order : {SumOrder::kAscending, SumOrder::kDescending}) {
    const CaseRows rows = reference_rows(c, order);
    const Errors e = errors_of(exact, rows.o, rows.lse);
    control = {std::max(control.max, e.max), std::max(control.rms, e.rms), std::max(control.lse, e.lse)};
  }
  const Errors mine = errors_of(exact, c, b);
  // One half unit in the last place is always allowed: a control may have been lucky (one key has no sum).
  const double half_ulp = c.o_dtype() == TESSERA_F32 ? 0x1p-24 : c.o_dtype() == TESSERA_F16 ? 0x1p-11 : 0x1p-8;
  result->rows = c.rows();
  result->error_max = mine.max;
  result->error_rms = mine.rms;
  result->lse_max = mine.lse;
  result->limit_max = kMaxFactor * std::max(control.max, half_ulp);
  result->limit_rms = kRmsFactor * std::max(control.rms, half_ulp / 2);
  result->limit_lse = kMaxFactor * std::max(control.lse, 0x1p-22);
  const bool good = std::isfinite(control.max) && mine.max <= result->limit_max && mine.rms <= result->limit_rms &&
                    mine.lse <= result->limit_lse;
  result->verdict = good ? Verdict::kPass : Verdict::kFail;
}

struct Variant {
  std::string name;
  CaseView view;
  int32_t threads = 0;
};

std::vector<Variant> variants_of(const KernelCase& c, bool on_cpu) {
  std::vector<Variant> all = {{"again", {}}, {"again", {}}};
  for (const int32_t threads : {2, 3}) {
    if (on_cpu) {
      all.push_back({fmt::format("{} threads", threads), {}, threads});
    }
  }
  for (int64_t b = 0; b < c.batch && c.batch > 1; ++b) {
    all.push_back({fmt::format("sequence {} alone", b), {.first_sequence = b, .sequences = 1}});
  }
  if (c.seqlen_q > 1) {
    for (const int64_t t : {int64_t{0}, c.seqlen_q / 2, c.seqlen_q - 1}) {
      all.push_back({fmt::format("token {} alone", t), {.first_token = t, .tokens = 1}});
    }
    all.push_back({"second half of the tokens", {.first_token = c.seqlen_q / 2}});
  }
  for (const int64_t page : {0, 16, 64}) {
    if (page != c.page_size) {
      all.push_back({page == 0 ? "no pages" : fmt::format("pages of {}", page), {.page_size = page}});
    }
  }
  return all;
}

// What of a problem's two outputs decides; the verdict goes into the last.
using JudgePair = std::function<Status(const KernelCase&, const KernelOutput&, const KernelOutput&, KernelGateCase*)>;

// Runs both on every problem; one that either refuses is no part of the verdict.
Result<KernelGateReport> compare_pair(KernelRunner& a, KernelRunner& b, std::span<const KernelCase> grid,
                                      const OnCase& on_case, const JudgePair& judge, const char* passed) {
  KernelGateReport report;
  for (size_t i = 0; i < grid.size(); ++i) {
    const KernelCase& c = grid[i];
    if (on_case) {
      on_case(c.name, i, grid.size());
    }
    KernelGateCase& result = report.cases.emplace_back();
    result.name = c.name;
    Result<KernelOutput> of_a = a.run(c, {});
    Result<KernelOutput> of_b = b.run(c, {});
    if (refused(of_a.status(), &result) || refused(of_b.status(), &result)) {
      continue;
    }
    TESSERA_RETURN_IF_ERROR(of_a.status());
    TESSERA_RETURN_IF_ERROR(of_b.status());
    TESSERA_RETURN_IF_ERROR(describe(a, c, &report.contract_a));
    TESSERA_RETURN_IF_ERROR(describe(b, c, &report.contract_b));
    TESSERA_RETURN_IF_ERROR(judge(c, of_a.value(), of_b.value(), &result));
  }
  finish(passed, &report);
  return report;
}

}  // namespace

Metrics KernelGateReport::metrics() const {
  double judged = 0;
  double failed = 0;
  double rows = 0;
  double differing = 0;
  double worst = 0;
  for (const KernelGateCase& c : cases) {
    judged += c.refused.empty() ? 1 : 0;
    failed += c.verdict == Verdict::kFail ? 1 : 0;
    rows += static_cast<double>(c.rows);
    differing += static_cast<double>(c.rows_differing);
    worst = c.limit_rms > 0 ? std::max(worst, c.error_rms / c.limit_rms) : worst;
  }
  return {{"comparisons", judged},
          {"failed", failed},
          {"refused", static_cast<double>(cases.size()) - judged},
          {"rows", rows},
          {"rows_differing", differing},
          {"worst_rms_over_limit", worst}};
}

Result<KernelGateReport> kernel_identity(KernelRunner& a, KernelRunner& b, std::span<const KernelCase> grid,
                                         const OnCase& on_case) {
  const auto judge = [&b](const KernelCase& c, const KernelOutput& wanted, const KernelOutput& got,
                          KernelGateCase* result) -> Status {
    compare(c, wanted, got, CaseTensors(c, {}), result);
    for (int repeat = 1; repeat < kRepeats; ++repeat) {
      Result<KernelOutput> again = b.run(c, {});
      TESSERA_RETURN_IF_ERROR(again.status());
      result->repeatable = result->repeatable && again.value() == got;
    }
    if (!result->repeatable) {
      result->name += " (B differs from itself)";
    }
    result->verdict = result->rows_differing == 0 && result->repeatable ? Verdict::kPass : Verdict::kFail;
    return {};
  };
  return compare_pair(a, b, grid, on_case, judge, "B's bytes are A's");
}

Result<KernelGateReport> kernel_invariance(KernelRunner& a, std::span<const KernelCase> grid, const OnCase& on_case) {
  KernelGateReport report;
  for (size_t i = 0; i < grid.size(); ++i) {
    const KernelCase& c = grid[i];
    if (on_case) {
      on_case(c.name, i, grid.size());
    }
    Result<KernelOutput> whole = a.run(c, {});
    KernelGateCase unsupported{.name = c.name, .refused = ""};
    if (refused(whole.status(), &unsupported)) {
      report.cases.push_back(unsupported);
      continue;
    }
    TESSERA_RETURN_IF_ERROR(whole.status());
    TESSERA_RETURN_IF_ERROR(describe(a, c, &report.contract_a));
    for (const Variant& variant : variants_of(c, a.space().device() == TESSERA_DEVICE_CPU)) {
      KernelGateCase& result = report.cases.emplace_back();
      result.name = c.name + ": " + variant.name;
      if (variant.threads > 0) {
        a.set_threads(variant.threads);
      }
      Result<KernelOutput> part = a.run(c, variant.view);
      if (variant.threads > 0) {
        a.set_threads(std::max(1, a.configuration().threads));
      }
      if (refused(part.status(), &result)) {
        continue;
      }
      TESSERA_RETURN_IF_ERROR(part.status());
      compare(c, whole.value(), part.value(), CaseTensors(c, variant.view), &result);
      result.verdict = result.rows_differing == 0 && result.rows > 0 ? Verdict::kPass : Verdict::kFail;
    }
  }
  finish("every row kept its bytes", &report);
  return report;
}

Result<KernelGateReport> kernel_tolerance(KernelRunner& a, KernelRunner& b, std::span<const KernelCase> grid,
                                          const OnCase& on_case) {
  const auto judge = [](const KernelCase& c, const KernelOutput& control, const KernelOutput& got,
                        KernelGateCase* result) -> Status {
    judge_errors(c, control, got, result);
    return {};
  };
  return compare_pair(a, b, grid, on_case, judge, "B is as close to float64 as the controls");
}

}  // namespace tessera
