// C entry to the sm_80 attention kernels for sm80_bench.py, which times them beside other libraries in one process.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "kernels/sm80/fmha/entry.h"
#include "sm80/variants.h"

namespace {

const tessera::sm80::Entry* find(const char* name, const tessera_fmha_params& params) {
  if (std::strcmp(name, "library") == 0) {
    return tessera::sm80::find_entry(params);
  }
  const tessera::test::Variant* const variant = tessera::test::find_variant(name);
  return variant != nullptr && tessera::sm80::fits(variant->entry, params) ? &variant->entry : nullptr;
}

}  // namespace

// Q, O (batch, seqlen_q, heads_q, dim), K, V (batch, seqlen_k, heads_kv, dim), contiguous. page_size > 0: K and V are
// pools of pages of that many tokens, page_table (batch, seqlen_k / page_size). Enqueues one call; with `workspace`
// null returns the bytes it needs instead, and -1 for a variant that does not exist.
extern "C" __attribute__((visibility("default"))) int64_t tessera_bench_sm80(
    const char* name, int bf16, int causal, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int heads_q,
    int heads_kv, int dim, void* q, void* k, void* v, void* o, float scale, int page_size, const int32_t* page_table,
    void* workspace, int multiprocessors, void* stream) {
  const auto tensor = [&](void* data, int64_t tokens, int64_t heads) {
    return tessera_tensor{data, tokens * heads * dim, heads * dim, dim, 1};
  };
  tessera_fmha_params p{};
  p.struct_size = sizeof(p);
  p.dtype = p.o_dtype = bf16 != 0 ? TESSERA_BF16 : TESSERA_F16;
  p.head_dim_qk = p.head_dim_v = dim;
  p.num_heads_q = heads_q;
  p.num_heads_kv = heads_kv;
  p.batch = batch;
  p.seqlen_q = seqlen_q;
  p.q = tensor(q, seqlen_q, heads_q);
  p.o = tensor(o, seqlen_q, heads_q);
  p.num_segments = 1;
  p.segments[0].k = tensor(k, seqlen_k, heads_kv);
  p.segments[0].v = tensor(v, seqlen_k, heads_kv);
  p.segments[0].seqlen_k = seqlen_k;
  p.segments[0].causal = causal;
  p.segments[0].window_left = p.segments[0].window_right = -1;
  if (page_size > 0) {
    p.segments[0].k.stride_batch = p.segments[0].v.stride_batch = int64_t{page_size} * heads_kv * dim;
    p.segments[0].page_table = page_table;
    p.segments[0].page_size = page_size;
    p.segments[0].page_table_stride = seqlen_k / page_size;
    p.segments[0].num_pages = batch * seqlen_k / page_size;
  }
  p.softmax_scale = scale;
  const tessera::sm80::Entry* entry = find(name, p);
  if (entry == nullptr) {
    return -1;
  }
  if (workspace == nullptr) {
    return static_cast<int64_t>(tessera::sm80::workspace_bytes(*entry, p, multiprocessors));
  }
  const tessera::Status status =
      tessera::sm80::run(*entry, p, workspace, multiprocessors, static_cast<cudaStream_t>(stream));
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.text().c_str());
  }
  return status.ok() ? 0 : -1;
}
