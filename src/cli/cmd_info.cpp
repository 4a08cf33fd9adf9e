// tessera info: this build, this machine, its kernels, and what a model file holds.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/demo_model.h"
#include "engine/config.h"
#include "engine/gguf/model_files.h"
#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* operation_name(tessera_operation operation) {
  switch (operation) {
    case TESSERA_OP_FMHA:
      return "attention";
    case TESSERA_OP_MERGE:
      return "merge";
    case TESSERA_OP_GEMM:
      return "gemm";
  }
  return "";
}

Json kernels_json() {
  Json list = Json::array();
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info;
    if (tessera_kernel_get(i, &info, nullptr) != TESSERA_OK) {
      continue;
    }
    list.push_back({{"name", info.name},
                    {"operation", operation_name(info.operation)},
                    {"arithmetic", info.arithmetic},
                    {"available", info.available != 0},
                    {"reason", info.reason == nullptr ? "" : info.reason},
                    {"summary", info.summary}});
  }
  return list;
}

Result<Json> model_json(const std::string& path, bool all_keys) {
  Result<ModelFiles> files = ModelFiles::open(path);
  TESSERA_RETURN_IF_ERROR(files.status());
  const GgufFile& head = files.value().head();
  Json j;
  j["file"] = path;
  j["gguf_version"] = head.version();
  uint64_t bytes = 0;
  std::map<std::string, int64_t> types;
  for (const GgufFile& f : files.value().files()) {
    bytes += f.size();
    for (const TensorInfo& t : f.tensors()) {
      ++types[std::string(type_name(t.type))];
    }
  }
  j["bytes"] = bytes;
  j["tensors"] = files.value().n_tensors();
  j["tensor_types"] = types;
  Result<ModelConfig> config = read_config(files.value());
  if (config.ok()) {
    const ModelConfig& c = config.value();
    j["name"] = c.name;
    j["architecture"] = c.arch_name;
    j["layers"] = c.n_layers;
    j["hidden"] = c.hidden;
    j["ffn"] = c.ffn;
    j["num_heads_q"] = c.num_heads_q;
    j["num_heads_kv"] = c.num_heads_kv;
    j["head_dim"] = c.head_dim;
    j["context_length"] = c.context_length;
    j["vocab"] = c.vocab_size;
    j["kv_bytes_per_token_f32"] = c.n_layers * 2 * c.kv_dim() * 4;
  } else {
    j["cannot_run"] = config.status().text();
  }
  for (const MetaEntry& e : head.metadata()) {
    if (all_keys) {
      j["metadata"][std::string(e.key)] = describe_value(e, 200);
    }
  }
  return j;
}

void print_flat(const Json& j, const std::string& indent) {
  for (const auto& [key, value] : j.items()) {
    if (value.is_object()) {
      fmt::print("{}{}\n", indent, key);
      print_flat(value, indent + "  ");
    } else {
      fmt::print("{}{:<20} {}\n", indent, key, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

int info(const std::string& model, bool all_keys, bool json) {
  Json j;
  j["tessera"] = tessera_version();
  j["contract"] = tessera_contract_version();
  j["hardware_threads"] = std::thread::hardware_concurrency();
  j["kernels"] = kernels_json();
  if (!model.empty()) {
    std::string path = model;
    if (model == "demo") {
      Result<std::string> demo = demo_model_path();
      if (!demo.ok()) {
        return fail(demo.status());
      }
      path = demo.value();
    }
    Result<Json> described = model_json(path, all_keys);
    if (!described.ok()) {
      return fail(described.status());
    }
    j["model"] = described.value();
  }
  if (json) {
    fmt::print("{}\n", j.dump(2, ' ', false, Json::error_handler_t::replace));
    return kGood;
  }
  fmt::print("tessera {} | contract {} | {} hardware threads\n\nkernels, in order of priority\n", tessera_version(),
             tessera_contract_version(), j["hardware_threads"].get<unsigned>());
  for (const Json& k : j["kernels"]) {
    const std::string state = k["available"].get<bool>() ? "available" : "not here: " + k["reason"].get<std::string>();
    fmt::print("  {:<10} {:<24} {:<14} {}\n", k["operation"].get<std::string>(), k["name"].get<std::string>(),
               k["arithmetic"].get<std::string>(), state);
    fmt::print("  {:<10} {}\n", "", k["summary"].get<std::string>());
  }
  if (j.contains("model")) {
    fmt::print("\nmodel\n");
    print_flat(j["model"], "  ");
  }
  return kGood;
}

}  // namespace

void add_info(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("info", "This build, its kernels on this machine, and model files");
  auto model = std::make_shared<std::string>();
  auto all_keys = std::make_shared<bool>(false);
  auto json = std::make_shared<bool>(false);
  command->add_option("-m,--model", *model, "describe this GGUF file ('demo': the demo model)");
  command->add_flag("--keys", *all_keys, "list all metadata keys of the file");
  command->add_flag("--json", *json, "one JSON object on stdout");
  command->callback([=] { *exit_code = info(*model, *all_keys, *json); });
}

}  // namespace tessera::cli
