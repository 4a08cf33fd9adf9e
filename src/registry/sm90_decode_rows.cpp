// The sm90 decode kernels behind the public parameters.
#include "registry/sm90_decode_rows.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/decode.h"
#include "registry/sm90_gathered.h"
#include "registry/sm90_layout.h"
#include "registry/sm90_mqa_512_rows.h"

namespace tessera {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int32_t kDimStep = 8;     // elements of 16 bytes
constexpr int64_t kMaxRows = 2048;  // query rows of a K/V head
constexpr int64_t kMaxKeys = std::numeric_limits<int32_t>::max() / 2;
constexpr int64_t kMaxUnits = int64_t{1} << 30;

// A segment of the problem, without scratch.
sm90::DecodeProblem segment_of(const tessera_fmha_params& p, int32_t segment) {
  const tessera_kv_segment& s = p.segments[segment];
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
  problem.compress_ratio = s.compress_ratio;
  problem.q_positions = s.q_positions;
  problem.sinks = p.sinks;
  problem.wide_output = p.o_dtype == TESSERA_F32;
  problem.unnormalized = p.output_mode == TESSERA_OUTPUT_UNNORMALIZED;
  problem.lse = p.lse_natural_no_sink;
  problem.row_max = p.row_max_log2;
  problem.row_sum = p.row_sum;
  return problem;
}

// Query rows that share K and V.
int64_t rows_of(const tessera_fmha_params& p) {
  return (has_gathered(p) ? 1 : p.seqlen_q) * (p.num_heads_q / p.num_heads_kv);
}

// Every token a sequence; the strides allow it (see the limit).
void flatten(const tessera_fmha_params& p, sm90::DecodeProblem* problem) {
  for (sm90::TensorView* t : {&problem->q, &problem->o}) {
    t->batch = p.batch * p.seqlen_q;
    t->tokens = 1;
    t->stride_batch = p.seqlen_q > 1 ? t->stride_token : t->stride_batch;
  }
  for (tessera_row_scalars* t : {&problem->lse, &problem->row_max, &problem->row_sum}) {
    t->stride_batch = p.seqlen_q > 1 ? t->stride_token : t->stride_batch;
  }
}

// The segment as pages of one key. What the table and the lengths hold is known once the list is sorted.
void gather(const tessera_fmha_params& p, const tessera_kv_segment& s, sm90::DecodeProblem* problem) {
  for (sm90::TensorView* t : {&problem->k, &problem->v}) {
    t->batch = std::max<int64_t>(1, (t->batch - 1) * rows_of_batch(s.k) + t->tokens);
    t->tokens = 1;
    t->stride_batch = t->stride_token;
  }
  problem->seqlen_k = s.topk;
  problem->seqlens_k = problem->page_table = s.indices;
  problem->page_table_stride = s.topk;
  problem->causal = false;
  problem->window_left = problem->window_right = -1;
  problem->compress_ratio = 0;
  problem->q_positions = nullptr;
  flatten(p, problem);
}

// What is special about problems with gathered keys, or null.
const char* gathered_limit(const tessera_fmha_params& p) {
  if (!has_gathered(p)) return nullptr;
  const std::span segments(p.segments, static_cast<size_t>(p.num_segments));
  if (p.alibi_slopes != nullptr) {
    return "alibi_slopes: got them for gathered keys; allowed NULL";
  }
  for (const tessera_kv_segment& s : segments) {
    if (s.indices == nullptr) {
      if (p.seqlen_q > 1) return "indices: got several query tokens and a segment without; allowed in all segments";
      continue;
    }
    if (s.topk > sm90::kMaxGathered) return "topk: got more than 8192; allowed up to that";
    if (s.mask.data != nullptr) return "mask: got one for gathered keys; allowed NULL";
    if (s.seqlen_k > kMaxKeys) return "seqlen_k: got more than 2^30 - 1; allowed up to that";
    if (s.seqlen_k == 0) continue;
    const int64_t batches = s.page_table != nullptr ? s.num_pages : p.batch;
    const int64_t rows = rows_of_batch(s.k);
    if (batches > 1 && (rows <= 0 || rows_of_batch(s.v) != rows || rows > kMaxKeys / batches)) {
      return "strides of k, v: got ones by which gathered rows have no numbers below 2^30; allowed batch (page) "
             "strides "
             "that are one multiple of the token strides";
    }
  }
  if (p.seqlen_q > 1 && p.batch > 1) {
    for (const tessera_tensor* t : {&p.q, &p.o}) {
      if (t->stride_batch != p.seqlen_q * t->stride_token) {
        return "strides of q, o: got batches of several tokens apart; allowed behind one another with gathered keys";
      }
    }
    for (const tessera_row_scalars* t : {&p.lse_natural_no_sink, &p.row_max_log2, &p.row_sum}) {
      if (t->data != nullptr && t->stride_batch != p.seqlen_q * t->stride_token) {
        return "strides of LSE and states: got batches of several tokens apart; allowed behind one another with "
               "gathered keys";
      }
    }
  }
  return nullptr;
}

}  // namespace

Sm90DecodeProblem::Sm90DecodeProblem(const tessera_fmha_params& p) : count_(static_cast<size_t>(p.num_segments)) {
  for (size_t i = count_; i-- > 0;) {
    const tessera_kv_segment& s = p.segments[i];
    segments_[i] = segment_of(p, static_cast<int32_t>(i));
    segments_[i].next = i + 1 < count_ ? &segments_[i + 1] : nullptr;
    if (s.indices == nullptr) continue;
    lists_[list_count_] = gathered_list(p, s);
    listed_[list_count_++] = i;
    gather(p, s, &segments_[i]);
  }
}

size_t Sm90DecodeProblem::workspace_bytes(const sm90::DecodeEntry& entry) const {
  size_t bytes = sm90::decode_scratch_bytes(entry, segments_[0]);
  for (size_t i = 0; i < list_count_; ++i) bytes = aligned_bytes(bytes) + gathered_list_bytes(lists_[i]);
  return bytes;
}

std::span<const sm90::GatheredKeys> Sm90DecodeProblem::place(const sm90::DecodeEntry& entry, void* workspace) {
  segments_[0].scratch = workspace;
  size_t bytes = sm90::decode_scratch_bytes(entry, segments_[0]);
  for (size_t i = 0; i < list_count_; ++i) {
    place_gathered_list(&lists_[i], static_cast<char*>(workspace) + aligned_bytes(bytes));
    segments_[listed_[i]].seqlens_k = lists_[i].counts;
    segments_[listed_[i]].page_table = lists_[i].sorted;
    bytes = aligned_bytes(bytes) + gathered_list_bytes(lists_[i]);
  }
  return {lists_.data(), list_count_};
}

const char* sm90_decode_limit(const tessera_fmha_params& p) {
  if (p.seqlens_q != nullptr) {
    return "seqlens_q: got it set; allowed unset";
  }
  if (const char* text = gathered_limit(p); text != nullptr) return text;
  if (rows_of(p) > kMaxRows) {
    return "seqlen_q: got tokens that make more than 2048 rows per K/V head; allowed up to 2048";
  }
  if (p.head_dim_qk % kDimStep != 0 || p.head_dim_v % kDimStep != 0) {
    return "head_dim_qk, head_dim_v: got one that is no multiple of 8; allowed multiples of 8";
  }
  Sm90DecodeProblem problem(p);
  int64_t chunks = 0;
  for (const sm90::DecodeProblem& segment : problem.segments()) {
    if (segment.seqlen_k > kMaxKeys) {
      return "seqlen_k: got more than 2^30 - 1; allowed up to that";
    }
    if (segment.page_table != nullptr && segment.k.batch > kMaxKeys) {
      return "num_pages: got more than 2^30 - 1; allowed up to that";
    }
    chunks += (segment.seqlen_k + kChunkKeys - 1) / kChunkKeys + 1;
  }
  // Before find_decode(), which multiplies them. The factors are below 2^31, 2^20, 2^11 and 2^21.
  if (p.batch * p.num_heads_q > kMaxUnits || p.batch * p.num_heads_q * p.seqlen_q > kMaxUnits ||
      p.batch * p.num_heads_q * p.seqlen_q * chunks > kMaxUnits) {
    return "batch: got more than 2^30 rows times chunks of keys; allowed up to that";
  }
  const sm90::DecodeEntry* entry = sm90::find_decode(problem.first());
  if (entry == nullptr) {
    return "head_dim_qk, head_dim_v, dtype: got a combination without a kernel; allowed the others of these";
  }
  for (const sm90::DecodeProblem& segment : problem.segments()) {
    for (const sm90::TensorView* t : {&segment.q, &segment.k, &segment.v}) {
      if (const char* text = layout_limit(*t, kElementBytes); text != nullptr) return text;
    }
  }
  return nullptr;
}

// A tile of rows reads all of K and V; the kernels for many rows read them once for more of these. H200, bf16, head dim
// 128, one K/V head, 8320 keys, us (decode / sm80): 64 rows 31 / 214 for one sequence and 171 / 204 for 64, 128 rows
// 27 / 212 and 319 / 203. Where a cluster takes a unit at once, it is faster than blocks with 64 rows each.
bool sm90_decode_is_slow(const tessera_fmha_params& p) {
  constexpr int64_t kFewRows = 64;
  const Sm90DecodeProblem problem(p);
  if (sm90_mqa_512_limit(p) == nullptr && std::ranges::none_of(problem.segments(), sm90::has_modified_scores)) {
    return !sm90_mqa_512_is_slow(p);  // which compares the two
  }
  return rows_of(p) > kFewRows && !sm90_decode_has_wide_team(p);
}

bool sm90_decode_has_wide_team(const tessera_fmha_params& p) {
  constexpr int kWide = 512;
  Sm90DecodeProblem problem(p);
  const sm90::DecodeEntry* entry = sm90::find_decode(problem.first());
  return entry != nullptr && entry->value_dim == kWide && entry->cluster > 1;
}

size_t sm90_decode_workspace_bytes(const tessera_fmha_params& p, int32_t /*num_threads*/) {
  Sm90DecodeProblem problem(p);
  return problem.workspace_bytes(*sm90::find_decode(problem.first()));
}

Status run_sm90_decode(const tessera_fmha_params& p, void* workspace, const tessera_stream& stream) {
  const Result<int> hopper = current_multiprocessors();
  if (!hopper.ok()) return hopper.status();
  Sm90DecodeProblem problem(p);
  const sm90::DecodeEntry& entry = *sm90::find_decode(problem.first());
  const auto queue = static_cast<cudaStream_t>(stream.cuda_stream);
  for (const sm90::GatheredKeys& list : problem.place(entry, workspace)) {
    const cudaError_t error = sm90::launch_sort_gathered(list, queue);
    if (error != cudaSuccess) {
      return Status(Code::kDevice, fmt::format("sort of gathered keys: got {} ({}); allowed a launch on an sm_90 "
                                               "device; choose one",
                                               cudaGetErrorName(error), cudaGetErrorString(error)));
    }
  }
  return sm90::run_decode(entry, problem.first(), 0, queue);
}

std::string explain_sm90_decode(const tessera_fmha_params& p) {
  Sm90DecodeProblem problem(p);
  const sm90::DecodeEntry* entry = sm90::find_decode(problem.first());
  if (entry == nullptr) return {};
  const int64_t rows = rows_of(p);
  return fmt::format(
      "variant: {}\n"
      "instructions: cp.async by rows, mma m16n8k16\n"
      "head dims: {} of Q and K, {} of V and O{}\n"
      "units: a chunk of {} keys of one sequence and K/V head, {} of its {} query rows, in granules of {} keys\n"
      "blocks per unit: {}{}\n"
      "chain of chunks: by {}\n"
      "{}",
      entry->name, entry->head_dim, entry->value_dim, entry->modified ? "; softcap, ALiBi and custom bits" : "",
      kChunkKeys, entry->rows, rows, sm90::granule_keys(entry->head_dim), entry->cluster,
      entry->cluster == 1 ? "" : ", which split scores by granules of keys and outputs by columns",
      entry->counts ? "whoever finishes last" : "a second kernel",
      has_gathered(p) ? "gathered keys: a kernel sorts the lists first, which then are tables of pages of one key\n"
                      : "");
}

}  // namespace tessera
