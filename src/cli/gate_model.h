// What the gates with a model and a record share on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/console.h"
#include "cli/gate_kernels.h"
#include "cli/model_options.h"
#include "engine/engine.h"
#include "gate/configuration.h"
#include "gate/identity.h"

namespace tessera::cli {

struct GateModelOptions {
  ModelOptions model;
  std::string record;
  std::string prompts_file;
  std::string with;  // Configuration

  void add_to(CLI::App& command);
  Status check() const;  // a record must be named
};

class GateModel {
 public:
  GateModel(const std::string& gate, const GateModelOptions& options)
      : options_(options), line_(gate, !options.model.json) {}

  // The model, run with the configuration of --with.
  Status load();
  Engine& engine() { return *engine_; }

  // The built-in ones, or those of --prompts: a JSON array of texts or of {"name": ..., "text": ...}.
  Result<std::vector<Prompt>> prompts() const;

  OnPrompt on_prompt();
  void clear_progress() { line_.clear(); }

 private:
  const GateModelOptions& options_;
  ProgressLine line_;
  Configuration configuration_;
  std::unique_ptr<Engine> engine_;
};

struct RecordGateOptions {
  GateModelOptions model;
  KernelOptions kernels;
  bool write = false;
};

// A gate that compares a model with a record, or attention kernels where no model is named.
struct RecordGate {
  const char* name;
  const char* description;
  const char* write_help;
  int (*write)(const RecordGateOptions&);  // makes the record; both print, and return the exit code
  int (*check)(const RecordGateOptions&);
};

void add_record_gate(CLI::App& gate, int* exit_code, const RecordGate& what);

}  // namespace tessera::cli
