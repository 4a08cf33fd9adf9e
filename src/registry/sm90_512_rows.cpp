// The sm90 prefill kernel of head dim 512 behind the public parameters.
#include "registry/sm90_512_rows.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/sm90/fmha_prefill/ragged.h"
#include "kernels/sm90/fmha_prefill_512/prefill_512.h"
#include "registry/sm90_layout.h"
#include "registry/sm90_problem.h"

namespace tessera {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kWideElementBytes = 4;  // of O in fp32
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max() / 2;
constexpr int64_t kMaxTiles = std::numeric_limits<int32_t>::max() / 2;
constexpr int32_t kDimStep = 8;           // elements of 16 bytes
constexpr int32_t kLargestWideDim = 128;  // up to which granules have 128 keys

// Whether lengths, windows or layouts are only known on the device.
bool is_ragged(const tessera_fmha_params& p) {
  const tessera_kv_segment& s = p.segments[0];
  return p.cu_seqlens_q != nullptr || p.seqlens_q != nullptr || s.cu_seqlens_k != nullptr || s.seqlens_k != nullptr ||
         s.page_table != nullptr || s.q_positions != nullptr || s.window_left >= 0 || s.window_right >= 0 ||
         s.compress_ratio != 0 || p.chunk_begin != 0 || p.chunk_end != 0;
}

sm90::PrefillProblem problem_of(const tessera_fmha_params& p) {
  return sm90_prefill_problem(p, is_ragged(p));
}

const sm90::Prefill512Entry& entry_of(const tessera_fmha_params& p) {
  return sm90::find_prefill_512(p.dtype == TESSERA_BF16);
}

}  // namespace

const char* sm90_prefill_512_limit(const tessera_fmha_params& p) {
  if (p.seqlen_q > kMaxTokens || p.segments[0].seqlen_k > kMaxTokens) {
    return "seqlen_q, seqlen_k: got more than 2^30 - 1; allowed up to that";
  }
  if (p.head_dim_qk % kDimStep != 0 || p.head_dim_v % kDimStep != 0) {
    return "head_dim_qk, head_dim_v: got one that is no multiple of 8; allowed multiples of 8";
  }
  if (std::max(p.head_dim_qk, p.head_dim_v) <= kLargestWideDim) {
    return "head_dim_qk, head_dim_v: got both up to 128; allowed a larger one (granules of 64 keys)";
  }
  // The extents are below 2^31, 2^20 and 2^30.
  const int64_t tiles = (p.seqlen_q + sm90::Layout512::kBlockM - 1) / sm90::Layout512::kBlockM;
  if (p.batch * p.num_heads_q > kMaxTiles || p.batch * p.num_heads_q * tiles > kMaxTiles) {
    return "batch: got more than 2^30 - 1 tiles of queries; allowed up to that";
  }
  const tessera_kv_segment& segment = p.segments[0];
  if (segment.page_table != nullptr &&
      sm90::ragged_box_keys(sm90::Layout512::kGranule, true, segment.page_size) < sm90::kLeastBoxKeys) {
    return "page_size: got no multiple of 8; allowed multiples of 8";
  }
  const sm90::PrefillProblem problem = problem_of(p);
  for (const sm90::TensorView* t : {&problem.q, &problem.k, &problem.v}) {
    if (const char* text = layout_limit(*t, kElementBytes); text != nullptr) return text;
  }
  return layout_limit(problem.o, problem.wide_output ? kWideElementBytes : kElementBytes);
}

size_t sm90_prefill_512_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  return sm90::prefill_512_scratch_bytes(problem_of(p), most_multiprocessors());
}

Status run_sm90_prefill_512(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
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
  sm90::PrefillProblem problem = problem_of(p);
  problem.scratch = workspace;
  return sm90::run_prefill_512(entry_of(p), problem, multiprocessors.value(), queue);
}

}  // namespace tessera
