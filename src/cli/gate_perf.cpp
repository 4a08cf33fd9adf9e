// tessera gate perf: is B slower, or faster, than A? Both in this process, in turns.
#include "gate/perf.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/gate_checks.h"
#include "cli/gate_commands.h"
#include "cli/gate_kernels.h"
#include "cli/model_options.h"
#include "cli/option_checks.h"
#include "gate/device_state.h"
#include "gate/identity.h"
#include "gate/perf_works.h"

namespace tessera::cli {
namespace {

constexpr const char* kGate = "perf";
constexpr double kMinSampleSeconds = 2e-3;

struct PerfCommand {
  ModelOptions model;
  KernelOptions kernels;
  PerfOptions perf;
  int64_t prefill = 256;
  int64_t decode = 16;
  std::string expect = "not-slower";
  double margin_percent = 1;
  bool allow_busy = false;
};

// What the works are made of; lives as long as they.
struct Workplace {
  Configuration a;
  Configuration b;
  std::unique_ptr<Engine> engine;
  std::vector<int32_t> tokens;
  KernelSetting kernels;
  std::vector<std::string> refused;
  std::vector<PerfWork> works;
};

Status set_up_engine(const PerfCommand& o, Workplace* w) {
  Result<Configuration> a = parse_configuration(o.kernels.a);
  TESSERA_RETURN_IF_ERROR(a.status());
  Result<Configuration> b = parse_configuration(o.kernels.b);
  TESSERA_RETURN_IF_ERROR(b.status());
  w->a = std::move(a).value();
  w->b = std::move(b).value();
  double seconds = 0;
  Result<std::unique_ptr<Engine>> engine = load_engine(o.model, o.prefill + o.decode, &seconds);
  TESSERA_RETURN_IF_ERROR(engine.status());
  w->engine = std::move(engine).value();
  // A configuration without threads of its own runs with the loaded ones, whatever the other has.
  for (Configuration* c : {&w->a, &w->b}) {
    c->threads = c->threads == 0 ? w->engine->threads() : c->threads;
  }
  Result<std::vector<TokenId>> once =
      w->engine->tokenizer().encode(built_in_prompts().back().text, {.add_special = true, .parse_special = false});
  TESSERA_RETURN_IF_ERROR(once.status());
  for (int64_t i = 0; i < o.prefill; ++i) {
    w->tokens.push_back(once.value()[static_cast<size_t>(i) % once.value().size()]);
  }
  w->works = engine_works(*w->engine, w->a, w->b, w->tokens, o.decode);
  return {};
}

Status set_up_kernels(const PerfCommand& o, Workplace* w) {
  Result<KernelSetting> setting = make_setting(o.kernels);
  TESSERA_RETURN_IF_ERROR(setting.status());
  w->kernels = std::move(setting).value();
  const std::vector<KernelCase> grid =
      w->kernels.grid.empty() ? perf_grid(w->kernels.space->device()) : w->kernels.grid;
  Result<std::vector<PerfWork>> works =
      kernel_works(*w->kernels.a, *w->kernels.b, grid, kMinSampleSeconds, &w->refused);
  TESSERA_RETURN_IF_ERROR(works.status());
  w->works = std::move(works).value();
  if (w->works.empty()) {
    return Status(Code::kUnsupported, fmt::format("grid: no problem is taken by both configurations, first: {}",
                                                  w->refused.empty() ? "the grid is empty" : w->refused.front()));
  }
  return {};
}

nlohmann::ordered_json to_json(const DeviceState& s) {
  nlohmann::ordered_json j;
  j["name"] = s.name;
  const auto known = [&j](const char* key, double value) {
    j[key] = value >= 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  known("clock_mhz", s.clock_mhz);
  known("power_watts", s.power_watts);
  known("temperature_c", s.temperature_c);
  known("throttle_reasons", static_cast<double>(s.throttle_reasons));
  known("others", s.others);
  known("other_processes", static_cast<double>(s.other_processes));
  return j;
}

nlohmann::ordered_json to_json(const PerfSeries& s) {
  return {{"name", s.name},
          {"verdict", verdict_name(s.verdict)},
          {"median_log_ratio", s.median},
          {"interval", {s.interval.low, s.interval.high}},
          {"noise_floor", s.noise_floor},
          {"log_ratios", s.log_ratios},
          {"noise", s.noise},
          {"a_seconds", s.a_seconds},
          {"b_seconds", s.b_seconds}};
}

// What each run of A or B took over all works: the geometric mean, as log-ratios are averaged too.
std::vector<double> mean_seconds(const PerfReport& r, std::vector<double> PerfSeries::*runs) {
  std::vector<double> means;
  for (size_t i = 0; !r.works.empty() && i < (r.works.front().*runs).size(); ++i) {
    double sum = 0;
    for (const PerfSeries& work : r.works) {
      sum += std::log((work.*runs)[i]);
    }
    means.push_back(std::exp(sum / static_cast<double>(r.works.size())));
  }
  return means;
}

std::string text_of(const DeviceState& s) {
  std::string text = s.name.empty() ? "unknown device" : s.name;
  const auto add = [&text](const char* format, double value) {
    text += value >= 0 ? fmt::format(fmt::runtime(format), value) : "";
  };
  add(", {:.0f} MHz", s.clock_mhz);
  add(", {:.0f} W", s.power_watts);
  add(", {:.0f} C", s.temperature_c);
  add(", others use {:.0f} %", s.others >= 0 ? 100 * s.others : -1);
  return text;
}

void print_text(const PerfReport& r, const Workplace& w, const DeviceState& before, const DeviceState& after) {
  fmt::print("{:<24} {:>12} {:>12} {:>9} {:>20} {:>8}\n", "work", "A", "B", "B to A", "95 % interval", "noise");
  const auto row = [](const PerfSeries& s, const std::string& a, const std::string& b) {
    const auto percent = [](double x) { return 100 * std::expm1(x); };
    fmt::print("{:<24} {:>12} {:>12} {:>+8.2f}% {:>+9.2f}..{:>+8.2f}% {:>7.2f}%\n", s.name, a, b, percent(s.median),
               percent(s.interval.low), percent(s.interval.high), percent(s.noise_floor));
  };
  const auto time = [](double seconds) {
    return seconds < 1e-3 ? fmt::format("{:.2f} us", seconds * 1e6) : fmt::format("{:.3f} ms", seconds * 1e3);
  };
  for (const PerfSeries& s : r.works) {
    row(s, time(median(s.a_seconds)), time(median(s.b_seconds)));
  }
  row(r.all, "", "");
  for (const std::string& refused : w.refused) {
    fmt::print("refused: {}\n", refused);
  }
  fmt::print("\nbefore: {}\nafter:  {}\n", text_of(before), text_of(after));
}

int run(PerfCommand& o) {
  const bool json = o.model.json;
  const bool with_model = !o.model.model.empty();
  o.perf.expectation = o.expect == "faster" ? PerfExpectation::kFaster : PerfExpectation::kNotSlower;
  o.perf.margin = o.margin_percent / 100;
  const Result<tessera_device> device = kernel_device(o.kernels);
  if (!device.ok()) {
    return gate_error(kGate, device.status(), json);
  }
  DeviceWatch watch(device.value());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const DeviceState before = watch.read();
  if (const std::string why = why_busy(before); !why.empty() && !o.allow_busy) {
    return gate_error(
        kGate,
        Status(Code::kDevice, fmt::format("device: got a busy one ({}); allowed others up to {:.0f} %; stop "
                                          "them or give --allow-busy",
                                          why, 100 * kMostOthers)),
        json);
  }
  Workplace w;
  if (const Status s = with_model ? set_up_engine(o, &w) : set_up_kernels(o, &w); !s.ok()) {
    return gate_error(kGate, s, json);
  }
  ProgressLine line(kGate, !json);
  o.perf.on_block = [&line](const std::string& name, size_t index, size_t count) {
    line.update(static_cast<double>(index) / static_cast<double>(count), name);
  };
  watch.start();
  Result<PerfReport> measured = measure_perf(w.works, o.perf);
  const DeviceState after = watch.read();
  line.clear();
  if (!measured.ok()) {
    return gate_error(kGate, measured.status(), json);
  }
  PerfReport r = std::move(measured).value();
  if (const std::string why = why_busy(after); !why.empty() && !o.allow_busy) {
    r.verdict = Verdict::kInconclusive;
    r.summary = fmt::format("the device did not stay quiet ({}): {}", why, r.summary);
  }
  if (o.kernels.a == o.kernels.b) {
    r.summary = "A and B are one configuration, this is noise: " + r.summary;
  }
  GateOutput out{.gate = kGate, .verdict = r.verdict, .summary = r.summary, .metrics = r.metrics()};
  // Speed of B over A, as `tessera lab` reads it.
  out.details["ratio"] = std::exp(-r.all.median);
  out.details["interval"] = {std::exp(-r.all.interval.high), std::exp(-r.all.interval.low)};
  out.details["noise_floor"] = -std::expm1(-r.all.noise_floor);
  out.details["samples_a"] = mean_seconds(r, &PerfSeries::a_seconds);
  out.details["samples_b"] = mean_seconds(r, &PerfSeries::b_seconds);
  out.details["unit"] = r.works.size() == 1 ? "s" : fmt::format("s, mean of {} works", r.works.size());
  out.details["level"] = with_model ? "engine" : "kernel";
  out.details["a"] = o.kernels.a;
  out.details["b"] = o.kernels.b;
  out.details["expect"] = o.expect;
  out.details["margin_percent"] = o.margin_percent;
  out.details["device"] = {{"before", to_json(before)}, {"after", to_json(after)}};
  out.details["refused"] = w.refused;
  for (const PerfSeries& s : r.works) {
    out.details["works"].push_back(to_json(s));
  }
  if (!json) {
    print_text(r, w, before, after);
  }
  return emit(out, json);
}

}  // namespace

void add_gate_perf(CLI::App& gate, int* exit_code) {
  auto o = std::make_shared<PerfCommand>();
  CLI::App* command = gate.add_subcommand(
      "perf", "Is B slower (or faster) than A? Of a model with -m, else of attention kernels; A B B A in one process");
  o->model.add_to(*command);
  command->get_option("--model")->required(false);
  o->kernels.add_to(*command, true);
  command->add_option("--expect", o->expect, "what passes: not-slower, or faster beyond the noise")
      ->capture_default_str()
      ->check(CLI::IsMember({"not-slower", "faster"}));
  command->add_option("--margin", o->margin_percent, "percent that still count as not slower")
      ->capture_default_str()
      ->check(real_number() & CLI::Range(0.0, 50.0));
  command->add_option("--blocks", o->perf.blocks, "blocks A B B A, each with a block A A A A")
      ->capture_default_str()
      ->check(whole_number<int32_t>(1, 10000));
  command->add_option("--prefill", o->prefill, "with a model: tokens of the prompt")
      ->capture_default_str()
      ->check(whole_number<int64_t>(1, 65536));
  command->add_option("--decode", o->decode, "with a model: tokens behind it, one by one; 0: no decoding")
      ->capture_default_str()
      ->check(whole_number<int64_t>(0, 65536));
  command->add_flag("--allow-busy", o->allow_busy, "measure although others use the device; the report says so");
  command->callback([o, exit_code, command] {
    const Status s = check_gate_options(*command, Pair::kAny);
    *exit_code = s.ok() ? run(*o) : gate_error(kGate, s, o->model.json);
  });
}

}  // namespace tessera::cli
