// Everything that can be wrong with an attention problem, checked in one place before any kernel runs.
//
// Each refusal is one sentence that names the argument: "segments[1].page_size: got 0; allowed >= 1; ...".
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

inline constexpr int32_t kMaxThreads = 4096;
inline constexpr size_t kWorkspaceAlignment = 64;

// A caller's struct of this or an earlier version, whose size has been checked: fields that it does not have are zero.
template <class Params>
Params complete(const Params& given) {
  Params all{};
  std::memcpy(&all, &given, given.struct_size);
  all.struct_size = sizeof(all);
  return all;
}

// Shapes, strides, enums, and which pointers are NULL. Reads no memory behind the pointers in `params`.
Status check_fmha_shapes(const tessera_fmha_params* params);

// What lies behind the pointers, for kernels that run on the host: lengths, first tokens, pages in use, sinks, slopes.
// After kOk no access of such a kernel leaves the described tensors. `params` has passed check_fmha_shapes and is
// complete.
Status check_fmha_memory(const tessera_fmha_params& params);

Status check_merge_shapes(const tessera_merge_params* params);
Status check_merge_memory(const tessera_merge_params& params);

Status check_threads(int32_t num_threads);
Status check_executor(const tessera_executor* executor);

}  // namespace tessera
