#include "gate/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "engine/gguf/mapped_file.h"
#include "gate/json_record.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

nlohmann::json to_json(const PromptRecord& p) {
  return {{"name", p.name},
          {"text", p.text},
          {"tokens", p.tokens},
          {"generated", p.generated},
          {"logits_sha256", p.logits_sha256}};
}

PromptRecord prompt_from_json(const nlohmann::json& j) {
  return {.name = j.at("name"),
          .text = j.at("text"),
          .tokens = j.at("tokens"),
          .generated = j.at("generated"),
          .logits_sha256 = j.at("logits_sha256")};
}

nlohmann::json to_json(const DriftFigures& f) {
  return {{"max_all", f.max_all}, {"max_top", f.max_top}, {"rms", f.rms},
          {"p999", f.p999},       {"kl_mean", f.kl_mean}, {"kl_max", f.kl_max}};
}

DriftFigures figures_from_json(const nlohmann::json& j) {
  return {.max_all = j.at("max_all"),
          .max_top = j.at("max_top"),
          .rms = j.at("rms"),
          .p999 = j.at("p999"),
          .kl_mean = j.at("kl_mean"),
          .kl_max = j.at("kl_max")};
}

nlohmann::json to_json(const ToleranceRecord& t) {
  nlohmann::json j;
  j["rows"] = {{"count", t.rows}, {"sha256", t.rows_sha256}};
  for (size_t i = 0; i < t.controls.size(); ++i) {
    j["controls"].push_back({{"name", t.control_names[i]}, {"figures", to_json(t.controls[i])}});
  }
  j["factor"] = t.factor;
  j["limits"] = to_json(t.limits);
  j["knife_edge"] = t.knife_edge;
  j["pairwise"] = t.pairwise;
  j["layers"] = t.layers;
  j["draws"] = t.draws;
  j["disagreements"] = t.disagreements;
  return j;
}

ToleranceRecord tolerance_from_json(const nlohmann::json& j) {
  ToleranceRecord t;
  t.rows = j.at("rows").at("count");
  t.rows_sha256 = j.at("rows").at("sha256");
  for (const nlohmann::json& c : j.at("controls")) {
    t.control_names.push_back(c.at("name"));
    t.controls.push_back(figures_from_json(c.at("figures")));
  }
  t.factor = j.at("factor");
  t.limits = figures_from_json(j.at("limits"));
  t.knife_edge = j.at("knife_edge");
  t.pairwise = j.at("pairwise").get<std::vector<double>>();
  t.layers = j.at("layers").get<std::vector<double>>();
  t.draws = j.at("draws");
  t.disagreements = j.at("disagreements");
  return t;
}

Status check_prompts(const std::string& path, const GateRecord& r) {
  if (r.prompts.empty()) {
    return Status(Code::kBadFile,
                  fmt::format("{}: got no prompt; allowed at least one; write it again with --write", path));
  }
  int64_t rows = 0;
  for (const PromptRecord& p : r.prompts) {
    if (p.tokens.empty() || p.logits_sha256.size() != p.tokens.size() + p.generated.size()) {
      return Status(
          Code::kBadFile,
          fmt::format("{}: prompt '{}': got {} tokens, {} generated and {} hashes; allowed one hash for every "
                      "token and at least one token; write it again with --write",
                      path, p.name, p.tokens.size(), p.generated.size(), p.logits_sha256.size()));
    }
    rows += static_cast<int64_t>(p.logits_sha256.size());
  }
  if (r.tolerance.has_value() && r.tolerance->rows != rows) {
    return Status(Code::kBadFile,
                  fmt::format("{}: got {} rows of the tolerance gate for {} tokens; allowed one for every token; write "
                              "it again with --write",
                              path, r.tolerance->rows, rows));
  }
  return {};
}

}  // namespace

const char* kv_type_name(tessera_dtype dtype) {
  return dtype == TESSERA_F32 ? "f32" : dtype == TESSERA_F16 ? "f16" : "bf16";
}

Status write_gate_record(const std::string& path, const GateRecord& record) {
  nlohmann::json j;
  j["tessera_version"] = record.tessera_version;
  j["contract_id"] = record.contract_id;
  j["model"] = {{"name", record.model_name}, {"sha256", record.model_sha256}, {"kv_type", record.kv_type}};
  for (const PromptRecord& p : record.prompts) {
    j["prompts"].push_back(to_json(p));
  }
  if (record.tolerance.has_value()) {
    j["tolerance"] = to_json(*record.tolerance);
  }
  return write_json_record(path, kGateRecordFormat, std::move(j));
}

Result<GateRecord> read_gate_record(const std::string& path) {
  Result<nlohmann::json> file = read_json_record(path, kGateRecordFormat);
  TESSERA_RETURN_IF_ERROR(file.status());
  const nlohmann::json& j = file.value();
  GateRecord r;
  try {
    r.tessera_version = j.at("tessera_version");
    r.contract_id = j.at("contract_id");
    r.model_name = j.at("model").at("name");
    r.model_sha256 = j.at("model").at("sha256");
    r.kv_type = j.at("model").at("kv_type");
    for (const nlohmann::json& p : j.at("prompts")) {
      r.prompts.push_back(prompt_from_json(p));
    }
    if (j.contains("tolerance")) {
      r.tolerance = tolerance_from_json(j.at("tolerance"));
    }
  } catch (const nlohmann::json::exception& e) {
    return Status(Code::kBadFile, fmt::format("{}: got '{}'; allowed the keys of a gate record; write it again with "
                                              "--write",
                                              path, e.what()));
  }
  TESSERA_RETURN_IF_ERROR(check_prompts(path, r));
  return r;
}

Status check_same_model(const GateRecord& record, const Engine& engine, const std::string& model_sha256) {
  if (record.model_sha256 != model_sha256) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("model: got a file with sha256 {}; allowed the record's, {} ({}); name that model with -m "
                    "or write a record of this one",
                    model_sha256, record.model_sha256, record.model_name));
  }
  const tessera_dtype dtype = engine.cache().dtype();
  if (record.kv_type != kv_type_name(dtype)) {
    return Status(Code::kInvalidArgument, fmt::format("kv-type: got {}; allowed the record's, {}; give --kv-type {}",
                                                      kv_type_name(dtype), record.kv_type, record.kv_type));
  }
  return {};
}

Result<std::string> hash_model(const Engine& engine) {
  Sha256 hash;
  for (const GgufFile& file : engine.files().files()) {
    Result<MappedFile> mapped = MappedFile::open(file.name());
    TESSERA_RETURN_IF_ERROR(mapped.status());
    const std::span<const std::byte> bytes = mapped.value().bytes();
    constexpr size_t kStep = size_t{1} << 24;  // pages go back as we pass, or the file would stay resident
    for (size_t at = 0; at < bytes.size(); at += kStep) {
      const size_t n = std::min(kStep, bytes.size() - at);
      hash.update(bytes.data() + at, n);
      mapped.value().advise_dontneed(at, n);
    }
  }
  return to_hex(hash.digest());
}

}  // namespace tessera
