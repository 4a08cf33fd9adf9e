#include "gate/perf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera {
namespace {

constexpr double kError = 0.05;  // of an interval; shared among the works (Bonferroni)
constexpr int32_t kResamples = 2000;
constexpr size_t kFewestBlocks = 8;

using Run = std::function<Status(double*)>;

// x y y x: a drift of the machine that is linear in time cancels. The mean of the two log-ratios of y to x.
Status block(const Run& x, const Run& y, double* log_ratio, std::vector<double>* x_seconds,
             std::vector<double>* y_seconds) {
  double t[4] = {};
  TESSERA_RETURN_IF_ERROR(x(&t[0]));
  TESSERA_RETURN_IF_ERROR(y(&t[1]));
  TESSERA_RETURN_IF_ERROR(y(&t[2]));
  TESSERA_RETURN_IF_ERROR(x(&t[3]));
  for (const double seconds : t) {
    if (!(seconds > 0) || !std::isfinite(seconds)) {
      return Status(Code::kDevice, fmt::format("clock: got {} seconds for a run; allowed a positive time", seconds));
    }
  }
  *log_ratio = 0.5 * (std::log(t[1] / t[0]) + std::log(t[2] / t[3]));
  x_seconds->insert(x_seconds->end(), {t[0], t[3]});
  y_seconds->insert(y_seconds->end(), {t[1], t[2]});
  return {};
}

double percent(double log_ratio) {
  return 100 * std::expm1(log_ratio);
}

bool too_noisy(const PerfOptions& o, const PerfSeries& s) {
  return s.noise_floor > std::log1p(std::max(o.margin, kMostNoise));
}

PerfSeries mean_series(const std::vector<PerfSeries>& works) {
  PerfSeries all{.name = "all", .log_ratios = {}, .noise = {}, .a_seconds = {}, .b_seconds = {}, .interval = {}};
  for (size_t i = 0; !works.empty() && i < works.front().log_ratios.size(); ++i) {
    double ratio = 0;
    double noise = 0;
    for (const PerfSeries& w : works) {
      ratio += w.log_ratios[i] / static_cast<double>(works.size());
      noise += w.noise[i] / static_cast<double>(works.size());
    }
    all.log_ratios.push_back(ratio);
    all.noise.push_back(noise);
  }
  return all;
}

std::string summarize(const PerfOptions& o, const PerfReport& r) {
  std::string text = fmt::format("time of B over A: {:+.2f} % ({:+.2f} to {:+.2f} %), noise floor {:.2f} %, {} blocks",
                                 percent(r.all.median), percent(r.all.interval.low), percent(r.all.interval.high),
                                 percent(r.all.noise_floor), r.all.log_ratios.size());
  for (const PerfSeries& w : r.works) {
    if (r.works.size() > 1 && w.verdict == Verdict::kFail && o.expectation == PerfExpectation::kNotSlower) {
      text += fmt::format("; {} alone {:+.2f} %", w.name, percent(w.median));
      break;
    }
  }
  if (r.verdict == Verdict::kInconclusive) {
    text += r.all.log_ratios.size() < kFewestBlocks ? fmt::format("; at least {} blocks are needed", kFewestBlocks)
            : too_noisy(o, r.all)
                ? fmt::format("; a slowdown could hide in noise above {:.0f} %: give more blocks or a quieter machine",
                              100 * std::max(o.margin, kMostNoise))
                : "; the interval holds both answers: give more blocks or a quieter machine";
  }
  return text;
}

}  // namespace

void judge_perf(const PerfOptions& o, size_t tests, PerfSeries* s) {
  const double level = 1 - kError / static_cast<double>(std::max<size_t>(tests, 1));
  s->median = median(s->log_ratios);
  s->interval = bootstrap_median(s->log_ratios, level, kResamples, o.seed);
  const Interval noise = bootstrap_median(s->noise, level, kResamples, o.seed + 1);
  s->noise_floor = std::max(std::fabs(noise.low), std::fabs(noise.high));
  if (s->log_ratios.size() < kFewestBlocks || s->noise.size() < kFewestBlocks) {
    s->verdict = Verdict::kInconclusive;
    return;
  }
  if (o.expectation == PerfExpectation::kFaster) {
    s->verdict = s->interval.high < -s->noise_floor   ? Verdict::kPass
                 : s->interval.low >= -s->noise_floor ? Verdict::kFail
                                                      : Verdict::kInconclusive;
  } else {
    const double limit = std::max(s->noise_floor, std::log1p(o.margin));
    s->verdict = s->interval.low > limit     ? Verdict::kFail
                 : s->interval.high <= limit ? Verdict::kPass
                                             : Verdict::kInconclusive;
  }
  // What stands out from any noise holds all the same.
  if (too_noisy(o, *s) && std::max(s->interval.low, -s->interval.high) <= s->noise_floor) {
    s->verdict = Verdict::kInconclusive;
  }
}

Result<PerfReport> measure_perf(std::span<const PerfWork> works, const PerfOptions& o) {
  if (works.empty() || o.blocks < 1) {
    return Status(Code::kInvalidArgument, fmt::format("perf: got {} works and {} blocks; allowed at least one of each",
                                                      works.size(), o.blocks));
  }
  PerfReport report;
  for (const PerfWork& w : works) {
    report.works.emplace_back().name = w.name;
    double ignored = 0;
    for (int32_t i = 0; i < o.warm_up; ++i) {
      TESSERA_RETURN_IF_ERROR(w.a(&ignored));
      TESSERA_RETURN_IF_ERROR(w.b(&ignored));
    }
  }
  for (int32_t i = 0; i < o.blocks; ++i) {
    for (size_t k = 0; k < works.size(); ++k) {
      if (o.on_block) {
        o.on_block(works[k].name, static_cast<size_t>(i), static_cast<size_t>(o.blocks));
      }
      PerfSeries& s = report.works[k];
      std::vector<double> unused;
      TESSERA_RETURN_IF_ERROR(block(works[k].a, works[k].b, &s.log_ratios.emplace_back(), &s.a_seconds, &s.b_seconds));
      TESSERA_RETURN_IF_ERROR(block(works[k].a, works[k].a, &s.noise.emplace_back(), &unused, &unused));
    }
  }
  for (PerfSeries& s : report.works) {
    judge_perf(o, works.size(), &s);
  }
  report.all = mean_series(report.works);
  judge_perf(o, 1, &report.all);
  report.verdict = report.all.verdict;
  const bool one_slower = o.expectation == PerfExpectation::kNotSlower &&
                          std::any_of(report.works.begin(), report.works.end(),
                                      [](const PerfSeries& s) { return s.verdict == Verdict::kFail; });
  report.verdict = one_slower ? Verdict::kFail : report.verdict;
  report.summary = summarize(o, report);
  return report;
}

Metrics PerfReport::metrics() const {
  Metrics m = {{"median_log_ratio", all.median},
               {"log_ratio_low", all.interval.low},
               {"log_ratio_high", all.interval.high},
               {"noise_floor", all.noise_floor},
               {"time_ratio", std::exp(all.median)},
               {"speedup", std::exp(-all.median)},
               {"blocks", static_cast<double>(all.log_ratios.size())}};
  for (const PerfSeries& w : works) {
    m.emplace_back(w.name + ": a_median_seconds", median(w.a_seconds));
    m.emplace_back(w.name + ": b_median_seconds", median(w.b_seconds));
    m.emplace_back(w.name + ": median_log_ratio", w.median);
  }
  return m;
}

std::string why_busy(const DeviceState& s) {
  if (s.other_processes > 0) {
    return fmt::format("{} other processes hold the GPU", s.other_processes);
  }
  if (s.others > kMostOthers) {
    return fmt::format("others use {:.0f} % of it", 100 * s.others);
  }
  return "";
}

}  // namespace tessera
