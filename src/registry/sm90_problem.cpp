#include "registry/sm90_problem.h"

#include "registry/sm90_layout.h"

namespace tessera {
namespace {

constexpr int64_t kSeveral = 2;  // tokens of a tensor that is stepped through, however many there are

}  // namespace

sm90::PrefillProblem sm90_prefill_problem(const tessera_fmha_params& p, bool ragged) {
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

}  // namespace tessera
