// C entry to the prefill kernels for prefill_bench.py, which times them beside other libraries in one process.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "kernels/sm90/fmha_prefill/table.h"
#include "kernels/sm90/fmha_prefill_512/prefill_512.h"
#include "tests/sm90/bench/variants.h"

namespace {

using namespace tessera::sm90;  // NOLINT(google-build-using-namespace): a tool's only file

// The kernels with the general finish: "general" does what the ordinary ones do, the others need it.
bool is_general(const char* variant) {
  return std::strncmp(variant, "general", 7) == 0;
}

const PrefillEntry* find(const char* variant, int head_dim, bool bf16, bool causal) {
  if (std::strcmp(variant, "contract") == 0) {
    return find_prefill(head_dim, bf16, causal);
  }
  if (is_general(variant)) {
    return find_prefill(head_dim, bf16, causal, true);
  }
  for (const PrefillEntry& entry : bench_variants()) {
    if (std::strcmp(entry.name, variant) == 0 && entry.bf16 == bf16 && entry.causal == causal &&
        entry.head_dim == head_dim) {
      return &entry;
    }
  }
  return nullptr;
}

// Of head dim 512.
const Prefill512Entry* find_512(const char* variant, bool bf16) {
  if (std::strcmp(variant, "contract") == 0) {
    return &find_prefill_512(bf16);
  }
  return std::strcmp(variant, "free") == 0 && bf16 ? &free_prefill_512() : nullptr;
}
bool has_variant(const char* variant, int head_dim, bool bf16, bool causal) {
  return head_dim == Layout512::kDims ? find_512(variant, bf16) != nullptr
                                      : find(variant, head_dim, bf16, causal) != nullptr;
}

}  // namespace

// Q, O (batch, seqlen_q, heads_q, head_dim), K, V (batch, seqlen_k, heads_kv, head_dim), contiguous; LSE (batch,
// heads_q, seqlen_q). extra: for variant "timeline", (blocks, consumers, 2048) of two 32-bit words, zeros; for
// "general_sinks" heads_q floats; for "general_states" two arrays like LSE. O of "general_wide" and "general_states" is
// fp32. Returns 0, or 1 after printing why not.
extern "C" __attribute__((visibility("default"))) int tessera_bench_prefill(
    const char* variant, int bf16, int causal, int batch, int seqlen_q, int seqlen_k, int heads_q, int heads_kv,
    int head_dim, const void* q, const void* k, const void* v, void* o, float* lse, void* scratch, float scale,
    int blocks, void* extra, void* stream) {
  if (!has_variant(variant, head_dim, bf16 != 0, causal != 0)) {
    std::fprintf(stderr, "variant %s: not built for this head dim, dtype and mask\n", variant);
    return 1;
  }
  const auto view = [&](const void* data, int64_t tokens, int64_t heads) {
    const int64_t d = head_dim;
    return TensorView{data, batch, tokens, heads, d, tokens * heads * d, heads * d, d};
  };
  PrefillProblem problem;
  problem.dtype = bf16 != 0 ? TESSERA_BF16 : TESSERA_F16;
  problem.q = view(q, seqlen_q, heads_q);
  problem.o = view(o, seqlen_q, heads_q);
  problem.k = view(k, seqlen_k, heads_kv);
  problem.v = view(v, seqlen_k, heads_kv);
  problem.causal = causal != 0;
  problem.softmax_scale = scale;
  problem.lse = {lse, int64_t{heads_q} * seqlen_q, 1, seqlen_q};
  problem.scratch = scratch;
  const bool states = std::strcmp(variant, "general_states") == 0;
  problem.unnormalized = states;
  problem.wide_output = states || std::strcmp(variant, "general_wide") == 0;
  if (states) {
    problem.row_max_log2 = problem.row_sum = problem.lse;
    problem.row_max_log2.data = static_cast<float*>(extra);
    problem.row_sum.data = static_cast<float*>(extra) + int64_t{batch} * heads_q * seqlen_q;
  } else if (std::strcmp(variant, "general_sinks") == 0) {
    problem.sinks = static_cast<const float*>(extra);
  } else {
    problem.timeline = extra;
  }
  auto* const cuda_stream = static_cast<cudaStream_t>(stream);
  const tessera::Status status =
      head_dim == Layout512::kDims
          ? run_prefill_512(*find_512(variant, bf16 != 0), problem, blocks, cuda_stream)
          : run_prefill(*find(variant, head_dim, bf16 != 0, causal != 0), problem, blocks, cuda_stream);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.text().c_str());
  }
  return status.ok() ? 0 : 1;
}

// Bytes of scratch of such a call, whatever the variant.
extern "C" __attribute__((visibility("default"))) size_t tessera_bench_scratch_bytes(int seqlen_k, int head_dim,
                                                                                     int blocks) {
  PrefillProblem problem;
  problem.q.dims = head_dim;
  problem.k.tokens = int64_t{4} * seqlen_k;  // variants have chunks down to a quarter of the contract's
  return head_dim == Layout512::kDims ? prefill_512_scratch_bytes(problem, blocks)
                                      : prefill_scratch_bytes(problem, blocks);
}

// 1 if the variant is built for this head dim, dtype and mask.
extern "C" __attribute__((visibility("default"))) int tessera_bench_has_variant(const char* variant, int head_dim,
                                                                                int bf16, int causal) {
  return has_variant(variant, head_dim, bf16 != 0, causal != 0) ? 1 : 0;
}
