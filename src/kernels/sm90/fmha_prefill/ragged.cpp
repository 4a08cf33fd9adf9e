#include "kernels/sm90/fmha_prefill/ragged.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/sm90/fmha_prefill/ragged_prepare.h"
#include "kernels/sm90/fmha_prefill/ragged_tiles.h"

namespace tessera::sm90 {
namespace {

constexpr int64_t kFar = int64_t{1} << 40;  // beyond every distance between a query and a key
constexpr int64_t kPanelDims = 64;          // of Q, K, V and O that one box of the copy engine holds
constexpr int64_t kLargestInt = std::numeric_limits<int32_t>::max();

bool lengths_differ(const RaggedProblem& r) {
  return r.cu_seqlens_q != nullptr || r.seqlens_q != nullptr;
}

}  // namespace

bool needs_modifiers(const tessera_fmha_params& p) {
  return p.softcap != 0.0F || p.alibi_slopes != nullptr || p.segments[0].mask.data != nullptr;
}

int64_t ragged_kernel_dim(int64_t head_dim_qk, int64_t head_dim_v) {
  const int64_t dims = std::max(head_dim_qk, head_dim_v);
  return dims <= 64 ? 64 : dims <= 128 ? 128 : kWideHeadDim;
}

int64_t ragged_box_keys(int64_t granule_keys, bool paged, int64_t page_size) {
  return paged ? std::min(granule_keys, page_size & -page_size) : granule_keys;
}

void set_visibility(const PrefillProblem& problem, RaggedArguments& to) {
  const RaggedProblem& r = problem.ragged;
  to.left = to.right_end = kFar;
  to.compress_ratio = r.compress_ratio;
  if (r.compress_ratio == 0) {
    to.left = r.window_left < 0 ? kFar : std::min(r.window_left, kFar);
    const int64_t right = r.window_right < 0 ? kFar : std::min(r.window_right, kFar);
    to.right_end = (problem.causal ? 0 : right) + 1;
  }
  const int64_t end = r.chunk_end == 0 ? kLargestInt : r.chunk_end;
  to.first_key = static_cast<int32_t>(std::min(std::min(r.chunk_begin, kLargestInt) * kChunkKeys, kLargestInt));
  to.last_key = static_cast<int32_t>(std::min(std::min(end, kLargestInt) * kChunkKeys, kLargestInt));
}

size_t tile_prefix_bytes(const PrefillProblem& problem) {
  return lengths_differ(problem.ragged) ? static_cast<size_t>(problem.ragged.batch + 1) * sizeof(int32_t) : 0;
}

Status run_ragged_prefill(const PrefillEntry& entry, const PrefillProblem& problem, PrefillArguments a,
                          int multiprocessors, cudaStream_t stream) {
  const RaggedProblem& r = problem.ragged;
  if (problem.q.dims > entry.dims_qk || problem.v.dims > entry.dims_v || problem.q.dims % 8 != 0 ||
      problem.v.dims % 8 != 0) {
    return Status(Code::kUnsupported,
                  fmt::format("{}: got head dims {}, {}; allowed multiples of 8 up to {}, {}; use another kernel",
                              entry.name, problem.q.dims, problem.v.dims, entry.dims_qk, entry.dims_v));
  }
  if (needs_modifiers(problem) && !entry.modifiers) {
    return Status(Code::kUnsupported, fmt::format("{}: got softcap, ALiBi or custom bits; allowed none; use the kernel "
                                                  "with modifiers",
                                                  entry.name));
  }
  const int64_t box = ragged_box_keys(entry.granule_keys, r.page_table != nullptr, r.page_size);
  if (box < kLeastBoxKeys) {
    return Status(Code::kUnsupported, fmt::format("{}: got page_size {}; allowed multiples of {}; use another kernel",
                                                  entry.name, r.page_size, kLeastBoxKeys));
  }
  const int64_t query_tiles = ceil_div(r.seqlen_q, entry.block_m);
  if (r.seqlen_q > kLargestInt / 2 || r.seqlen_k > kLargestInt / 2 || r.batch > kLargestInt / 2 ||
      query_tiles * r.batch > kLargestInt / 2 || query_tiles * r.batch * problem.q.heads > kLargestInt / 2) {
    return Status(Code::kUnsupported,
                  fmt::format("batch, seqlen_q, seqlen_k: got {}, {}, {}; allowed 2^30 - 1 tokens and "
                              "query tiles; split the batch",
                              r.batch, r.seqlen_q, r.seqlen_k));
  }
  if (query_tiles * r.batch * problem.q.heads == 0) {
    return {};  // no row to write
  }

  a.seqlen_q = static_cast<int>(r.seqlen_q);
  a.seqlen_k = static_cast<int>(r.seqlen_k);
  RaggedArguments& to = a.ragged;
  auto* const tile_prefix = const_cast<int32_t*>(to.tile_prefix);
  to = {};
  to.cu_seqlens_q = r.cu_seqlens_q;
  to.seqlens_q = r.seqlens_q;
  to.cu_seqlens_k = r.cu_seqlens_k;
  to.seqlens_k = r.seqlens_k;
  to.q_positions = r.q_positions;
  to.page_table = r.page_table;
  to.page_table_stride = r.page_table_stride;
  to.page_size = r.page_size;
  to.num_pages = static_cast<int32_t>(r.page_table != nullptr ? problem.k.batch : 0);
  to.box_shift = std::countr_zero(static_cast<uint32_t>(box));
  to.tile_prefix = lengths_differ(r) && r.batch > kFewSequences ? tile_prefix : nullptr;
  to.batch = static_cast<int32_t>(r.batch);
  to.query_tiles = static_cast<int32_t>(query_tiles);
  // As in run_prefill(): without a mask one K/V head after the other, with one those that fit L2, but at least
  // kSectionHeads below head dim 256.
  const bool masked = problem.causal || r.window_left >= 0 || r.window_right >= 0 || r.compress_ratio != 0;
  to.section_heads = masked && entry.head_dim != kWideHeadDim ? kSectionHeads : 1;
  to.section_keys = masked ? kSectionBytes / ((problem.q.dims + problem.v.dims) * kElementBytes) : 0;
  to.fast_finish = !needs_general_finish(problem);
  to.natural = r.softcap != 0.0F || r.alibi_slopes != nullptr;
  to.softmax_scale = problem.softmax_scale;
  to.softcap = r.softcap;
  to.alibi_slopes = r.alibi_slopes;
  to.mask = r.mask;
  to.qk_panels = static_cast<int32_t>(ceil_div(problem.q.dims, kPanelDims));
  to.v_panels = static_cast<int32_t>(ceil_div(problem.v.dims, kPanelDims));
  to.v_dims = static_cast<int32_t>(problem.v.dims);
  set_visibility(problem, to);
  a.c = score_scale(problem.softmax_scale, to.natural);

  // Pools and tensors without an element are never read, but a map needs a place.
  const auto some = [&](TensorView t) {
    t.data = t.data == nullptr || t.batch == 0 ? problem.q.data : t.data;
    t.batch = std::max<int64_t>(t.batch, 1);
    return t;
  };
  const TensorView k = some(problem.k);
  const TensorView v = some(problem.v);
  struct Map {
    const char* name;
    const TensorView& tensor;
    int64_t box_tokens;
    Clip clip;
    CUtensorMap& map;
  };
  for (const Map& m :
       {Map{"q", problem.q, kWarpgroupRows, Clip::kEnd, a.q_map}, Map{"k", k, box, Clip::kEnd, a.k_map},
        Map{"v", v, box, Clip::kEnd, a.v_map}, Map{"k", k, box, Clip::kBegin, to.k_begin_map},
        Map{"v", v, box, Clip::kBegin, to.v_begin_map}, Map{"o", problem.o, kWarpgroupRows, Clip::kEnd, a.o_map}}) {
    if (&m.map == &a.o_map && !to.fast_finish) {
      continue;  // O does not go through the copy engine
    }
    Result<CUtensorMap> map = make_clipped_map(m.name, m.tensor, entry.bf16, static_cast<int>(m.box_tokens), m.clip);
    if (!map.ok()) {
      return map.status();
    }
    m.map = map.value();
  }
  cudaError_t error = cudaSuccess;
  if (to.tile_prefix != nullptr) {
    error =
        launch_ragged_prepare({r.cu_seqlens_q, r.seqlens_q, a.seqlen_q, to.batch, entry.block_m, tile_prefix}, stream);
  }
  if (error == cudaSuccess) {
    const int64_t tiles = query_tiles * r.batch * problem.q.heads;
    error = entry.launch(a, static_cast<int>(std::min<int64_t>(multiprocessors, tiles)), stream);
  }
  if (error != cudaSuccess) {
    return Status(Code::kDevice, fmt::format("{}: launch failed: {}", entry.name, cudaGetErrorString(error)));
  }
  return {};
}

}  // namespace tessera::sm90
