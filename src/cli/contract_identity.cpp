#include "cli/contract_identity.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "contract/plan.h"

namespace tessera::cli {
namespace {

std::vector<std::string> split(const std::string& text, const std::string& by) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(by); end != std::string::npos; end = text.find(by, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + by.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool parse_positive(const std::string& text, int* value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && stop == text.data() + text.size() && *value > 0;
}

// "tessera-1"
bool is_version(const std::string& text) {
  constexpr const char* kPrefix = "tessera-";
  int number = 0;
  return text.starts_with(kPrefix) && parse_positive(text.substr(std::string(kPrefix).size()), &number);
}

std::string render(const IdentityPart& p) {
  return p.dtype.empty() ? fmt::format("{}/{}", p.version, p.arithmetic)
                         : fmt::format("{}/{}/{}/d{}", p.version, p.arithmetic, p.dtype, p.head_dim);
}

// The rules that a constant of contract_constants() belongs to.
std::string rules_of(const std::string& name) {
  static const std::map<std::string, std::string> rules = {
      {"version", "R0"},
      {"chunk_keys", "R0, R8"},
      {"superchunk_chunks", "R0, R8"},
      {"block_keys", "R6, R7"},
      {"row_sum_classes", "R7"},
      {"lazy_threshold_log2", "R0, R3"},
      {"largest_drop_log2", "R3"},
      {"log2_e", "R0"},
      {"ln_2", "R9"},
      {"score_step", "R1, R6"},
      {"exp2", "R4"},
      {"software_exp2_columns", "R4"},
      {"weight_rounding", "R5"},
      {"bias_log2", "R0, R4"},
      {"fp8_rows", "R11"},
      {"output_rope", "R12"},
  };
  if (name.starts_with("granule_keys")) {
    return "R0, R3";
  }
  const auto found = rules.find(name);
  return found == rules.end() ? "unknown to this build" : found->second;
}

std::string constant_of(const std::string& scope, const std::string& name) {
  for (const ContractConstant& c : contract_constants()) {
    if (c.scope == scope && c.name == name) {
      return c.value;
    }
  }
  return "";
}

// Rules that version 1 got after it was frozen: builds without one refuse what it is about, so that its absence is no
// other bit.
bool is_addition(const std::string& name) {
  return name == "fp8_rows";
}

// The constants that a change of arithmetic or dtype changes, by name.
void compare_constants(const std::string& scope_a, const std::string& scope_b, std::initializer_list<const char*> names,
                       std::vector<ContractDifference>* out) {
  for (const char* name : names) {
    const std::string a = constant_of(scope_a, name);
    const std::string b = constant_of(scope_b, name);
    if (a != b) {
      out->push_back({rules_of(name), name, a.empty() ? "-" : a, b.empty() ? "-" : b, ""});
    }
  }
}

void compare_parts(const IdentityPart& a, const IdentityPart& b, std::vector<ContractDifference>* out) {
  if (a.version != b.version) {
    out->push_back({"R0", "version", a.version, b.version,
                    "a version has constants and rules of its own; compare what both print with `tessera contract show "
                    "--json`"});
  }
  if (a.arithmetic != b.arithmetic) {
    out->push_back({a.dtype.empty() ? "M1-M5" : "R1, R4, R5, R6", "arithmetic", a.arithmetic, b.arithmetic,
                    "the steps of scores and outputs, exp2 and the rounding of weights belong to the arithmetic"});
    compare_constants(a.arithmetic, b.arithmetic, {"score_step", "exp2", "software_exp2_columns", "weight_rounding"},
                      out);
  }
  if (a.dtype != b.dtype) {
    out->push_back(
        {"R5, R9", "dtype", a.dtype, b.dtype,
         "Q, K, V and the output are rounded to the dtype; hopper-k16-f25 rounds the weights to it as well"});
  }
  if (a.arithmetic != b.arithmetic || a.dtype != b.dtype) {
    compare_constants(fmt::format("{}/{}", a.arithmetic, a.dtype), fmt::format("{}/{}", b.arithmetic, b.dtype),
                      {"bias_log2"}, out);
  }
  if (a.head_dim != b.head_dim) {
    out->push_back({"R1", "head_dim", std::to_string(a.head_dim), std::to_string(b.head_dim),
                    "scores are sums over the head dim: these are results of different problems"});
    constexpr int kWide = 128;
    if ((a.head_dim <= kWide) != (b.head_dim <= kWide)) {
      const auto granule = [](int d) {
        return constant_of("all", d <= kWide ? "granule_keys (head dim <= 128)" : "granule_keys (head dim > 128)");
      };
      out->push_back({"R0, R3", "granule_keys", granule(a.head_dim), granule(b.head_dim),
                      "the running max may move at other keys"});
    }
  }
}

}  // namespace

Result<std::vector<IdentityPart>> parse_contract_id(const std::string& text) {
  std::vector<IdentityPart> parts;
  for (const std::string& part : split(text, " + ")) {
    const std::vector<std::string> fields = split(part, "/");
    IdentityPart p;
    bool good = (fields.size() == 2 || fields.size() == 4) && is_version(fields[0]) && !fields[1].empty();
    if (good) {
      p = {.version = fields[0], .arithmetic = fields[1], .dtype = "", .head_dim = 0};
    }
    if (good && fields.size() == 4) {
      p.dtype = fields[2];
      good = std::set<std::string>{"f32", "f16", "bf16"}.contains(p.dtype) && fields[3].starts_with("d") &&
             parse_positive(fields[3].substr(1), &p.head_dim);
    }
    if (!good) {
      return Status(Code::kInvalidArgument,
                    fmt::format("contract identity: got '{}'; allowed tessera-N/ARITHMETIC/DTYPE/dHEAD_DIM or "
                                "tessera-N/ARITHMETIC, joined by ' + ', or a file with one",
                                part));
    }
    parts.push_back(p);
  }
  return parts;
}

Result<std::vector<ContractDifference>> contract_differences(const ContractDescription& a,
                                                             const ContractDescription& b) {
  std::vector<ContractDifference> out;
  if (a.parts.empty() != b.parts.empty()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("contracts: got an identity and a list of constants ({}, {}); allowed two of a kind",
                              a.source, b.source));
  }
  if (a.parts.empty()) {
    std::set<std::pair<std::string, std::string>> keys;
    for (const auto& [key, value] : a.constants) {
      keys.insert(key);
    }
    for (const auto& [key, value] : b.constants) {
      keys.insert(key);
    }
    for (const auto& key : keys) {
      const auto in_a = a.constants.find(key);
      const auto in_b = b.constants.find(key);
      const std::string value_a = in_a == a.constants.end() ? "-" : in_a->second;
      const std::string value_b = in_b == b.constants.end() ? "-" : in_b->second;
      if (is_addition(key.second) && (value_a == "-" || value_b == "-")) {
        continue;
      }
      if (value_a != value_b) {
        out.push_back({rules_of(key.second), fmt::format("{} ({})", key.second, key.first), value_a, value_b, ""});
      }
    }
    if (a.version != b.version) {
      out.insert(out.begin(), {"R0", "version", a.version, b.version, "a version has rules of its own"});
    }
    return out;
  }
  if (a.parts.size() != b.parts.size()) {
    const auto join = [](const std::vector<IdentityPart>& parts) {
      std::string text;
      for (const IdentityPart& p : parts) {
        text += (text.empty() ? "" : " + ") + render(p);
      }
      return text;
    };
    out.push_back({"-", "operations", join(a.parts), join(b.parts),
                   "one covers an operation that the other does not: attention alone, or matrix products too"});
  }
  for (size_t i = 0; i < std::min(a.parts.size(), b.parts.size()); ++i) {
    compare_parts(a.parts[i], b.parts[i], &out);
  }
  return out;
}

}  // namespace tessera::cli
