// Contract identities as text, and which rules of docs/contract.md two of them disagree about.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tessera::cli {

// One part of an identity: "tessera-1/cpu-fma32/f32/d64" of attention, "tessera-1/cpu-i22b32" of matrix products.
struct IdentityPart {
  std::string version;
  std::string arithmetic;
  std::string dtype;  // empty for matrix products
  int head_dim = 0;   // 0 for matrix products
};

// Either the identity of results, or the constants of a whole contract (`tessera contract show --json`).
struct ContractDescription {
  std::string source;  // as given: an identity or a path
  std::vector<IdentityPart> parts;
  std::string version;                                                   // of the constants
  std::map<std::pair<std::string, std::string>, std::string> constants;  // (scope, name) -> value
};

// "tessera-1/cpu-fma32/f32/d64 + tessera-1/cpu-i22b32". kInvalidArgument, naming the part, for anything else.
Result<std::vector<IdentityPart>> parse_contract_id(const std::string& text);

struct ContractDifference {
  std::string rule;  // "R8", or "R1, R6"
  std::string what;  // "chunk_keys"
  std::string a;
  std::string b;
  std::string why;  // one sentence
};

// Empty: the same bits for the same inputs. kInvalidArgument when one is an identity and the other a list of constants.
Result<std::vector<ContractDifference>> contract_differences(const ContractDescription& a,
                                                             const ContractDescription& b);

}  // namespace tessera::cli
