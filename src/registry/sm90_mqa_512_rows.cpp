// The sm90 kernel for one K/V head whose V, of dim 512, is in K behind the public parameters.
#include "registry/sm90_mqa_512_rows.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/sm90/fmha_mqa_512/mqa_512.h"
#include "registry/sm90_gathered.h"
#include "registry/sm90_layout.h"

namespace tessera {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kWideElementBytes = 4;  // of O in fp32
constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;

// Batches or pages, and the tokens of each.
struct KeyExtents {
  int64_t batch, tokens;
};
KeyExtents extents_of(const tessera_fmha_params& p, const tessera_kv_segment& s) {
  const bool paged = s.page_table != nullptr;
  return {paged ? s.num_pages : p.batch, paged ? s.page_size : s.seqlen_k};
}

// Lists are in `lists` once they have memory.
struct Problem {
  sm90::MqaProblem mqa;
  std::array<sm90::GatheredKeys, TESSERA_MAX_SEGMENTS> lists;
  size_t bytes;  // of workspace
};

// With a null workspace its size is found only.
Problem problem_of(const tessera_fmha_params& p, void* workspace) {
  Problem problem{};
  sm90::MqaProblem& mqa = problem.mqa;
  mqa.dtype = p.dtype;
  mqa.q = view_of(p.q, p.batch, p.seqlen_q, p.num_heads_q, p.head_dim_qk);
  mqa.o = view_of(p.o, p.batch, p.seqlen_q, p.num_heads_q, p.head_dim_v);
  mqa.count = p.num_segments;
  mqa.seqlens_q = p.seqlens_q;
  mqa.softmax_scale = p.softmax_scale;
  mqa.sinks = p.sinks;
  mqa.wide_output = p.o_dtype == TESSERA_F32;
  mqa.unnormalized = p.output_mode == TESSERA_OUTPUT_UNNORMALIZED;
  mqa.lse = p.lse_natural_no_sink;
  mqa.row_max = p.row_max_log2;
  mqa.row_sum = p.row_sum;
  auto* const memory = static_cast<char*>(workspace);
  for (int32_t i = 0; i < p.num_segments; ++i) {
    const tessera_kv_segment& s = p.segments[i];
    sm90::MqaSegmentProblem& to = mqa.segments[i];
    const KeyExtents extents = extents_of(p, s);
    // Without a key nothing is read, but addresses are made.
    const bool none = s.seqlen_k == 0 || extents.batch == 0;
    to.k = view_of(none ? p.q : s.k, extents.batch, extents.tokens, 1, p.head_dim_qk);
    to.seqlen_k = s.seqlen_k;
    to.seqlens_k = s.seqlens_k;
    to.page_table = s.page_table;
    to.page_table_stride = s.page_table_stride;
    to.q_positions = s.q_positions;
    to.causal = s.causal != 0;
    to.window_left = s.window_left;
    to.window_right = s.window_right;
    to.compress_ratio = s.compress_ratio;
    if (s.indices == nullptr) continue;
    sm90::GatheredKeys& list = problem.lists[static_cast<size_t>(i)];
    list = gathered_list(p, s);
    place_gathered_list(&list, memory == nullptr ? nullptr : memory + problem.bytes);
    problem.bytes += gathered_list_bytes(list);
    to.gathered = true;
    to.sorted = list.sorted;
    to.counts = list.counts;
    to.topk = list.topk;
  }
  mqa.scratch = memory == nullptr ? nullptr : memory + problem.bytes;
  return problem;
}

const char* segment_limit(const tessera_fmha_params& p, const tessera_kv_segment& s) {
  if (s.seqlen_k > kMost / std::max(s.compress_ratio, 1)) {
    return "seqlen_k: got more than 2^30 - 1, times compress_ratio; allowed up to that";
  }
  const KeyExtents extents = extents_of(p, s);
  if (extents.batch > kMost) return "num_pages: got more than 2^30 - 1; allowed up to that";
  if (s.indices != nullptr) {
    if (s.topk > sm90::kMaxGathered) return "topk: got more than 8192; allowed up to that";
    if (p.seqlens_q != nullptr) return "seqlens_q: got it set for gathered keys; allowed unset";
  }
  if (s.seqlen_k == 0 || extents.batch == 0) return nullptr;
  if (s.v.data != s.k.data || (extents.batch > 1 && s.v.stride_batch != s.k.stride_batch) ||
      (extents.tokens > 1 && s.v.stride_token != s.k.stride_token)) {
    return "v: got other memory than k; allowed the same rows";
  }
  const int64_t rows = rows_of_batch(s.k);
  if (s.indices != nullptr && extents.batch > 1 && (rows <= 0 || rows > kMost / extents.batch)) {
    return "strides of k: got ones by which gathered rows have no numbers below 2^30; allowed batch (page) strides "
           "that are a multiple of the token stride";
  }
  return layout_limit(view_of(s.k, extents.batch, extents.tokens, 1, p.head_dim_qk), kElementBytes);
}

}  // namespace

const char* sm90_mqa_512_limit(const tessera_fmha_params& p) {
  if (p.head_dim_v != 512 || (p.head_dim_qk != 512 && p.head_dim_qk != 576)) {
    return "head_dim_qk, head_dim_v: got others; allowed 512, 512 and 576, 512";
  }
  if (p.num_heads_kv != 1) return "num_heads_kv: got several; allowed 1";
  if (p.seqlen_q > kMost || p.seqlen_q * p.num_heads_q > kMost || p.batch > kMost ||
      p.batch * p.seqlen_q > kMost / p.num_heads_q) {
    return "seqlen_q: got more than 2^30 - 1 rows; allowed up to that";
  }
  for (int32_t i = 0; i < p.num_segments; ++i) {
    if (const char* text = segment_limit(p, p.segments[i]); text != nullptr) return text;
  }
  const auto rows = [&](const tessera_tensor& t, int32_t dims) {
    return view_of(t, p.batch, p.seqlen_q, p.num_heads_q, dims);
  };
  if (const char* text = layout_limit(rows(p.q, p.head_dim_qk), kElementBytes); text != nullptr) return text;
  return layout_limit(rows(p.o, p.head_dim_v), p.o_dtype == TESSERA_F32 ? kWideElementBytes : kElementBytes);
}

// A block has all keys of 64 rows: where there are fewer rows, or few such tiles, the decode kernels split the keys.
bool sm90_mqa_512_is_slow(const tessera_fmha_params& p) {
  constexpr int64_t kRows = sm90::MqaTiling::kRows;
  constexpr int64_t kFewTiles = 64;
  const int64_t unit_rows = (has_gathered(p) ? 1 : p.seqlen_q) * p.num_heads_q;
  return unit_rows < kRows || p.batch * p.seqlen_q * p.num_heads_q < kFewTiles * kRows;
}

size_t sm90_mqa_512_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  const Problem problem = problem_of(p, nullptr);
  return problem.bytes + sm90::mqa_512_scratch_bytes(problem.mqa, most_multiprocessors());
}

Status run_sm90_mqa_512(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  const Result<int> multiprocessors = current_multiprocessors();
  if (!multiprocessors.ok()) return multiprocessors.status();
  const Problem problem = problem_of(p, workspace);
  const auto queue = static_cast<cudaStream_t>(stream.cuda_stream);
  for (int32_t i = 0; i < p.num_segments; ++i) {
    if (p.segments[i].indices == nullptr) continue;
    const cudaError_t error = sm90::launch_sort_gathered(problem.lists[static_cast<size_t>(i)], queue);
    if (error != cudaSuccess) {
      return Status(Code::kDevice, fmt::format("sort of gathered keys: got {} ({}); allowed a launch on an sm_90 "
                                               "device; choose one",
                                               cudaGetErrorName(error), cudaGetErrorString(error)));
    }
  }
  return sm90::run_mqa_512(problem.mqa, multiprocessors.value(), queue);
}

}  // namespace tessera
