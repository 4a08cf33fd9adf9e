// The sm90 prefill kernels behind the public parameters.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <limits>

#include "kernels/sm90/fmha_prefill/ragged.h"
#include "kernels/sm90/fmha_prefill/table.h"
#include "registry/sm90_layout.h"
#include "registry/sm90_rows.h"

namespace tessera {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kWideElementBytes = 4;  // of O in fp32
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max() / 2;
constexpr int64_t kMaxTiles = std::numeric_limits<int32_t>::max() / 2;
constexpr int32_t kDimStep = 8;  // elements of 16 bytes

constexpr int64_t kSeveral = 2;  // tokens of a tensor that is stepped through, however many there are

// The problem without its scratch, for an ordinary or a ragged kernel. A K/V without keys is never read; its map then
// describes Q's memory.
sm90::PrefillProblem problem_of(const tessera_fmha_params& p, bool ragged) {
  const tessera_kv_segment& s = p.segments[0];
  sm90::PrefillProblem problem;
  problem.dtype = p.dtype;
  const bool packed_q = p.cu_seqlens_q != nullptr;
  const int64_t batch = packed_q ? 1 : p.batch;
  const int64_t tokens = packed_q ? kSeveral : p.seqlen_q;
  problem.q = view_of(p.q, batch, tokens, p.num_heads_q, p.head_dim_qk);
  problem.o = view_of(p.o, batch, tokens, p.num_heads_q, p.head_dim_v);
  const bool paged = s.page_table != nullptr;
  const int64_t kv_batch = paged ? s.num_pages : s.cu_seqlens_k != nullptr ? 1 : p.batch;
  const int64_t keys = paged ? s.page_size : s.cu_seqlens_k != nullptr ? kSeveral : s.seqlen_k;
  const tessera_tensor none = {p.q.data, p.head_dim_qk, p.head_dim_qk, p.head_dim_qk, 1};
  problem.k = view_of(s.seqlen_k == 0 ? none : s.k, kv_batch, keys, p.num_heads_kv, p.head_dim_qk);
  problem.v = view_of(s.seqlen_k == 0 ? none : s.v, kv_batch, keys, p.num_heads_kv, p.head_dim_v);
  problem.causal = s.causal != 0;
  problem.softmax_scale = p.softmax_scale;
  problem.lse = p.lse_natural_no_sink;
  problem.wide_output = p.o_dtype == TESSERA_F32;
  problem.unnormalized = p.output_mode == TESSERA_OUTPUT_UNNORMALIZED;
  problem.row_max_log2 = p.row_max_log2;
  problem.row_sum = p.row_sum;
  problem.sinks = p.sinks;
  problem.ragged = {.wanted = ragged,
                    .batch = p.batch,
                    .seqlen_q = p.seqlen_q,
                    .seqlen_k = s.seqlen_k,
                    .cu_seqlens_q = p.cu_seqlens_q,
                    .seqlens_q = p.seqlens_q,
                    .cu_seqlens_k = s.cu_seqlens_k,
                    .seqlens_k = s.seqlens_k,
                    .q_positions = s.q_positions,
                    .page_table = s.page_table,
                    .page_table_stride = s.page_table_stride,
                    .page_size = s.page_size,
                    .window_left = s.window_left,
                    .window_right = s.window_right,
                    .compress_ratio = s.compress_ratio,
                    .chunk_begin = p.chunk_begin,
                    .chunk_end = p.chunk_end,
                    .softcap = p.softcap,
                    .alibi_slopes = p.alibi_slopes,
                    .mask = s.mask};
  return problem;
}

const sm90::PrefillEntry* entry_of(const tessera_fmha_params& p, bool ragged) {
  const bool bf16 = p.dtype == TESSERA_BF16;
  if (ragged) {
    return sm90::find_ragged_prefill(p.head_dim_qk, p.head_dim_v, bf16, sm90::needs_modifiers(p));
  }
  return sm90::find_prefill(p.head_dim_qk, bf16, p.segments[0].causal != 0,
                            sm90::needs_general_finish(problem_of(p, false)));
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
  const sm90::PrefillProblem problem = problem_of(p, ragged);
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
  sm90::PrefillProblem problem = problem_of(p, ragged);
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
  return sm90::prefill_scratch_bytes(problem_of(p, false), most_multiprocessors());
}
size_t sm90_ragged_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  return sm90::prefill_scratch_bytes(problem_of(p, true), most_multiprocessors());
}

Status run_sm90_prefill(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  return run(p, false, workspace, stream);
}
Status run_sm90_ragged(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  return run(p, true, workspace, stream);
}

}  // namespace tessera
