// Attention over a kernel case, computed by the gate itself: in float64 as the truth, and in plain fp32 in two orders
// of summation as controls for the size of harmless rounding. Knows nothing of chunks, granules or tiles.
#pragma once

#include <vector>

#include "gate/kernel_case.h"

namespace tessera {

struct CaseRows {
  std::vector<double> o;      // (rows, head_dim) in the order (sequence, token, head)
  std::vector<double> lse;    // natural, sink excluded; -inf without visible keys
  std::vector<double> scale;  // per row: sum of weight * |v|, largest over the head dim; 1 if it is 0
};

enum class SumOrder { kExact, kAscending, kDescending };

// kExact: float64. The other two: fp32, `o` rounded to the case's output type as a kernel would.
CaseRows reference_rows(const KernelCase& problem, SumOrder order);

}  // namespace tessera
