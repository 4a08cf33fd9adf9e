// Attention on the CPU: what the registry and the public API see of it.
//
// A call is already validated (src/api): every length, page and pointer named in `params` is sound. Rules R0..R10 are
// those of docs/contract.md, arithmetic cpu-fma32. README.md in this folder explains the decomposition.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera {

struct FmhaSchedule;

// The three task bodies of one instruction set. They run on any thread, in any order, and write disjoint rows.
struct FmhaKernels {
  // Work item `item`: one block of rows of one K/V head of one sequence, all its keys or (split) one unit of them.
  void (*attend)(const FmhaSchedule& schedule, int64_t item, char* scratch);
  // Work item `item` of a split call: chains the states of one block of rows (R8) and finishes it (R9).
  void (*combine)(const FmhaSchedule& schedule, int64_t item, char* scratch);
  // Rows [begin, end) of tessera_fmha_merge; row = token * num_heads_q + head.
  void (*merge)(const tessera_merge_params& params, int64_t begin, int64_t end);
};

extern const FmhaKernels kFmhaPortable;
extern const FmhaKernels kFmhaAvx2;
extern const FmhaKernels kFmhaAvx512;

inline constexpr int32_t kFmhaMaxHeadDim = 576;

// What the kernels do not take, as FmhaEntry::limit of the registry says it, or NULL.
const char* fmha_limit(const tessera_fmha_params& params);

// Workspace of a call with this many threads; a function of shapes and of which pointers are NULL. SIZE_MAX when the
// size does not fit size_t.
size_t fmha_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads);

// `workspace` is 64-byte aligned and holds fmha_workspace_bytes(params, threads of the executor, 1 without one).
void fmha_run(const FmhaKernels& kernels, const tessera_fmha_params& params, void* workspace,
              const tessera_executor* executor);

void fmha_merge(const FmhaKernels& kernels, const tessera_merge_params& params, const tessera_executor* executor);

}  // namespace tessera
