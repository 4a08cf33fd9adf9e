// The sm90 decode kernels behind the public parameters.
#include "registry/sm90_decode_rows.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <limits>

#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/decode.h"
#include "registry/sm90_layout.h"

namespace tessera {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int32_t kDimStep = 8;     // elements of 16 bytes
constexpr int64_t kMaxRows = 2048;  // query rows of a K/V head
constexpr int64_t kMaxKeys = std::numeric_limits<int32_t>::max() / 2;
constexpr int64_t kMaxUnits = int64_t{1} << 30;

}  // namespace

sm90::DecodeProblem sm90_decode_problem(const tessera_fmha_params& p) {
  const tessera_kv_segment& s = p.segments[0];
  const bool paged = s.page_table != nullptr;
  const bool none = s.seqlen_k == 0 || (paged && s.num_pages == 0);
  const tessera_tensor nothing = {p.q.data, p.head_dim_qk, p.head_dim_qk, p.head_dim_qk, 1};
  const int64_t batch = paged ? s.num_pages : p.batch;
  const int64_t tokens = paged ? s.page_size : s.seqlen_k;
  sm90::DecodeProblem problem;
  problem.dtype = p.dtype;
  problem.q = view_of(p.q, p.batch, p.seqlen_q, p.num_heads_q, p.head_dim_qk);
  problem.o = view_of(p.o, p.batch, p.seqlen_q, p.num_heads_q, p.head_dim_v);
  problem.k = view_of(none ? nothing : s.k, batch, tokens, p.num_heads_kv, p.head_dim_qk);
  problem.v = view_of(none ? nothing : s.v, batch, tokens, p.num_heads_kv, p.head_dim_v);
  problem.seqlen_k = s.seqlen_k;
  problem.seqlens_k = s.seqlens_k;
  problem.page_table = s.page_table;
  problem.page_table_stride = s.page_table_stride;
  problem.causal = s.causal != 0;
  problem.window_left = s.window_left;
  problem.window_right = s.window_right;
  problem.softmax_scale = p.softmax_scale;
  problem.softcap = p.softcap;
  problem.alibi_slopes = p.alibi_slopes;
  problem.mask = s.mask;
  problem.sinks = p.sinks;
  problem.wide_output = p.o_dtype == TESSERA_F32;
  problem.unnormalized = p.output_mode == TESSERA_OUTPUT_UNNORMALIZED;
  problem.lse = p.lse_natural_no_sink;
  problem.row_max = p.row_max_log2;
  problem.row_sum = p.row_sum;
  return problem;
}

const char* sm90_decode_limit(const tessera_fmha_params& p) {
  if (p.seqlens_q != nullptr) {
    return "seqlens_q: got it set; allowed unset";
  }
  if (p.seqlen_q * (p.num_heads_q / p.num_heads_kv) > kMaxRows) {
    return "seqlen_q: got tokens that make more than 2048 rows per K/V head; allowed up to 2048";
  }
  if (p.head_dim_qk % kDimStep != 0 || p.head_dim_v % kDimStep != 0) {
    return "head_dim_qk, head_dim_v: got one that is no multiple of 8; allowed multiples of 8";
  }
  if (p.segments[0].seqlen_k > kMaxKeys) {
    return "seqlen_k: got more than 2^30 - 1; allowed up to that";
  }
  const sm90::DecodeProblem problem = sm90_decode_problem(p);
  if (problem.page_table != nullptr && problem.k.batch > kMaxKeys) {
    return "num_pages: got more than 2^30 - 1; allowed up to that";
  }
  // Before find_decode(), which multiplies them. The factors are below 2^31, 2^20, 2^11 and 2^19.
  const int64_t chunks = (problem.seqlen_k + kChunkKeys - 1) / kChunkKeys + 1;
  if (p.batch * p.num_heads_q > kMaxUnits || p.batch * p.num_heads_q * p.seqlen_q > kMaxUnits ||
      p.batch * p.num_heads_q * p.seqlen_q * chunks > kMaxUnits) {
    return "batch: got more than 2^30 rows times chunks of keys; allowed up to that";
  }
  const sm90::DecodeEntry* entry = sm90::find_decode(problem);
  if (entry == nullptr) {
    return "head_dim_qk, head_dim_v, dtype: got a combination without a kernel; allowed the others of these";
  }
  for (const sm90::TensorView* t : {&problem.q, &problem.k, &problem.v}) {
    if (const char* text = layout_limit(*t, kElementBytes); text != nullptr) return text;
  }
  return nullptr;
}

// A tile of rows reads all of K and V; the kernels for many rows read them once for more of these.
bool sm90_decode_is_slow(const tessera_fmha_params& p) {
  constexpr int64_t kFewRows = 32;
  return p.seqlen_q * (p.num_heads_q / p.num_heads_kv) > kFewRows;
}

size_t sm90_decode_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  const sm90::DecodeProblem problem = sm90_decode_problem(p);
  return sm90::decode_scratch_bytes(*sm90::find_decode(problem), problem);
}

Status run_sm90_decode(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  const Result<int> hopper = current_multiprocessors();
  if (!hopper.ok()) return hopper.status();
  sm90::DecodeProblem problem = sm90_decode_problem(p);
  problem.scratch = workspace;
  return sm90::run_decode(*sm90::find_decode(problem), problem, 0, static_cast<cudaStream_t>(stream.cuda_stream));
}

std::string explain_sm90_decode(const tessera_fmha_params& p) {
  const sm90::DecodeProblem problem = sm90_decode_problem(p);
  const sm90::DecodeEntry* entry = sm90::find_decode(problem);
  if (entry == nullptr) return {};
  const int64_t rows = p.seqlen_q * (p.num_heads_q / p.num_heads_kv);
  return fmt::format(
      "variant: {}\n"
      "instructions: cp.async by rows, mma m16n8k16\n"
      "head dims: {} of Q and K, {} of V and O{}\n"
      "units: a chunk of {} keys of one sequence and K/V head, {} of its {} query rows, in granules of {} keys\n"
      "blocks per unit: {}{}\n"
      "chain of chunks: by {}\n",
      entry->name, entry->head_dim, entry->value_dim, entry->modified ? "; softcap, ALiBi and custom bits" : "",
      kChunkKeys, entry->rows, rows, sm90::granule_keys(entry->head_dim), entry->cluster,
      entry->cluster == 1 ? "" : ", which split scores by granules of keys and outputs by columns",
      entry->counts ? "whoever finishes last" : "a second kernel");
}

}  // namespace tessera
