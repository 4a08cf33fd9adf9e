// What every gate answers.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera {

// The order is that of the exit codes of `tessera gate`: 0, 1, 2, 3.
enum class Verdict : int {
  kPass = 0,
  kFail = 1,
  kInconclusive = 2,  // what was measured can carry neither answer
  kError = 3,         // bad input or environment: nothing was judged
};

inline const char* verdict_name(Verdict v) {
  switch (v) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "fail";
    case Verdict::kInconclusive:
      return "inconclusive";
    case Verdict::kError:
      break;
  }
  return "error";
}

// Name and value, in the order in which a report prints them.
using Metrics = std::vector<std::pair<std::string, double>>;

}  // namespace tessera
