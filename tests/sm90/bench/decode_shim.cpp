// C entry to the decode kernels for decode_bench.py, which times them beside other libraries in one process.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "tests/sm90/bench/decode_variants.h"

namespace {

using namespace tessera::sm90;  // NOLINT(google-build-using-namespace): a tool's only file

// Number `variant` of decode_variants(), or null.
const DecodeEntry* find(int variant) {
  static const std::vector<DecodeEntry> entries = decode_variants();
  return variant >= 0 && static_cast<size_t>(variant) < entries.size() ? &entries[static_cast<size_t>(variant)]
                                                                       : nullptr;
}

DecodeProblem problem_of(int batch, int seqlen_k, int heads_q, int heads_kv, const void* q, const void* k,
                         const void* v, void* o, const int* seqlens_k, void* scratch) {
  const auto view = [&](const void* data, int64_t tokens, int64_t heads) {
    constexpr int64_t kDim = 128;
    return TensorView{data, batch, tokens, heads, kDim, tokens * heads * kDim, heads * kDim, kDim};
  };
  DecodeProblem problem;
  problem.q = view(q, 1, heads_q);
  problem.o = view(o, 1, heads_q);
  problem.k = view(k, seqlen_k, heads_kv);
  problem.v = view(v, seqlen_k, heads_kv);
  problem.seqlen_k = seqlen_k;
  problem.seqlens_k = seqlens_k;
  problem.softmax_scale = 0.08838834764F;
  problem.scratch = scratch;
  return problem;
}

}  // namespace

// Q, O (batch, 1, heads_q, 128), K, V (batch, seqlen_k, heads_kv, 128), bf16, contiguous. Returns 0, or 1 after
// printing why not.
extern "C" __attribute__((visibility("default"))) int tessera_bench_decode(int variant, int batch, int seqlen_k,
                                                                           int heads_q, int heads_kv, const void* q,
                                                                           const void* k, const void* v, void* o,
                                                                           const int* seqlens_k, void* scratch,
                                                                           void* stream) {
  const DecodeEntry* entry = find(variant);
  if (entry == nullptr) {
    std::fprintf(stderr, "variant %d: not built\n", variant);
    return 1;
  }
  const tessera::Status status =
      run_decode(*entry, problem_of(batch, seqlen_k, heads_q, heads_kv, q, k, v, o, seqlens_k, scratch), 0,
                 static_cast<cudaStream_t>(stream));
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.text().c_str());
  }
  return status.ok() ? 0 : 1;
}

// Bytes of scratch of such a call.
extern "C" __attribute__((visibility("default"))) size_t tessera_bench_decode_scratch(int variant, int batch,
                                                                                      int seqlen_k, int heads_q,
                                                                                      int heads_kv) {
  const DecodeEntry* entry = find(variant);
  return entry == nullptr ? 0
                          : decode_scratch_bytes(*entry, problem_of(batch, seqlen_k, heads_q, heads_kv, nullptr,
                                                                    nullptr, nullptr, nullptr, nullptr, nullptr));
}

// Units that the device works on at a time, and the name.
extern "C" __attribute__((visibility("default"))) int tessera_bench_decode_resident(int variant) {
  int clusters = 0;
  const DecodeEntry* entry = find(variant);
  return entry != nullptr && entry->resident(&clusters) == cudaSuccess ? clusters : -1;
}

extern "C" __attribute__((visibility("default"))) const char* tessera_bench_decode_name(int variant) {
  const DecodeEntry* entry = find(variant);
  return entry == nullptr ? nullptr : entry->name;
}

// Reads K and V and nothing else.
extern "C" __attribute__((visibility("default"))) int tessera_bench_read(const void* k, const void* v, int64_t bytes,
                                                                         int* sink, void* stream) {
  return launch_read_only(k, v, bytes, sink, static_cast<cudaStream_t>(stream)) == cudaSuccess ? 0 : 1;
}
