// The performance gate: two ways to do the same work, timed in turns in one process. A number from another day, machine
// or process is never compared with.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "gate/device_state.h"
#include "gate/statistics.h"
#include "gate/verdict.h"

namespace tessera {

// One piece of work, done once by A and once by B; each call returns the seconds that it took.
struct PerfWork {
  std::string name;
  std::function<Status(double* seconds)> a;
  std::function<Status(double* seconds)> b;
};

enum class PerfExpectation { kNotSlower, kFaster };

struct PerfOptions {
  PerfExpectation expectation = PerfExpectation::kNotSlower;
  double margin = 0.01;  // a slowdown up to this share is none; the noise floor counts if it is larger
  int32_t blocks = 20;   // of A B B A and of A A A A
  int32_t warm_up = 2;   // runs of each first
  uint64_t seed = 1;     // of the bootstrap
  std::function<void(const std::string&, size_t, size_t)> on_block = {};
};

// ln(time of B / time of A): negative is faster.
struct PerfSeries {
  std::string name;
  std::vector<double> log_ratios;  // one per block A B B A
  std::vector<double> noise;       // one per block A A A A
  std::vector<double> a_seconds;
  std::vector<double> b_seconds;
  double median = 0;
  Interval interval;  // of the median: bootstrap, 95 % (of the works together; wider for one of many, see perf.cpp)
  double noise_floor = 0;  // the noise's interval reaches this far from 0
  Verdict verdict = Verdict::kError;
};

struct PerfReport {
  Verdict verdict = Verdict::kError;
  std::string summary;
  PerfSeries all;  // mean of the works' log-ratios, block by block
  std::vector<PerfSeries> works;

  Metrics metrics() const;
};

// Noise above this share (or above the margin, if that is larger) is no measure of what counts as slower: a slowdown
// could hide in it.
inline constexpr double kMostNoise = 0.03;

// The verdict is that of `all`; a single work that is surely slower fails as well. Inconclusive: with fewer than 8
// blocks, and where noise above kMostNoise decides.
Result<PerfReport> measure_perf(std::span<const PerfWork> works, const PerfOptions& options);

// Fills median, interval, floor and verdict from the series. `tests` is among how many the error is shared.
void judge_perf(const PerfOptions& options, size_t tests, PerfSeries* series);

// Why a measurement on this machine would say nothing; empty if it is quiet.
std::string why_busy(const DeviceState& state);

}  // namespace tessera
