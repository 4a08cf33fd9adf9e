// The sm90 prefill kernels behind the public parameters.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <limits>

#include "kernels/sm90/fmha_prefill/ragged.h"
#include "kernels/sm90/fmha_prefill/table.h"
#include "registry/sm90_layout.h"
#include "registry/sm90_problem.h"
#include "registry/sm90_rows.h"

namespace tessera {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kWideElementBytes = 4;  // of O in fp32
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max() / 2;
constexpr int64_t kMaxTiles = std::numeric_limits<int32_t>::max() / 2;
constexpr int32_t kDimStep = 8;  // elements of 16 bytes

const sm90::PrefillEntry* entry_of(const tessera_fmha_params& p, bool ragged) {
  const bool bf16 = p.dtype == TESSERA_BF16;
  if (ragged) {
    return sm90::find_ragged_prefill(p.head_dim_qk, p.head_dim_v, bf16, sm90::needs_modifiers(p));
  }
  return sm90::find_prefill(p.head_dim_qk, bf16, p.segments[0].causal != 0,
                            sm90::needs_general_finish(sm90_prefill_problem(p, false)));
}

const char* limit_of(const tessera_fmha_params& p, bool ragged) {
  const sm90::PrefillEntry* entry = entry_of(p, ragged);
  if (entry == nullptr) {
    return "head_dim_qk, dtype, causal: got a combination without a kernel; allowed the others of these";
  }
  if (p.seqlen_q > kMaxTokens || p.segments[0].seqlen_k > kMaxTokens) {
    return "seqlen_q, seqlen_k: got more than 2^30 - 1; allowed up to that";
  }
  if (p.head_dim_qk % kDimStep != 0 || p.head_dim_v % kDimStep != 0) {
    return "head_dim_qk, head_dim_v: got one that is no multiple of 8; allowed multiples of 8";
  }
  const tessera_kv_segment& s = p.segments[0];
  if (s.page_table != nullptr && sm90::ragged_box_keys(entry->granule_keys, true, s.page_size) < sm90::kLeastBoxKeys) {
    return "page_size: got no multiple of 8; allowed multiples of 8";
  }
  // The extents are below 2^31, 2^20 and 2^30.
  const int64_t tiles = (p.seqlen_q + entry->block_m - 1) / entry->block_m;
  if (p.batch * p.num_heads_q > kMaxTiles || p.batch * p.num_heads_q * tiles > kMaxTiles) {
    return "batch: got more than 2^30 - 1 tiles of queries; allowed up to that";
  }
  const sm90::PrefillProblem problem = sm90_prefill_problem(p, ragged);
  for (const sm90::TensorView* t : {&problem.q, &problem.k, &problem.v}) {
    if (const char* text = layout_limit(*t, kElementBytes); text != nullptr) return text;
  }
  return layout_limit(problem.o, problem.wide_output ? kWideElementBytes : kElementBytes);
}

Status run(const tessera_fmha_params& p, bool ragged, void* workspace, const tessera_stream& stream) {
  const Result<int> multiprocessors = current_multiprocessors();
  if (!multiprocessors.ok()) return multiprocessors.status();
  const auto queue = static_cast<cudaStream_t>(stream.cuda_stream);
  // The kernel leaves its counter at 0, but what the caller's workspace holds now is anyone's guess.
  const cudaError_t error = cudaMemsetAsync(workspace, 0, sm90::kCounterBytes, queue);
  if (error != cudaSuccess) {
    return {Code::kDevice, fmt::format("workspace: got {} when cleared on cuda_stream; allowed memory and a stream of "
                                       "the current device; check both",
                                       cudaGetErrorName(error))};
  }
  sm90::PrefillProblem problem = sm90_prefill_problem(p, ragged);
  problem.scratch = workspace;
  return sm90::run_prefill(*entry_of(p, ragged), problem, multiprocessors.value(), queue);
}

}  // namespace

const char* sm90_prefill_limit(const tessera_fmha_params& p) {
  return limit_of(p, false);
}
const char* sm90_ragged_limit(const tessera_fmha_params& p) {
  return limit_of(p, true);
}

// Its tiles are many query tokens of one head; the sm80 kernel packs the heads of a group into tiles of 64 rows and so
// reads K and V once for all of them. H200, bf16, head dim 128, 16 sequences of 4096 keys, 32/8 heads, us (sm90 /
// sm80): 192 / 113 up to 16 tokens, 192 / 154 at 32, 195 / 293 at 64. Without groups (16/16 heads) both take 155 up
// to 64.
bool sm90_prefill_is_slow(const tessera_fmha_params& p) {
  const int64_t group = p.num_heads_q / p.num_heads_kv;
  return group > 1 && p.seqlen_q <= 32 && p.seqlen_q * group <= 128;
}

size_t sm90_prefill_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  return sm90::prefill_scratch_bytes(sm90_prefill_problem(p, false), most_multiprocessors());
}
size_t sm90_ragged_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  return sm90::prefill_scratch_bytes(sm90_prefill_problem(p, true), most_multiprocessors());
}

Status run_sm90_prefill(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  return run(p, false, workspace, stream);
}
Status run_sm90_ragged(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  return run(p, true, workspace, stream);
}

}  // namespace tessera
