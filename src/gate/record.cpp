#include "gate/record.h"

#include <fmt/format.h>

#include <utility>

#include "base/sha256.h"
#include "records/canonical_json.h"
#include "records/files.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr size_t kMostBytes = size_t{1} << 28;
constexpr const char* kDigestKey = "record_sha256";

Json to_json(const PromptRecord& p) {
  return {{"name", p.name},
          {"text", p.text},
          {"tokens", p.tokens},
          {"generated", p.generated},
          {"logits_sha256", p.logits_sha256}};
}

PromptRecord prompt_from_json(const Json& j) {
  return {.name = j.at("name"),
          .text = j.at("text"),
          .tokens = j.at("tokens"),
          .generated = j.at("generated"),
          .logits_sha256 = j.at("logits_sha256")};
}

Json to_json(const DriftFigures& f) {
  return {{"max_all", f.max_all}, {"max_top", f.max_top}, {"rms", f.rms},
          {"p999", f.p999},       {"kl_mean", f.kl_mean}, {"kl_max", f.kl_max}};
}

DriftFigures figures_from_json(const Json& j) {
  return {.max_all = j.at("max_all"),
          .max_top = j.at("max_top"),
          .rms = j.at("rms"),
          .p999 = j.at("p999"),
          .kl_mean = j.at("kl_mean"),
          .kl_max = j.at("kl_max")};
}

Json to_json(const ToleranceRecord& t) {
  Json j;
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

ToleranceRecord tolerance_from_json(const Json& j) {
  ToleranceRecord t;
  t.rows = j.at("rows").at("count");
  t.rows_sha256 = j.at("rows").at("sha256");
  for (const Json& c : j.at("controls")) {
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

// The object in the file, if its bytes are those that write_gate_record wrote.
Result<Json> read_whole_record(const std::string& path) {
  Result<std::string> text = read_file(path, kMostBytes);
  TESSERA_RETURN_IF_ERROR(text.status());
  const auto bad = [&](const std::string& got) {
    return Status(Code::kBadFile, fmt::format("{}: got {}; allowed a whole, unchanged record of format '{}'; write it "
                                              "again with --write",
                                              path, got, kGateRecordFormat));
  };
  Result<Json> content = parse_json(text.value(), path);
  if (!content.ok() || !content.value().is_object()) {
    return bad("no JSON object");
  }
  const Json format = content.value().value("format", Json());
  if (format != kGateRecordFormat) {
    return bad(format.is_null() ? "no format" : "format " + compact_json(format));
  }
  const Json digest = content.value().value(kDigestKey, Json());
  if (digest != digest_without(content.value(), kDigestKey)) {
    return bad(fmt::format("a content that its {} does not belong to", kDigestKey));
  }
  // The bytes themselves are checked, not only what they parse to: a record that was edited by hand is told so.
  if (pretty_json(content.value()) != text.value()) {
    return bad("bytes that are not canonical");
  }
  return content;
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
  Json j;
  j["tessera_version"] = record.tessera_version;
  j["contract_id"] = record.contract_id;
  j["model"] = {{"name", record.model_name}, {"sha256", record.model_sha256}, {"kv_type", record.kv_type}};
  for (const PromptRecord& p : record.prompts) {
    j["prompts"].push_back(to_json(p));
  }
  if (record.tolerance.has_value()) {
    j["tolerance"] = to_json(*record.tolerance);
  }
  j["format"] = kGateRecordFormat;
  j[kDigestKey] = digest_without(j, kDigestKey);
  return write_file_atomically(path, pretty_json(j));
}

Result<GateRecord> read_gate_record(const std::string& path) {
  Result<Json> file = read_whole_record(path);
  TESSERA_RETURN_IF_ERROR(file.status());
  const Json& j = file.value();
  GateRecord r;
  try {
    r.tessera_version = j.at("tessera_version");
    r.contract_id = j.at("contract_id");
    r.model_name = j.at("model").at("name");
    r.model_sha256 = j.at("model").at("sha256");
    r.kv_type = j.at("model").at("kv_type");
    for (const Json& p : j.at("prompts")) {
      r.prompts.push_back(prompt_from_json(p));
    }
    if (j.contains("tolerance")) {
      r.tolerance = tolerance_from_json(j.at("tolerance"));
    }
  } catch (const Json::exception& e) {
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
    TESSERA_RETURN_IF_ERROR(hash_file(file.name(), &hash));
  }
  return to_hex(hash.digest());
}

}  // namespace tessera
