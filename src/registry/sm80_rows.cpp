// The sm80 kernels behind the public parameters.
#include <limits>

#include "registry/sm80_rows.h"

namespace tessera {

const char* sm80_fmha_limit(const tessera_fmha_params& p) {
  // Query rows of a K/V head are counted in 32 bits, with room for a tile behind the last one.
  constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max() - 1024;
  if (p.seqlen_q <= kMaxRows / (p.num_heads_q / p.num_heads_kv)) return nullptr;
  return "seqlen_q: got tokens that make more than 2^31 - 1025 rows per K/V head; allowed up to that";
}

size_t sm80_fmha_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  return fmha_sm80_workspace_bytes(p);
}

Status run_sm80_fmha(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  const Result<int> hopper = current_multiprocessors();
  return hopper.ok() ? run_fmha_sm80(p, workspace, stream) : hopper.status();
}

Status run_sm80_merge(const tessera_merge_params& p, const tessera_stream& stream) {
  const Result<int> hopper = current_multiprocessors();
  return hopper.ok() ? run_merge_sm80(p, stream) : hopper.status();
}

}  // namespace tessera
