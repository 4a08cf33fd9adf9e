// The sm90 kernel for one K/V head whose V, of dim 512, is in K behind the public parameters.
#include "registry/sm90_mqa_512_rows.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "kernels/sm90/fmha_mqa_512/mqa_512.h"
#include "registry/sm90_decode_rows.h"
#include "registry/sm90_gathered.h"
#include "registry/sm90_layout.h"

namespace tessera {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kWideElementBytes = 4;  // of O in fp32
constexpr int64_t kMostFp8PageRows = 1 << 24;
constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
constexpr int64_t kSeveral = 2;  // tokens of a packed tensor, which is stepped through, however many there are

// Batches or pages, and the tokens of each.
struct KeyExtents {
  int64_t batch, tokens;
};
KeyExtents extents_of(const tessera_fmha_params& p, const tessera_kv_segment& s) {
  if (s.page_table != nullptr) return {s.num_pages, s.page_size};
  return s.cu_seqlens_k != nullptr ? KeyExtents{1, kSeveral} : KeyExtents{p.batch, s.seqlen_k};
}

bool is_fp8(const tessera_kv_segment& s) {
  return s.format != TESSERA_KV_DENSE;
}

// Q and O.
sm90::TensorView rows_of(const tessera_fmha_params& p, const tessera_tensor& t, int32_t dims) {
  const bool packed = p.cu_seqlens_q != nullptr;
  return view_of(t, packed ? 1 : p.batch, packed ? kSeveral : p.seqlen_q, p.num_heads_q, dims);
}

const char* segment_limit(const tessera_fmha_params& p, const tessera_kv_segment& s) {
  if (s.seqlen_k > kMost / std::max(s.compress_ratio, 1)) {
    return "seqlen_k: got more than 2^30 - 1, times compress_ratio; allowed up to that";
  }
  const KeyExtents extents = extents_of(p, s);
  if (extents.batch > kMost) return "num_pages: got more than 2^30 - 1; allowed up to that";
  if (s.indices != nullptr) {
    if (s.topk > sm90::kMaxGathered) return "topk: got more than 8192; allowed up to that";
    if (p.seqlens_q != nullptr || p.cu_seqlens_q != nullptr || s.cu_seqlens_k != nullptr) {
      return "seqlens_q, cu_seqlens_q, cu_seqlens_k: got one set for gathered keys; allowed unset";
    }
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
  if (s.format == TESSERA_KV_FP8_V4_584 && extents.tokens > kMostFp8PageRows) {
    return "page_size: got more than 2^24 with TESSERA_KV_FP8_V4_584; allowed up to that";
  }
  return layout_limit(view_of(s.k, extents.batch, extents.tokens, 1, p.head_dim_qk), is_fp8(s) ? 1 : kElementBytes);
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
  if (const char* text = layout_limit(rows_of(p, p.q, p.head_dim_qk), kElementBytes); text != nullptr) return text;
  return layout_limit(rows_of(p, p.o, p.head_dim_v), p.o_dtype == TESSERA_F32 ? kWideElementBytes : kElementBytes);
}

// Where the decode kernels take the problem, too, they may be faster.
bool sm90_mqa_512_is_slow(const tessera_fmha_params& p) {
  const std::span segments(p.segments, static_cast<size_t>(p.num_segments));
  const bool alone = p.cu_seqlens_q != nullptr || std::ranges::any_of(segments, [](const auto& s) {
                       return s.cu_seqlens_k != nullptr || is_fp8(s);
                     });
  return !alone && sm90_decode_limit(p) == nullptr &&
         (sm90_decode_has_wide_team(p) || Sm90MqaProblem(p, nullptr).is_slow());
}

Sm90MqaProblem::Sm90MqaProblem(const tessera_fmha_params& p, void* workspace) : count_(p.num_segments) {
  mqa_.dtype = p.dtype;
  mqa_.q = rows_of(p, p.q, p.head_dim_qk);
  mqa_.o = rows_of(p, p.o, p.head_dim_v);
  mqa_.batch = p.batch;
  mqa_.seqlen_q = p.seqlen_q;
  mqa_.count = p.num_segments;
  mqa_.seqlens_q = p.seqlens_q;
  mqa_.cu_seqlens_q = p.cu_seqlens_q;
  mqa_.softmax_scale = p.softmax_scale;
  mqa_.sinks = p.sinks;
  mqa_.o_rope = p.o_rope;
  mqa_.wide_output = p.o_dtype == TESSERA_F32;
  mqa_.unnormalized = p.output_mode == TESSERA_OUTPUT_UNNORMALIZED;
  mqa_.lse = p.lse_natural_no_sink;
  mqa_.row_max = p.row_max_log2;
  mqa_.row_sum = p.row_sum;
  auto* const memory = static_cast<char*>(workspace);
  for (int32_t i = 0; i < p.num_segments; ++i) {
    const tessera_kv_segment& s = p.segments[i];
    sm90::MqaSegmentProblem& to = mqa_.segments[i];
    const KeyExtents extents = extents_of(p, s);
    // Without a key nothing is read, but addresses are made.
    const bool none = s.seqlen_k == 0 || extents.batch == 0;
    to.k = view_of(none ? p.q : s.k, extents.batch, extents.tokens, 1, p.head_dim_qk);
    to.fp8 = is_fp8(s);
    to.seqlen_k = s.seqlen_k;
    to.seqlens_k = s.seqlens_k;
    to.cu_seqlens_k = s.cu_seqlens_k;
    to.page_table = s.page_table;
    to.page_table_stride = s.page_table_stride;
    to.q_positions = s.q_positions;
    to.causal = s.causal != 0;
    to.window_left = s.window_left;
    to.window_right = s.window_right;
    to.compress_ratio = s.compress_ratio;
    if (s.indices == nullptr) continue;
    sm90::GatheredKeys& list = lists_[static_cast<size_t>(i)];
    list = gathered_list(p, s);
    place_gathered_list(&list, memory == nullptr ? nullptr : memory + list_bytes_);
    list_bytes_ += gathered_list_bytes(list);
    to.gathered = true;
    to.sorted = list.sorted;
    to.counts = list.counts;
    to.topk = list.topk;
  }
  mqa_.scratch = memory == nullptr ? nullptr : memory + list_bytes_;
}

size_t Sm90MqaProblem::workspace_bytes(int parts) const {
  return list_bytes_ + sm90::mqa_512_scratch_bytes(mqa_, parts, most_multiprocessors());
}

// The workspace has been sized for the device with the most multiprocessors, whichever one is current now.
int Sm90MqaProblem::parts() const {
  return sm90::plan_mqa_512(mqa_, most_multiprocessors()).parts;
}

bool Sm90MqaProblem::is_slow() const {
  constexpr int kUsual = 132;  // multiprocessors, where there is no device to ask
  return sm90::mqa_512_is_slow(mqa_, has_hopper() ? most_multiprocessors() : kUsual);
}

Status Sm90MqaProblem::run(int parts, int multiprocessors, cudaStream_t stream) const {
  for (int32_t i = 0; i < count_; ++i) {
    if (!mqa_.segments[i].gathered) continue;
    const cudaError_t error = sm90::launch_sort_gathered(lists_[static_cast<size_t>(i)], stream);
    if (error != cudaSuccess) {
      return Status(Code::kDevice, fmt::format("sort of gathered keys: got {} ({}); allowed a launch on an sm_90 "
                                               "device; choose one",
                                               cudaGetErrorName(error), cudaGetErrorString(error)));
    }
  }
  return sm90::run_mqa_512(mqa_, parts, multiprocessors, stream);
}

size_t sm90_mqa_512_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  const Sm90MqaProblem problem(p, nullptr);
  return problem.workspace_bytes(problem.parts());
}

Status run_sm90_mqa_512(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  const Result<int> multiprocessors = current_multiprocessors();
  if (!multiprocessors.ok()) return multiprocessors.status();
  const Sm90MqaProblem problem(p, workspace);
  return problem.run(problem.parts(), multiprocessors.value(), static_cast<cudaStream_t>(stream.cuda_stream));
}

}  // namespace tessera
