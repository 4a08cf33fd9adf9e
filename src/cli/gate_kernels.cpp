#include "cli/gate_kernels.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/console.h"
#include "cli/gate_commands.h"
#include "gate/kernel_gates.h"

namespace tessera::cli {
namespace {

nlohmann::ordered_json to_json(const KernelGateCase& c, bool tolerance) {
  nlohmann::ordered_json j;
  j["name"] = c.name;
  j["verdict"] = verdict_name(c.verdict);
  if (!c.refused.empty()) {
    j["refused"] = c.refused;
    return j;
  }
  j["rows"] = c.rows;
  if (tolerance) {
    j["error_rms"] = {{"value", c.error_rms}, {"at_most", c.limit_rms}};
    j["error_max"] = {{"value", c.error_max}, {"at_most", c.limit_max}};
    j["lse_max"] = {{"value", c.lse_max}, {"at_most", c.limit_lse}};
    return j;
  }
  j["rows_differing"] = c.rows_differing;
  j["repeatable"] = c.repeatable;
  if (c.rows_differing > 0) {
    j["first"] = {{"sequence", c.first_sequence}, {"token", c.first_token}, {"head", c.first_head}};
  }
  return j;
}

void print_text(const KernelGateReport& r, bool tolerance) {
  constexpr size_t kMostPassing = 60;  // of the comparisons that say nothing new
  size_t passing = 0;
  fmt::print("{:<44} {:<13} {}\n", "problem", "verdict",
             tolerance ? "error: RMS, largest, LSE (and their limits)" : "rows");
  for (const KernelGateCase& c : r.cases) {
    if (c.verdict == Verdict::kPass && ++passing > kMostPassing) {
      continue;
    }
    std::string what;
    if (!c.refused.empty()) {
      what = "refused: " + c.refused;
    } else if (tolerance) {
      what = fmt::format("{:.2e} ({:.2e})  {:.2e} ({:.2e})  {:.2e} ({:.2e})", c.error_rms, c.limit_rms, c.error_max,
                         c.limit_max, c.lse_max, c.limit_lse);
    } else if (c.rows_differing == 0) {
      what = fmt::format("{} equal", c.rows);
    } else {
      what = fmt::format("{} of {} differ, first: sequence {}, token {}, head {}", c.rows_differing, c.rows,
                         c.first_sequence, c.first_token, c.first_head);
    }
    fmt::print("{:<44} {:<13} {}\n", c.name, c.refused.empty() ? verdict_name(c.verdict) : "-", what);
  }
  if (passing > kMostPassing) {
    fmt::print("and {} more that pass (--json prints all)\n", passing - kMostPassing);
  }
  fmt::print("\ncontract of A  {}\n", r.contract_a.empty() ? "-" : r.contract_a);
  if (!r.contract_b.empty()) {
    fmt::print("contract of B  {}\n", r.contract_b);
  }
}

// Attention alone runs without a model: a gemm= that is read and dropped would look like a comparison of products.
Status refuse_gemm(const char* option, const Configuration& c) {
  return c.gemm.empty() ? Status()
                        : Status(Code::kInvalidArgument,
                                 fmt::format("{}: got gemm={} without a model; allowed library=, kernel=, threads=, "
                                             "device=: no matrix product runs here; leave gemm= out or give -m MODEL",
                                             option, c.gemm));
}

}  // namespace

void KernelOptions::add_to(CLI::App& command, bool two) {
  command.add_option("--a", a,
                     "without a model: configuration A, any of library=PATH,kernel=NAME,threads=N,device=cpu|cuda");
  if (two) {
    command.add_option("--b", b, "configuration B, on the same device");
  }
  command.add_option("--grid", grid_file,
                     "without a model: JSON array of problems (docs/gates.md) instead of the built-in");
}

Result<tessera_device> kernel_device(const KernelOptions& o) {
  // Only the words: a library must not be loaded before the device was looked at.
  const bool a = o.a.find("device=cuda") != std::string::npos;
  const bool b = o.b.find("device=cuda") != std::string::npos;
  if (a != b && !o.b.empty()) {
    return Status(Code::kInvalidArgument,
                  "configuration: got A and B on two devices; allowed one for both; give device=cuda to both");
  }
  return a ? TESSERA_DEVICE_CUDA : TESSERA_DEVICE_CPU;
}

Result<KernelSetting> make_setting(const KernelOptions& o) {
  KernelSetting s;
  const Result<tessera_device> device = kernel_device(o);
  TESSERA_RETURN_IF_ERROR(device.status());
  Result<Configuration> a = parse_configuration(o.a);
  TESSERA_RETURN_IF_ERROR(a.status());
  // No --b: this build as it is, on A's device.
  Result<Configuration> b =
      parse_configuration(o.b.empty() && device.value() == TESSERA_DEVICE_CUDA ? "device=cuda" : o.b);
  TESSERA_RETURN_IF_ERROR(b.status());
  TESSERA_RETURN_IF_ERROR(refuse_gemm("--a", a.value()));
  TESSERA_RETURN_IF_ERROR(refuse_gemm("--b", b.value()));
  if (device.value() == TESSERA_DEVICE_CUDA) {
    Result<std::unique_ptr<MemorySpace>> space = cuda_memory();
    TESSERA_RETURN_IF_ERROR(space.status());
    s.space = std::move(space).value();
  } else {
    s.space = host_memory();
  }
  s.a = std::make_unique<KernelRunner>(std::move(a).value(), *s.space);
  s.b = std::make_unique<KernelRunner>(std::move(b).value(), *s.space);
  if (!o.grid_file.empty()) {
    Result<std::string> text = read_text_file(o.grid_file);
    TESSERA_RETURN_IF_ERROR(text.status());
    Result<std::vector<KernelCase>> grid = parse_grid(o.grid_file, text.value());
    TESSERA_RETURN_IF_ERROR(grid.status());
    s.grid = std::move(grid).value();
  }
  return s;
}

int run_kernel_gate(const std::string& gate, const KernelOptions& options, bool json) {
  Result<KernelSetting> made = make_setting(options);
  if (!made.ok()) {
    return gate_error(gate, made.status(), json);
  }
  const KernelSetting s = std::move(made).value();
  const std::vector<KernelCase> grid = s.grid.empty() ? built_in_grid(s.space->device()) : s.grid;
  ProgressLine line(gate, !json);
  const auto on_case = [&line](const std::string& name, size_t index, size_t count) {
    line.update(static_cast<double>(index) / static_cast<double>(count), name);
  };
  const bool tolerance = gate == "tolerance";
  Result<KernelGateReport> report = gate == "identity"     ? kernel_identity(*s.a, *s.b, grid, on_case)
                                    : gate == "invariance" ? kernel_invariance(*s.a, grid, on_case)
                                                           : kernel_tolerance(*s.a, *s.b, grid, on_case);
  line.clear();
  if (!report.ok()) {
    return gate_error(gate, report.status(), json);
  }
  const KernelGateReport& r = report.value();
  GateOutput out{.gate = gate, .verdict = r.verdict, .summary = r.summary, .metrics = r.metrics()};
  out.details["level"] = "kernel";
  out.details["a"] = s.a->configuration().label();
  out.details["contract_a"] = r.contract_a;
  if (gate != "invariance") {
    out.details["b"] = s.b->configuration().label();
    out.details["contract_b"] = r.contract_b;
  }
  out.details["cases"] = nlohmann::ordered_json::array();
  for (const KernelGateCase& c : r.cases) {
    out.details["cases"].push_back(to_json(c, tolerance));
  }
  if (!json) {
    print_text(r, tolerance);
  }
  return emit(out, json);
}

}  // namespace tessera::cli
