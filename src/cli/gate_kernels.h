// The gates without a model: attention kernels over a grid of problems.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "gate/configuration.h"
#include "gate/kernel_case.h"
#include "gate/kernel_run.h"
#include "gate/memory_space.h"

namespace tessera::cli {

struct KernelOptions {
  std::string a;
  std::string b;
  std::string grid_file;

  // two: --a and --b; else --a alone.
  void add_to(CLI::App& command, bool two);
};

// Two configurations on one device, and the grid.
struct KernelSetting {
  std::unique_ptr<MemorySpace> space;
  std::unique_ptr<KernelRunner> a;
  std::unique_ptr<KernelRunner> b;
  std::vector<KernelCase> grid;  // empty: none was named
};

Result<tessera_device> kernel_device(const KernelOptions& options);
Result<KernelSetting> make_setting(const KernelOptions& options);

// `gate` is identity, invariance or tolerance. Prints, and returns the exit code.
int run_kernel_gate(const std::string& gate, const KernelOptions& options, bool json);

}  // namespace tessera::cli
