#include "registry/sm90_gathered.h"

#include <algorithm>

namespace tessera {
namespace {

size_t count_bytes(const sm90::GatheredKeys& list) {
  return aligned_bytes(static_cast<size_t>(list.batch * list.seqlen_q) * sizeof(int32_t));
}

}  // namespace

bool has_gathered(const tessera_fmha_params& p) {
  return std::any_of(p.segments, p.segments + p.num_segments, [](const auto& s) { return s.indices != nullptr; });
}

int64_t rows_of_batch(const tessera_tensor& t) {
  return t.stride_token > 0 && t.stride_batch % t.stride_token == 0 ? t.stride_batch / t.stride_token : 0;
}

sm90::GatheredKeys gathered_list(const tessera_fmha_params& p, const tessera_kv_segment& s) {
  constexpr int64_t kFar = int64_t{1} << 40;
  return {.indices = s.indices,
          .indices_stride = s.indices_stride,
          .topk_lens = s.topk_lens,
          .topk = s.topk,
          .batch = p.batch,
          .seqlen_q = p.seqlen_q,
          .seqlen_k = s.seqlen_k,
          .seqlens_k = s.seqlens_k,
          .causal = s.causal != 0,
          .window_left = std::min(s.window_left, kFar),
          .window_right = std::min(s.window_right, kFar),
          .compress_ratio = s.compress_ratio,
          .q_positions = s.q_positions,
          .page_table = s.page_table,
          .page_table_stride = s.page_table_stride,
          .num_pages = s.num_pages,
          .page_size = s.page_size,
          .rows = rows_of_batch(s.k),
          .sorted = nullptr,
          .counts = nullptr};
}

size_t gathered_list_bytes(const sm90::GatheredKeys& list) {
  return count_bytes(list) +
         aligned_bytes(static_cast<size_t>(list.batch * list.seqlen_q * list.topk) * sizeof(int32_t));
}

void place_gathered_list(sm90::GatheredKeys* list, void* memory) {
  auto* const bytes = static_cast<char*>(memory);
  list->counts = reinterpret_cast<int32_t*>(bytes);
  list->sorted = reinterpret_cast<int32_t*>(bytes + count_bytes(*list));
}

}  // namespace tessera
