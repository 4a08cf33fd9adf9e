#include "kernels/sm90/fmha_prefill_512/prefill_512.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "kernels/sm90/fmha_prefill/ragged.h"
#include "kernels/sm90/fmha_prefill/ragged_prepare.h"
#include "kernels/sm90/tma_panels_map.h"

namespace tessera::sm90 {
namespace {

using Layout = Layout512;

constexpr std::array<Prefill512Entry, 2> kEntries = {{
    {"sm90_prefill_512_bf16", true, &launch_prefill_512<Prefill512<true>>},
    {"sm90_prefill_512_f16", false, &launch_prefill_512<Prefill512<false>>},
}};

constexpr size_t kAccumulatorsAt = 128;  // behind the counter, on a line of the L2 cache of its own
constexpr size_t kScratchAlignment = 128;

// O (64, 256) in fp32 and four scalars a thread, per consumer.
size_t accumulator_bytes(int multiprocessors) {
  return static_cast<size_t>(multiprocessors) * Layout::kConsumers * (Layout::kColumns / 8 + 1) * 128 * sizeof(float4);
}
// What a ragged problem's tensors do not say.
struct Extents {
  int64_t batch, seqlen_q, seqlen_k;
};
Extents extents_of(const PrefillProblem& p) {
  return p.ragged.wanted ? Extents{p.ragged.batch, p.ragged.seqlen_q, p.ragged.seqlen_k}
                         : Extents{p.q.batch, p.q.tokens, p.k.tokens};
}

// The scratch: the tile counter, where the tiles of each sequence begin, chunks, superchunks.
struct Scratch {
  size_t prefix, chains, superchunks, end;
};
Scratch scratch_of(const PrefillProblem& problem, int multiprocessors) {
  const int64_t keys = extents_of(problem).seqlen_k;
  Scratch s{kAccumulatorsAt, 0, 0, 0};
  const size_t prefix = problem.ragged.wanted ? tile_prefix_bytes(problem) : 0;
  s.chains = s.prefix + (prefix + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  s.superchunks = s.chains + (keys > kChunkKeys ? accumulator_bytes(multiprocessors) : 0);
  s.end = s.superchunks + (keys > int64_t{kChunkKeys} * kSuperchunkChunks ? accumulator_bytes(multiprocessors) : 0);
  return s;
}

Status refuse(Code code, std::string text) {
  return Status(code, std::move(text));
}

Status check(const Prefill512Entry& entry, const PrefillProblem& p) {
  if (p.dtype != (entry.bf16 ? TESSERA_BF16 : TESSERA_F16)) {
    return refuse(Code::kUnsupported, fmt::format("{}: got dtype {}; allowed {}; use the kernel of that dtype",
                                                  entry.name, static_cast<int>(p.dtype), entry.bf16 ? "bf16" : "f16"));
  }
  for (const TensorView* t : {&p.q, &p.k, &p.v, &p.o}) {
    if (t->dims < 8 || t->dims > Layout::kDims || t->dims % 8 != 0) {
      return refuse(Code::kUnsupported, fmt::format("{}: got head_dim {}; allowed multiples of 8 up to {}", entry.name,
                                                    t->dims, Layout::kDims));
    }
  }
  const bool batches_differ =
      !p.ragged.wanted && (p.k.batch != p.q.batch || p.v.batch != p.q.batch || p.o.batch != p.q.batch);
  if (p.o.tokens != p.q.tokens || p.o.heads != p.q.heads || p.v.tokens != p.k.tokens || p.v.heads != p.k.heads ||
      batches_differ || p.k.dims != p.q.dims || p.o.dims != p.v.dims) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("{}: got Q, K, V, O of different shapes; allowed equal batch, tokens of Q and O, tokens "
                              "and heads of K and V, dims of Q and K, of V and O; pass tensors that fit",
                              entry.name));
  }
  if (p.k.heads < 1 || p.q.heads % p.k.heads != 0) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("num_heads_kv: got {}; allowed divisors of num_heads_q ({})", p.k.heads, p.q.heads));
  }
  if (p.unnormalized && (!p.wide_output || p.sinks != nullptr)) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("{}: got a state with sinks or 16-bit O; allowed fp32 O without sinks", entry.name));
  }
  const int64_t o_bytes = p.wide_output ? 4 : 2;
  if (reinterpret_cast<uintptr_t>(p.o.data) % 16 != 0 || p.o.stride_batch * o_bytes % 16 != 0 ||
      p.o.stride_token * o_bytes % 16 != 0 || p.o.stride_head * o_bytes % 16 != 0) {
    return refuse(Code::kUnsupported, "o: got an address or stride that is no multiple of 16 bytes; copy the tensor");
  }
  if (!(p.softmax_scale > 0.0F) || p.softmax_scale > std::numeric_limits<float>::max()) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("softmax_scale: got {}; allowed positive finite numbers", p.softmax_scale));
  }
  if (p.ragged.wanted && needs_modifiers(p)) {
    return refuse(Code::kUnsupported,
                  fmt::format("{}: got softcap, ALiBi or custom bits; allowed none; use another kernel", entry.name));
  }
  if (p.ragged.page_table != nullptr && ragged_box_keys(Layout::kGranule, true, p.ragged.page_size) < kLeastBoxKeys) {
    return refuse(Code::kUnsupported, fmt::format("{}: got page_size {}; allowed multiples of {}; use another kernel",
                                                  entry.name, p.ragged.page_size, kLeastBoxKeys));
  }
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max() / 2;
  const Extents e = extents_of(p);
  const int64_t tiles = ceil_div(e.seqlen_q, Layout::kBlockM);
  if (e.seqlen_q > kLongest || e.seqlen_k > kLongest || p.q.heads * e.batch > kLongest ||
      p.q.heads * e.batch * tiles > kLongest) {
    return refuse(
        Code::kUnsupported,
        fmt::format("seqlen: got {} and {} tokens of {} heads; allowed up to {} and as many query tiles of {}",
                    e.seqlen_q, e.seqlen_k, p.q.heads * e.batch, kLongest, Layout::kBlockM));
  }
  return {};
}

struct Map {
  const char* name;
  const TensorView& tensor;
  int box_tokens;
  CUtensorMap& map;
};

// Maps of whole tensors: what lies behind a sequence is zeros.
Status make_maps(const Prefill512Entry& entry, const PrefillProblem& problem, Arguments512& a) {
  // The copy engine knows no empty tensor; with no keys at all the kernel loads nothing.
  TensorView k = problem.k;
  TensorView v = problem.v;
  k.tokens = std::max<int64_t>(k.tokens, 1);
  v.tokens = k.tokens;
  a.whole_slices = v.dims % kPanelColumns == 0;
  for (const Map& m : {Map{"q", problem.q, Layout::kRows, a.q_map}, Map{"k", k, Layout::kGranule, a.k_map},
                       Map{"v", v, Layout::kSliceKeys, a.v_map}}) {
    Result<CUtensorMap> map = &m.map == &a.v_map && a.whole_slices
                                  ? make_panels_map(m.name, m.tensor, entry.bf16, m.box_tokens, Layout::kSlicePanels)
                                  : make_panel_map(m.name, m.tensor, entry.bf16, m.box_tokens);
    if (!map.ok()) {
      return map.status();
    }
    m.map = map.value();
  }
  return {};
}

// Maps whose boxes end with any row, and what else the device finds out for itself.
Status make_clipped_maps(const Prefill512Entry& entry, const PrefillProblem& problem, Arguments512& a) {
  const RaggedProblem& r = problem.ragged;
  RaggedArguments& to = a.ragged;
  a.clipped = true;
  to.cu_seqlens_q = r.cu_seqlens_q;
  to.seqlens_q = r.seqlens_q;
  to.cu_seqlens_k = r.cu_seqlens_k;
  to.seqlens_k = r.seqlens_k;
  to.q_positions = r.q_positions;
  to.page_table = r.page_table;
  to.page_table_stride = r.page_table_stride;
  to.page_size = r.page_size;
  to.num_pages = static_cast<int32_t>(r.page_table != nullptr ? problem.k.batch : 0);
  const int64_t box = ragged_box_keys(Layout::kGranule, r.page_table != nullptr, r.page_size);
  to.box_shift = std::countr_zero(static_cast<uint32_t>(box));
  // Pools and tensors without an element are never read, but a map needs a place.
  const auto some = [&](TensorView t) {
    t.data = t.data == nullptr || t.batch == 0 ? problem.q.data : t.data;
    t.batch = std::max<int64_t>(t.batch, 1);
    return t;
  };
  const TensorView k = some(problem.k);
  const TensorView v = some(problem.v);
  const int k_box = static_cast<int>(std::min<int64_t>(box, Layout::kGranule));
  const int v_box = static_cast<int>(std::min<int64_t>(box, Layout::kSliceKeys));
  for (const auto& [m, clip] :
       {std::pair{Map{"q", problem.q, Layout::kRows, a.q_map}, Clip::kEnd},
        std::pair{Map{"q", problem.q, Layout::kRows, a.q_begin_map}, Clip::kBegin},
        std::pair{Map{"k", k, k_box, a.k_map}, Clip::kEnd}, std::pair{Map{"k", k, k_box, to.k_begin_map}, Clip::kBegin},
        std::pair{Map{"v", v, v_box, a.v_map}, Clip::kEnd},
        std::pair{Map{"v", v, v_box, to.v_begin_map}, Clip::kBegin}}) {
    Result<CUtensorMap> map = make_clipped_map(m.name, m.tensor, entry.bf16, m.box_tokens, clip);
    if (!map.ok()) {
      return map.status();
    }
    m.map = map.value();
  }
  return {};
}

}  // namespace

const Prefill512Entry& find_prefill_512(bool bf16) {
  return kEntries[bf16 ? 0 : 1];
}

size_t prefill_512_scratch_bytes(const PrefillProblem& problem, int multiprocessors) {
  return scratch_of(problem, multiprocessors).end;
}

Status run_prefill_512(const Prefill512Entry& entry, const PrefillProblem& problem, int multiprocessors,
                       cudaStream_t stream) {
  TESSERA_RETURN_IF_ERROR(check(entry, problem));
  if (problem.scratch == nullptr || reinterpret_cast<uintptr_t>(problem.scratch) % kScratchAlignment != 0) {
    return refuse(Code::kWorkspaceTooSmall,
                  fmt::format("scratch: got none or a misaligned one; allowed {} bytes, {}-byte aligned",
                              prefill_512_scratch_bytes(problem, multiprocessors), kScratchAlignment));
  }
  const Extents e = extents_of(problem);
  if (e.seqlen_q == 0 || e.batch == 0 || problem.q.heads == 0) {
    return {};  // no row to write
  }
  Arguments512 a{};
  set_visibility(problem, a.ragged);
  TESSERA_RETURN_IF_ERROR(problem.ragged.wanted ? make_clipped_maps(entry, problem, a) : make_maps(entry, problem, a));
  a.o = const_cast<void*>(problem.o.data);
  a.o_stride_batch = problem.o.stride_batch;
  a.o_stride_token = problem.o.stride_token;
  a.o_stride_head = problem.o.stride_head;
  a.lse = problem.lse;
  a.row_max = problem.row_max_log2;
  a.row_sum = problem.row_sum;
  a.sinks = problem.sinks;
  a.wide_output = problem.wide_output;
  a.unnormalized = problem.unnormalized;
  a.dims_qk = static_cast<int>(problem.q.dims);
  a.dims_v = static_cast<int>(problem.v.dims);
  a.seqlen_q = static_cast<int>(e.seqlen_q);
  a.seqlen_k = static_cast<int>(e.seqlen_k);
  a.group = static_cast<int>(problem.q.heads / problem.k.heads);
  a.batch = static_cast<int>(e.batch);
  a.packed = prefill_512_packs(e.seqlen_q, a.group) ? a.group : 1;
  a.tile_heads = static_cast<int>(problem.q.heads / a.packed);
  a.q = problem.q.data;
  a.q_stride_batch = problem.q.stride_batch;
  a.q_stride_token = problem.q.stride_token;
  a.q_stride_head = problem.q.stride_head;
  a.query_tiles = static_cast<int>(ceil_div(e.seqlen_q * a.packed, Layout::kBlockM));
  const bool masked = problem.causal || problem.ragged.window_left >= 0 || problem.ragged.window_right >= 0 ||
                      problem.ragged.compress_ratio != 0;
  const int64_t pairs = a.tile_heads * e.batch;
  const int64_t kv_head_bytes = std::max<int64_t>(1, e.seqlen_k * (problem.k.dims + problem.v.dims) * kElementBytes);
  const int64_t fitting = std::max<int64_t>(1, kSectionBytes / kv_head_bytes) * a.group / a.packed;
  a.section_heads = static_cast<int>(std::min(pairs, masked ? std::max<int64_t>(fitting, 4) : a.group / a.packed));
  a.total_tiles = static_cast<int>(pairs * a.query_tiles);
  a.c = score_scale(problem.softmax_scale, false);
  a.bias = entry.bf16 ? 0.0F : 7.0F;
  a.tile_counter = static_cast<int*>(problem.scratch);
  const Scratch scratch = scratch_of(problem, multiprocessors);
  auto* const bytes = static_cast<uint8_t*>(problem.scratch);
  a.chains = reinterpret_cast<float4*>(bytes + scratch.chains);
  a.superchunks = reinterpret_cast<float4*>(bytes + scratch.superchunks);
  cudaError_t error = cudaSuccess;
  // Packed queries are few: each sequence has as many tiles as the longest may have.
  if (problem.ragged.wanted && tile_prefix_bytes(problem) != 0 && a.packed == 1) {
    auto* const prefix = reinterpret_cast<int32_t*>(bytes + scratch.prefix);
    a.ragged.tile_prefix = prefix;
    a.section_heads = std::min(a.section_heads, a.tile_heads);
    error = launch_ragged_prepare(
        {a.ragged.cu_seqlens_q, a.ragged.seqlens_q, a.seqlen_q, a.batch, Layout::kBlockM, prefix}, stream);
  }
  if (error == cudaSuccess) {
    error = entry.launch(a, std::min(multiprocessors / 2, a.total_tiles), stream);
  }
  if (error != cudaSuccess) {
    return Status(Code::kDevice, fmt::format("{}: launch failed: {}", entry.name, cudaGetErrorString(error)));
  }
  return {};
}

}  // namespace tessera::sm90
