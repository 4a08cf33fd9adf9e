#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "gate/kernel_case.h"
#include "records/canonical_json.h"

namespace tessera {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 20;
constexpr int64_t kMostKeys = int64_t{1} << 20;
constexpr int64_t kMostHeads = 1024;
constexpr int64_t kMostBytes = int64_t{1} << 33;  // of one tensor: Q, K or V
constexpr int64_t kAnything = std::numeric_limits<int64_t>::max();

constexpr std::array<std::string_view, 15> kKeys = {"name",        "dtype",   "o_f32",    "head_dim",  "heads_q",
                                                    "heads_kv",    "batch",   "seqlen_q", "seqlen_k",  "causal",
                                                    "window_left", "softcap", "sinks",    "page_size", "seed"};

std::string shown(const Json& value) {
  constexpr size_t kMostShown = 60;
  std::string text = compact_json(value);
  if (text.size() > kMostShown) {
    text = text.substr(0, kMostShown) + "..";
  }
  return text;
}

// C0, DEL and C1: a name is printed, and must not move a terminal's cursor or end a line of the report.
bool has_control_character(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f ||
        (byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0)) {
      return true;
    }
  }
  return false;
}

// One problem of a grid. The first key that is wrong is what status() tells of; later reads do nothing.
class ProblemReader {
 public:
  ProblemReader(const std::string& path, size_t index, const Json& problem)
      : place_(fmt::format("{}: problem {}", path, index)), problem_(problem) {
    if (!problem.is_object()) {
      status_ =
          Status(Code::kBadFile, fmt::format("{}: got {}; allowed an object such as {{\"seqlen_k\": 100}}; problems "
                                             "count from 0",
                                             place_, shown(problem)));
      return;
    }
    if (const auto name = problem.find("name"); name != problem.end() && name->is_string()) {
      place_ += fmt::format(" ({})", shown(*name));
    }
    for (const auto& [key, value] : problem.items()) {
      if (std::ranges::find(kKeys, key) == kKeys.end()) {
        refuse(key, fmt::format("{}, a key that no problem has", shown(value)),
               fmt::format("{}", fmt::join(kKeys, ", ")), "correct or remove it");
      }
    }
  }

  const Status& status() const { return status_; }

  void text(const char* key, std::string* value) {
    if (const Json* given = find(key, &Json::is_string, "a text")) {
      *value = given->get<std::string>();
    }
  }
  // What tells the problem from the others in the report.
  void name(std::string* value) {
    text("name", value);
    require(!has_control_character(*value), "name", "a text without control characters", "take them out");
  }
  void flag(const char* key, bool* value) {
    if (const Json* given = find(key, &Json::is_boolean, "true, false")) {
      *value = given->get<bool>();
    }
  }
  void real(const char* key, float* value) {
    const Json* const given = find(key, &Json::is_number, "a number");
    if (given != nullptr) {
      *value = given->get<float>();
      require(std::isfinite(*value), key, "a number within fp32", "give a smaller one");
      // 0 switches a feature off: a number that rounds to it would be judged without what it asks for.
      require(*value != 0 || given->get<double>() == 0, key, "0 or a number that fp32 tells from 0",
              "give 0 or a larger one");
    }
  }
  void dtype(const char* key, tessera_dtype* value) {
    std::string name = "f32";
    text(key, &name);
    require(name == "f32" || name == "f16" || name == "bf16", key, "\"f32\", \"f16\", \"bf16\"", "correct it");
    *value = name == "f16" ? TESSERA_F16 : name == "bf16" ? TESSERA_BF16 : TESSERA_F32;
  }
  template <class T>
  void whole(const char* key, int64_t low, int64_t high, T* value) {
    const std::string allowed =
        high == kAnything ? fmt::format("whole numbers from {}", low) : fmt::format("whole numbers {}..{}", low, high);
    const Json* const given = find(key, &Json::is_number_integer, allowed);
    if (given == nullptr) {
      return;
    }
    const bool huge = given->is_number_unsigned() && given->get<uint64_t>() > static_cast<uint64_t>(kAnything);
    const int64_t number = huge ? kAnything : given->get<int64_t>();
    require(!huge && number >= low && number <= high, key, allowed, "correct it");
    // What was refused stays at its default, so that later conditions need not expect a 0 they would divide by.
    if (status_.ok()) {
      *value = static_cast<T>(number);
    }
  }

  // What must hold for the value of `key` beside its kind and range.
  void require(bool holds, const char* key, const std::string& allowed, const char* advice) {
    if (!holds) {
      const auto given = problem_.find(key);
      refuse(key, given == problem_.end() ? "nothing" : shown(*given), allowed, advice);
    }
  }

 private:
  void refuse(const std::string& key, const std::string& got, const std::string& allowed, const char* advice) {
    if (status_.ok()) {
      status_ = Status(Code::kBadFile,
                       fmt::format("{}: {}: got {}; allowed {}; {}", place_, shown(key), got, allowed, advice));
    }
  }

  // The value of `key`; null if it is left out or of another kind, which is refused.
  const Json* find(const char* key, bool (Json::*is_kind)() const noexcept, const std::string& allowed) {
    if (!status_.ok()) {
      return nullptr;
    }
    const auto given = problem_.find(key);
    if (given == problem_.end()) {
      return nullptr;
    }
    require(((*given).*is_kind)(), key, allowed, "correct it");
    return status_.ok() ? &*given : nullptr;
  }

  std::string place_;
  const Json& problem_;
  Status status_;
};

// What the library itself does not check, because it would already have cost the memory.
Result<KernelCase> read_problem(const std::string& path, size_t index, const Json& problem) {
  KernelCase c;
  c.name = fmt::format("problem {}", index);
  ProblemReader read(path, index, problem);
  read.name(&c.name);
  read.dtype("dtype", &c.dtype);
  read.flag("o_f32", &c.o_f32);
  read.whole("head_dim", 1, 1024, &c.head_dim);
  read.whole("heads_q", 1, kMostHeads, &c.heads_q);
  read.whole("heads_kv", 1, kMostHeads, &c.heads_kv);
  read.require(c.heads_q % c.heads_kv == 0, "heads_kv", fmt::format("divisors of heads_q, which is {}", c.heads_q),
               "give both");
  read.whole("batch", 1, kMostRows, &c.batch);
  read.whole("seqlen_q", 1, kMostRows, &c.seqlen_q);
  read.require(c.rows() <= kMostRows * 64, "seqlen_q",
               fmt::format("{} rows in all, batch x seqlen_q x heads_q", kMostRows * 64), "make it smaller");
  read.whole("seqlen_k", 1, kMostKeys, &c.seqlen_k);
  read.require(c.seqlen_k >= c.seqlen_q, "seqlen_k", fmt::format("at least seqlen_q, which is {}", c.seqlen_q),
               "give both");
  read.require(c.batch * c.seqlen_k <= kMostKeys * 4, "seqlen_k",
               fmt::format("{} keys in all, batch x seqlen_k", kMostKeys * 4), "make it smaller");
  read.flag("causal", &c.causal);
  read.whole("window_left", -1, kAnything, &c.window_left);
  read.real("softcap", &c.softcap);
  read.require(c.softcap >= 0, "softcap", "0 (none) or a positive number", "correct it");
  read.flag("sinks", &c.sinks);
  read.whole("page_size", 0, 65536, &c.page_size);
  const int64_t element = c.dtype == TESSERA_F32 ? 4 : 2;
  read.require(c.rows() * c.head_dim * 4 <= kMostBytes, "seqlen_q",
               fmt::format("{} bytes of Q in fp32, batch x seqlen_q x heads_q x head_dim x 4", kMostBytes),
               "make one of them smaller");
  // As CaseTensors lays them out: whole pages, and two that no sequence has.
  const int64_t slots = c.page_size == 0 ? c.batch * c.seqlen_k
                                         : (c.batch * ((c.seqlen_k + c.page_size - 1) / c.page_size) + 2) * c.page_size;
  read.require(
      slots * c.heads_kv * c.head_dim * element <= kMostBytes, "seqlen_k",
      fmt::format("{} bytes of K, batch x seqlen_k (in whole pages) x heads_kv x head_dim x {}", kMostBytes, element),
      "make one of them smaller");
  read.whole("seed", 0, kAnything, &c.seed);
  TESSERA_RETURN_IF_ERROR(read.status());
  return c;
}

}  // namespace

Result<std::vector<KernelCase>> parse_grid(const std::string& path, const std::string& text) {
  Result<Json> parsed = parse_json(text, path);
  TESSERA_RETURN_IF_ERROR(parsed.status());
  const Json& j = parsed.value();
  if (!j.is_array() || j.empty()) {
    return Status(Code::kBadFile, fmt::format("{}: got {}; allowed a JSON array of at least one problem; put brackets "
                                              "around the problems",
                                              path, shown(j)));
  }
  std::vector<KernelCase> grid;
  std::set<std::string> names;
  for (const Json& item : j) {
    Result<KernelCase> c = read_problem(path, grid.size(), item);
    TESSERA_RETURN_IF_ERROR(c.status());
    // A report of which two lines have one name does not say which of them failed.
    if (!names.insert(c.value().name).second) {
      return Status(Code::kBadFile,
                    fmt::format("{}: problem {}: \"name\": got {}, which an earlier problem has; allowed a name of its "
                                "own (\"problem {}\" if none is given); give another",
                                path, grid.size(), shown(Json(c.value().name)), grid.size()));
    }
    grid.push_back(std::move(c).value());
  }
  return grid;
}

}  // namespace tessera
