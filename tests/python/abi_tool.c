/* Prints what the C compiler made of the public structures, one "structure field offset" or "structure size" a line. */
#include <stddef.h>
#include <stdio.h>

#include "tessera/tessera.h"

#define FIELD(structure, field) printf(#structure " " #field " %zu\n", offsetof(structure, field))
#define SIZE(structure) printf(#structure " %zu\n", sizeof(structure))

int main(void) {
  SIZE(tessera_fmha_params);
  FIELD(tessera_fmha_params, struct_size);
  FIELD(tessera_fmha_params, dtype);
  FIELD(tessera_fmha_params, o_dtype);
  FIELD(tessera_fmha_params, head_dim_qk);
  FIELD(tessera_fmha_params, head_dim_v);
  FIELD(tessera_fmha_params, num_heads_q);
  FIELD(tessera_fmha_params, num_heads_kv);
  FIELD(tessera_fmha_params, batch);
  FIELD(tessera_fmha_params, q);
  FIELD(tessera_fmha_params, seqlen_q);
  FIELD(tessera_fmha_params, cu_seqlens_q);
  FIELD(tessera_fmha_params, seqlens_q);
  FIELD(tessera_fmha_params, num_segments);
  FIELD(tessera_fmha_params, segments);
  FIELD(tessera_fmha_params, softmax_scale);
  FIELD(tessera_fmha_params, softcap);
  FIELD(tessera_fmha_params, alibi_slopes);
  FIELD(tessera_fmha_params, sinks);
  FIELD(tessera_fmha_params, output_mode);
  FIELD(tessera_fmha_params, o);
  FIELD(tessera_fmha_params, lse_natural_no_sink);
  FIELD(tessera_fmha_params, row_max_log2);
  FIELD(tessera_fmha_params, row_sum);
  FIELD(tessera_fmha_params, chunk_begin);
  FIELD(tessera_fmha_params, chunk_end);
  FIELD(tessera_fmha_params, force_kernel);
  FIELD(tessera_fmha_params, device);
  FIELD(tessera_fmha_params, o_rope);
  SIZE(tessera_output_rope);
  FIELD(tessera_output_rope, cos_table);
  FIELD(tessera_output_rope, sin_table);
  FIELD(tessera_output_rope, positions);
  FIELD(tessera_output_rope, num_positions);
  FIELD(tessera_output_rope, rotary_dim);
  SIZE(tessera_kv_segment);
  FIELD(tessera_kv_segment, k);
  FIELD(tessera_kv_segment, v);
  FIELD(tessera_kv_segment, format);
  FIELD(tessera_kv_segment, seqlen_k);
  FIELD(tessera_kv_segment, seqlens_k);
  FIELD(tessera_kv_segment, cu_seqlens_k);
  FIELD(tessera_kv_segment, page_table);
  FIELD(tessera_kv_segment, page_table_stride);
  FIELD(tessera_kv_segment, page_size);
  FIELD(tessera_kv_segment, num_pages);
  FIELD(tessera_kv_segment, causal);
  FIELD(tessera_kv_segment, window_left);
  FIELD(tessera_kv_segment, window_right);
  FIELD(tessera_kv_segment, compress_ratio);
  FIELD(tessera_kv_segment, q_positions);
  FIELD(tessera_kv_segment, mask);
  FIELD(tessera_kv_segment, indices);
  FIELD(tessera_kv_segment, indices_stride);
  FIELD(tessera_kv_segment, topk);
  FIELD(tessera_kv_segment, topk_lens);
  SIZE(tessera_bit_mask);
  FIELD(tessera_bit_mask, data);
  FIELD(tessera_bit_mask, stride_batch);
  FIELD(tessera_bit_mask, stride_head);
  FIELD(tessera_bit_mask, stride_row);
  FIELD(tessera_bit_mask, num_keys);
  SIZE(tessera_tensor);
  FIELD(tessera_tensor, data);
  FIELD(tessera_tensor, stride_batch);
  FIELD(tessera_tensor, stride_token);
  FIELD(tessera_tensor, stride_head);
  FIELD(tessera_tensor, stride_dim);
  SIZE(tessera_row_scalars);
  FIELD(tessera_row_scalars, data);
  FIELD(tessera_row_scalars, stride_batch);
  FIELD(tessera_row_scalars, stride_token);
  FIELD(tessera_row_scalars, stride_head);
  SIZE(tessera_error);
  FIELD(tessera_error, code);
  FIELD(tessera_error, text);
  SIZE(tessera_stream);
  FIELD(tessera_stream, executor);
  FIELD(tessera_stream, cuda_stream);
  SIZE(tessera_kernel_info);
  FIELD(tessera_kernel_info, name);
  FIELD(tessera_kernel_info, arithmetic);
  FIELD(tessera_kernel_info, summary);
  FIELD(tessera_kernel_info, operation);
  FIELD(tessera_kernel_info, available);
  FIELD(tessera_kernel_info, reason);
  return 0;
}
