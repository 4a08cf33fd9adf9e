// The record that the engine's gates compare with: what a model answered to fixed prompts, by tokens and by the hash of
// every logits row, and the thresholds that a control gave.
//
// On disk it is pretty_json of one object. Its "record_sha256" is digest_without of that object: it finds damage and
// hand edits, and is no signature.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace tessera {

inline constexpr const char* kGateRecordFormat = "tessera-gate-record-1";

struct PromptRecord {
  std::string name;
  std::string text;
  std::vector<int32_t> tokens;             // of the text; not empty
  std::vector<int32_t> generated;          // greedy, past end tokens too
  std::vector<std::string> logits_sha256;  // of the fp32 row behind every token: tokens.size() + generated.size()
};

// How far one control run lies from the record's own rows.
struct DriftFigures {
  double max_all = 0;  // largest |D| over the vocabulary
  double max_top = 0;  // the same over the union of both rows' 64 largest logits
  double rms = 0;
  double p999 = 0;  // 99.9 % of |D| lie below
  double kl_mean = 0;
  double kl_max = 0;
};

// What the tolerance gate compares with. D is the difference of two logits rows less its mean over the vocabulary.
struct ToleranceRecord {
  std::string rows_sha256;  // of the file beside the record that holds every logits row and every layer's output
  int64_t rows = 0;
  std::vector<std::string> control_names;
  std::vector<DriftFigures> controls;
  double factor = 0;  // thresholds are the largest control figure times this
  DriftFigures limits;
  double knife_edge = 0;         // tau: 99 % of the controls' |D[second] - D[first]| lie below
  std::vector<double> pairwise;  // ascending quantiles of the same
  std::vector<double> layers;    // largest relative error of a control behind every layer
  int64_t draws = 0;             // at temperature 0.8, of all controls
  int64_t disagreements = 0;     // of them with another token than the record's logits give
};

struct GateRecord {
  std::string tessera_version;
  std::string contract_id;
  std::string model_name;
  std::string model_sha256;  // of the GGUF file, or of the files of a split model one after the other
  std::string kv_type;       // "f32", "f16", "bf16": part of what decides the bits
  std::vector<PromptRecord> prompts;
  std::optional<ToleranceRecord> tolerance;  // if the tolerance gate wrote it
};

// Replaces the file: whoever reads meanwhile sees the old record or the new one, never half of one.
Status write_gate_record(const std::string& path, const GateRecord& record);

// kIo when the file cannot be read; kBadFile when its bytes are not those that were written. Also checks that every
// list has the length that it must have; kBadFile otherwise.
Result<GateRecord> read_gate_record(const std::string& path);

// kInvalidArgument, naming what differs, unless the engine holds the model and the KV type that the record was made
// with.
Status check_same_model(const GateRecord& record, const Engine& engine, const std::string& model_sha256);

// Reads the model's files once more.
Result<std::string> hash_model(const Engine& engine);

const char* kv_type_name(tessera_dtype dtype);

}  // namespace tessera
