#include "cli/gate_model.h"

#include <fmt/format.h>

#include <utility>

#include "cli/gate_checks.h"
#include "cli/gate_commands.h"
#include "records/canonical_json.h"

namespace tessera::cli {

void GateModelOptions::add_to(CLI::App& command) {
  model.add_to(command);
  command.get_option("--model")->required(false);
  command.add_option("--record", record, "with a model: file with the record to compare with, or to write");
  command.add_option("--prompts", prompts_file,
                     "with --write: JSON array of at least 8 texts instead of the built-in ones");
  command.add_option("--with", with,
                     "how to run: kernel=NAME,gemm=NAME,threads=N,library=PATH (attention of another build), any of "
                     "them");
}

Status GateModelOptions::check() const {
  return record.empty()
             ? Status(Code::kInvalidArgument, "record: got none; allowed --record FILE, with --write to make it")
             : Status();
}

Status GateModel::load() {
  Result<Configuration> configuration = parse_configuration(options_.with);
  TESSERA_RETURN_IF_ERROR(configuration.status());
  configuration_ = std::move(configuration).value();
  double seconds = 0;
  Result<std::unique_ptr<Engine>> engine = load_engine(options_.model, 0, &seconds);
  TESSERA_RETURN_IF_ERROR(engine.status());
  engine_ = std::move(engine).value();
  return apply(configuration_, *engine_);
}

Result<std::vector<Prompt>> GateModel::prompts() const {
  if (options_.prompts_file.empty()) {
    return built_in_prompts();
  }
  Result<std::string> text = read_text_file(options_.prompts_file);
  TESSERA_RETURN_IF_ERROR(text.status());
  Result<Json> parsed = parse_json(text.value(), options_.prompts_file);
  TESSERA_RETURN_IF_ERROR(parsed.status());
  const Json& j = parsed.value();
  const Status bad(Code::kBadFile, fmt::format("{}: got something else; allowed a JSON array of texts, or of objects "
                                               "with a \"name\" and a \"text\"",
                                               options_.prompts_file));
  if (!j.is_array()) {
    return bad;
  }
  std::vector<Prompt> prompts;
  for (const Json& p : j) {
    const std::string number = fmt::format("prompt {}", prompts.size());
    if (p.is_string()) {
      prompts.push_back({number, p.get<std::string>()});
    } else if (p.is_object() && p.contains("text") && p["text"].is_string()) {
      const bool named = p.contains("name") && p["name"].is_string();
      prompts.push_back({named ? p["name"].get<std::string>() : number, p["text"].get<std::string>()});
    } else {
      return bad;
    }
  }
  return prompts;
}

OnPrompt GateModel::on_prompt() {
  return [this](const std::string& name, size_t index, size_t count) {
    line_.update(static_cast<double>(index) / static_cast<double>(count), name);
  };
}

void add_record_gate(CLI::App& gate, int* exit_code, const RecordGate& what) {
  auto o = std::make_shared<RecordGateOptions>();
  CLI::App* command = gate.add_subcommand(what.name, what.description);
  o->model.add_to(*command);
  command->add_flag("--write", o->write, what.write_help);
  o->kernels.add_to(*command, true);
  command->callback([o, exit_code, what, command] {
    if (const Status together = check_gate_options(*command, Pair::kOfKernels); !together.ok()) {
      *exit_code = gate_error(what.name, together, o->model.model.json);
    } else if (o->model.model.model.empty()) {
      *exit_code = run_kernel_gate(what.name, o->kernels, o->model.model.json);
    } else if (const Status s = o->model.check(); !s.ok()) {
      *exit_code = gate_error(what.name, s, o->model.model.json);
    } else {
      *exit_code = o->write ? what.write(*o) : what.check(*o);
    }
  });
}

}  // namespace tessera::cli
