// tessera probe: does the GPU of this machine obey the model that the contract predicts its bits with?
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/option_checks.h"
#if defined(TESSERA_WITH_CUDA)
#include "probe/probe.h"
#include "probe/vector_cases.h"
#endif

namespace tessera::cli {
namespace {

struct ProbeOptions {
  int device = 0;
  bool json = false;
};

#if defined(TESSERA_WITH_CUDA)

void print_text(const ProbeReport& report) {
  fmt::print("{}, compute capability {}.{}, CUDA driver {}.{}\n\n{:<32} {:>16} {:>14}\n", report.gpu,
             report.compute_major, report.compute_minor, report.cuda_driver / 1000, report.cuda_driver % 1000 / 10,
             "what", "results", "verdict");
  for (const MmaProbe& m : report.mma) {
    fmt::print("{:<32} {:>16} {:>14}\n", fmt::format("k16 step, {} (mma.sync, wgmma)", m.format), m.cases,
               m.disagreements == 0 ? "as predicted" : fmt::format("{} differ", m.disagreements));
    for (const MmaDisagreement& d : m.first) {
      fmt::print("  {} tile {} ({}, {}) after {} steps: mma.sync {:08x} wgmma {:08x} model {:08x}\n",
                 mma_mode_name(static_cast<MmaMode>(d.mode)), d.tile, d.row, d.column, d.steps, d.sync, d.wgmma,
                 d.model);
    }
  }
  for (const FunctionProbe& f : report.functions) {
    fmt::print("{:<32} {:>16} {:>14}\n", f.name, uint64_t{1} << 32, f.sum() == f.expected ? "as predicted" : "differs");
  }
  fmt::print("{:<32} {:>16} {:>14}\n", report.ceil_product.name, kCeilCases,
             report.ceil_product.sum() == report.ceil_product.expected ? "as predicted" : "differs");
  fmt::print("\n{}\n", report.obeys() ? "PASS: the oracle predicts this GPU's bits"
                                      : "FAIL: this GPU does not obey hopper-k16-f25; its bits are not predicted");
}

void print_json(const ProbeReport& report) {
  nlohmann::ordered_json j;
  j["gpu"] = report.gpu;
  j["compute_capability"] = fmt::format("{}.{}", report.compute_major, report.compute_minor);
  j["cuda_driver"] = report.cuda_driver;
  for (const MmaProbe& m : report.mma) {
    j["k16_step"][m.format] = {{"results", m.cases}, {"disagreements", m.disagreements}};
  }
  for (const FunctionProbe& f : report.functions) {
    j["functions"][f.name] = {{"results", uint64_t{1} << 32}, {"as_predicted", f.sum() == f.expected}};
  }
  j["functions"][report.ceil_product.name] = {
      {"results", kCeilCases}, {"as_predicted", report.ceil_product.sum() == report.ceil_product.expected}};
  j["obeys"] = report.obeys();
  fmt::print("{}\n", j.dump(2));
}

int probe(const ProbeOptions& options) {
  const Result<ProbeReport> report = run_probe(options.device);
  if (!report.ok()) {
    return fail(report.status());
  }
  if (options.json) {
    print_json(report.value());
  } else {
    print_text(report.value());
  }
  return report.value().obeys() ? kGood : kCheckFailed;
}

#else

int probe(const ProbeOptions&) {
  return fail(Status(Code::kUnsupported,
                     "probe: got a build without CUDA; allowed builds of the preset `cuda`; configure with nvcc 13"));
}

#endif

}  // namespace

void add_probe(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("probe", "Does this GPU obey the model that its bits are predicted with?");
  auto options = std::make_shared<ProbeOptions>();
  command->add_option("--device", options->device, "CUDA device")->check(whole_number<int>(0, 1023));
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([=] { *exit_code = probe(*options); });
}

}  // namespace tessera::cli
